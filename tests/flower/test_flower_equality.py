"""Every backbone and every memory on real Flower processes gives the bits of the serial engine.

All pairs run in parallel in one ServerApp, so that nodes find their next message waiting: a SuperNode that
finds none sleeps for 3 s, and no setting changes that.
"""

import itertools
import json

import pytest

from chronofed import Backbone, CoreSet, FedAvg, Memory, Method, Optimal
from chronofed.core.spec_io import alternatives
from chronofed.flower.local import LocalFederation
from chronofed.runs import RunDirectory
from tests.helpers.trial import (
    NEEDS_FLOWER,
    Trial,
    differences,
    kinds,
    rounds_done,
    small,
    undisturbed,
    wait,
)

pytestmark = NEEDS_FLOWER

# Every backbone with one memory, and every memory with one backbone; the laws try the pairs.
PAIRS = {
    f"{b}-{m}": Method(
        backbone(), memory(), Optimal(time_drift_sq=1.0, information_loss_sq=0.5), average="clients"
    )
    for (b, backbone), (m, memory) in itertools.product(
        alternatives(Backbone).items(), alternatives(Memory).items()
    )
    if memory is CoreSet or backbone is FedAvg
}

SERVER = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flwr.serverapp import ServerApp

from chronofed.runs.load_spec import load
from chronofed.flower.transport import GridTransport
from chronofed.flower.server_app import run_server
from chronofed.flower.settings import Federation

app = ServerApp()
SETTINGS = Federation(quorum=3, round_timeout_s=1500.0, join_timeout_s=600.0, poll_s=4.0)


@app.main()
def main(grid, context):
    transport, runs = GridTransport(grid), Path(context.run_config["run"])

    def one(spec):
        run_server(load(spec), runs / spec.stem, transport, SETTINGS)

    specs = sorted((Path(__file__).parent / "specs").glob("*.toml"))
    with ThreadPoolExecutor(len(specs)) as pool:
        list(pool.map(one, specs))
"""


def experiment(method):
    """The experiment of a pair; the embedded images serve as the server's unlabelled samples, too."""
    plain = small(method)
    return small(method, server_data=plain.data) if method.backbone.needs_samples else plain


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directories of all pairs' runs on Flower."""
    folder = tmp_path_factory.mktemp("equality")
    federation = LocalFederation(folder / "flower")
    trial = Trial(folder, federation, small())
    trial.program("server", SERVER)
    (trial.app / "specs").mkdir()
    for name, method in PAIRS.items():
        (trial.app / "specs" / f"{name}.toml").write_text(experiment(method).resolved())
    project = trial.app / "pyproject.toml"
    project.write_text(project.read_text().replace('"spec.toml"', json.dumps("specs/*.toml")))
    with federation:
        for client in range(3):
            federation.start_node(client)
        process = trial.submit()
        wait(lambda: process.poll() is not None, 1700.0, "the end of all runs")
    return trial.run


def test_there_are_at_least_twenty_pairs():
    assert len(PAIRS) >= 20


def seen_by_server(line):
    """Personal models stay on the clients, so the server cannot compare them with its own; clusters it has."""
    hidden = {"personal_accuracy", "client_accuracy"} if "personal_accuracy" in line else set()
    return {key: value for key, value in line.items() if key not in hidden}


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_bits(name, runs):
    serial = undisturbed(experiment(PAIRS[name]))
    assert rounds_done(runs / name) == 4
    assert RunDirectory(runs / name).summary() is not None
    assert differences(runs / name, serial) == []
    assert set(kinds(runs / name)) == {"started", "joined", "finished"}
    assert (runs / name / "spec.toml").read_bytes() == (serial / "spec.toml").read_bytes()
    expected = [seen_by_server(line) for line in RunDirectory(serial).history()]
    assert RunDirectory(runs / name).history() == expected

"""200 rounds of SCAFFOLD over TLS with clients whose labels change: nobody honest is refused, the same bits."""

import json
import shutil
import sys

import pytest

from chronofed import CoreSet, Method, Scaffold, Train
from chronofed.flower.hub import Hub, HubSettings
from chronofed.flower.hub_service import HubService, prepare_app
from chronofed.flower.hub_status import read_status
from chronofed.flower.processes import Processes, environment, free_port
from chronofed.runs import RunDirectory
from tests.helpers.drifting import Drifting
from tests.helpers.trial import (
    NEEDS_FLOWER,
    NEEDS_NGINX,
    differences,
    kinds,
    rounds_done,
    small,
    undisturbed,
    wait,
)

pytestmark = [NEEDS_FLOWER, NEEDS_NGINX]

ROUNDS = 200
NAMES = "abc"


def experiment():
    return small(
        Method(Scaffold(), CoreSet(size=10)),
        rounds=ROUNDS,
        scenario=Drifting(clients=len(NAMES)),
        train=Train(lr=0.1, batch_size=16, steps=4),
    )


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub after the run, and nodes that are processes of their own."""
    folder = tmp_path_factory.mktemp("drift")
    hub = Hub(folder / "hub")
    hub.create(HubSettings(("127.0.0.1", "localhost"), free_port()))
    timeouts = {"round_timeout_s": 600.0, "join_timeout_s": 300.0}
    prepare_app(hub, experiment().resolved(), quorum=len(NAMES), **timeouts)
    for name in NAMES:
        hub.add_node(name)
    start = "from chronofed.cli.main import main; raise SystemExit(main())"
    with (
        HubService(hub) as service,
        Processes(folder / "logs", environment(folder / "home")) as processes,
    ):
        for name in NAMES:
            shutil.move(hub.path / "nodes" / name, folder / name)
            processes.start(name, sys.executable, "-c", start, "node", "start", str(folder / name))

        def done() -> bool:
            service.tend()
            processes.check()
            return RunDirectory(hub.run).summary() is not None

        wait(done, 3000.0, "the end of the run")
        yield hub


def test_no_honest_reply_is_refused_in_200_rounds_with_drift(hub):
    assert rounds_done(hub.run) == ROUNDS
    assert set(kinds(hub.run)) == {"started", "joined", "finished"}
    assert [node.refused for node in read_status(hub).nodes] == [0] * len(NAMES)


def test_the_bits_are_those_of_one_process(hub):
    serial = undisturbed(experiment())
    assert differences(hub.run, serial) == []
    assert RunDirectory(hub.run).history() == RunDirectory(serial).history()


def test_the_data_did_change(hub):
    """Otherwise this would show nothing: every client saw at least ten data sets."""
    scenario = Drifting(clients=len(NAMES))
    from chronofed.runs.built import build

    stream = build(experiment()).scenario
    for client in range(scenario.clients):
        keys = {stream.at(round_).visits[client].key for round_ in range(ROUNDS)}
        assert len(keys) >= 8


def test_how_long_a_round_took_is_recorded(hub):
    lines = (hub.run / "answers.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert len(seconds) == ROUNDS
    print(f"{sum(seconds):.0f} s for {ROUNDS} rounds, median {sorted(seconds)[100]:.2f} s")

"""A small world that every test can train in: 4 clients, 6 subsets each, 3 classes in 5 dimensions."""

import os
import signal
from functools import cache
from importlib.util import find_spec
from itertools import islice

import pytest

from chronofed import Classification, Dataset, Linear, Method, Snapshot, Subsets, Train, run
from chronofed.engines import SerialEngine
from tests.helpers.methods import server_samples
from tests.helpers.world import blobs

# Workers of pytest-xdist have 80 columns, which the command line would keep to.
os.environ.pop("COLUMNS", None)

# A shell that starts a program in the background may have it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The environments of Flower's tests have no hypothesis.
if find_spec("hypothesis"):
    from hypothesis import settings

    # No test is about time, so a loaded machine must not fail one. `--hypothesis-profile thorough` tries more.
    settings.register_profile("quick", deadline=None, max_examples=40)
    settings.register_profile("thorough", deadline=None, max_examples=200)
    settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave all but some cases of a test that is marked with ``some`` to ``make test-product``."""
    cases = {}
    for item in items:
        if item.get_closest_marker("some"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for every in cases.values():
        (count,) = every[0].get_closest_marker("some").args
        quick = {round(k * len(every) / count) for k in range(count)}
        for number, item in enumerate(every):
            if number not in quick:
                item.add_marker(pytest.mark.product)


@pytest.fixture(scope="session")
def data() -> Dataset:
    return blobs()


@pytest.fixture(scope="session")
def task(data) -> Classification:
    return Classification(data, Linear())


@pytest.fixture(scope="session")
def scenario(data):
    return Subsets(clients=4, subsets=6, client_alpha=1.0).on(data, seed=0)


@pytest.fixture(scope="session")
def train_rounds(task, scenario):
    """Start a run and return an iterator of its snapshots."""

    def train_rounds(
        method: Method,
        *,
        rounds=None,
        start=None,
        engine=None,
        seed=0,
        settings=None,
        partial_sums=None,
        **others,
    ):
        world = {"scenario": scenario, "task": task} | others
        return run(
            method,
            world["scenario"],
            world["task"],
            rounds=rounds,
            train=settings or Train(lr=0.1, batch_size=16, steps=4),
            engine=engine or SerialEngine(world["task"]),
            seed=seed,
            start=start,
            server_samples=server_samples(method, world["task"]),
            partial_sums=partial_sums,
        )

    return train_rounds


@pytest.fixture(scope="session")
def train_for(train_rounds):
    """Run a method for some rounds and return the last snapshot."""

    def train_for(method: Method, rounds: int, **others) -> Snapshot:
        last = None
        for last in train_rounds(method, rounds=rounds, **others):
            pass
        return last

    return train_for


@pytest.fixture(scope="module")
def straight(train_rounds):
    """Return the snapshot after some rounds of a method's undisturbed run, which is computed once."""

    @cache
    def begun(method: Method) -> tuple[list[Snapshot], object]:
        return [], train_rounds(method)

    def straight(method: Method, rounds: int) -> Snapshot:
        done, rest = begun(method)
        done += islice(rest, max(rounds - len(done), 0))
        return done[rounds - 1]

    return straight


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """Work in a folder of one's own, with no data but the embedded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CHRONOFED_DATA", raising=False)
    return tmp_path


TINY_SPEC = """
name = "tiny"
rounds = 4
[model]
kind = "mlp"
hidden = [8]
[train]
steps = 2
[evaluate]
every = 2
seen = 50
"""


@pytest.fixture
def tiny_spec(workdir) -> str:
    """Write the text of a run of a second to ``spec.toml``, and return it."""
    (workdir / "spec.toml").write_text(TINY_SPEC)
    return TINY_SPEC


@pytest.fixture
def cli(capsys, workdir):
    """Call the command line; return exit code, standard output and standard error."""
    from chronofed.cli.main import main

    def cli(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return cli

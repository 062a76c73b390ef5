"""A small world that every test can train in: 4 clients, 6 subsets each, 3 classes in 5 dimensions."""

import signal
from importlib.util import find_spec

import pytest

from chronofed import (
    Classification,
    Dataset,
    Linear,
    Method,
    Snapshot,
    Subsets,
    Train,
    run,
)
from chronofed.engines import SerialEngine
from world import blobs

# A shell that starts a program in the background may have it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis"):  # which the environment of Flower's tests does without
    from hypothesis import settings

    settings.register_profile("chronofed", deadline=None)  # no test is about time
    settings.load_profile("chronofed")


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
def train_for(task, scenario):
    """Run a method for some rounds and return the last snapshot."""

    def train_for(
        method: Method, rounds: int, *, start=None, engine=None, seed=0, settings=None, **others
    ) -> Snapshot:
        world = {"scenario": scenario, "task": task} | others
        snapshots = run(
            method,
            world["scenario"],
            world["task"],
            rounds=rounds,
            train=settings or Train(lr=0.1, batch_size=16, steps=4),
            engine=engine or SerialEngine(world["task"]),
            seed=seed,
            start=start,
        )
        last = None
        for last in snapshots:  # noqa: B007 - only the last one counts
            pass
        return last

    return train_for

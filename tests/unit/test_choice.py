"""Which engine is chosen, and that a run's record says so."""

from contextlib import closing

import pytest
from torch import nn

from chronofed import Classification, Cnn, CoreSet, Ditto, FedAvg, Method, Mlp
from chronofed.engines import (
    BatchedEngine,
    LockerStore,
    ProcessEngine,
    SerialEngine,
    ThreadEngine,
)
from chronofed.engines.choice import choose
from chronofed.errors import IncompatibleError
from chronofed.tasks.models import Custom


def dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.Dropout(), nn.Linear(8, classes))


class Own(FedAvg):
    """A backbone that nobody said works stacked."""

    def direction(self, grad, params, server, client):
        return grad


@pytest.fixture
def drawing(task):
    return Classification(task.data, Custom("test_choice:dropout"))


def test_linear_models_are_batched_whatever_the_machine(task):
    for workers, cohort in [(1, 1), (1, 9), (8, 9)]:
        choice = choose("auto", workers, task, Method(), cohort)
        assert (choice.engine, choice.workers) == ("batched", min(workers, cohort))
        assert "one program" in choice.why


def test_what_cannot_be_batched_runs_side_by_side(task, drawing):
    own = Method(Own())
    choice = choose("auto", 4, task, own, cohort=3)
    assert (choice.engine, choice.workers) == ("threads", 3)
    assert "Own.direction is not declared" in choice.why
    assert choose("auto", 4, task, own, cohort=1).engine == "serial"
    assert choose("auto", 1, task, own, cohort=5).engine == "serial"
    choice = choose("auto", 2, drawing, Method(), cohort=5)
    assert (choice.engine, choice.workers) == ("processes", 2)
    assert "draws random numbers" in choice.why


def test_what_is_asked_for(task, drawing):
    assert choose("serial", 5, task, Method(), 3).workers == 1
    choice = choose("threads", 5, task, Method(Ditto(), CoreSet()), 3)
    assert (choice.engine, choice.workers, choice.why) == ("threads", 5, "as asked for")
    assert choose("processes", None, task, Method(), 3).workers >= 1
    with pytest.raises(IncompatibleError, match=r"^engine batched: .*; use auto$"):
        choose("batched", 2, drawing, Method(), 3)
    with pytest.raises(IncompatibleError, match=r"^engine batched: .*@stacked"):
        choose("batched", 2, task, Method(Own()), 3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("serial", SerialEngine),
        ("threads", ThreadEngine),
        ("processes", ProcessEngine),
        ("batched", BatchedEngine),
    ],
)
def test_engines_get_what_they_need(task, kind, expected):
    store = LockerStore()
    with closing(choose(kind, 3, task, Method(), 5).build(task, store)) as engine:
        assert type(engine) is expected
        assert engine.lockers is store
        assert getattr(engine, "workers", 3) == 3
        assert len(engine.task.data.train) == len(task.data.train)
    with closing(choose(kind, 1, task, Method(), 5).build(task)) as engine:
        assert dict(engine.lockers) == {}


def test_convolutions_are_not_batched(task):
    images = Classification(task.data, Cnn(channels=(2,), fc=4))
    small = Classification(task.data, Mlp((4,)))
    assert choose("auto", 2, small, Method(), 4).engine == "batched"
    assert images.evaluation_batch < small.evaluation_batch

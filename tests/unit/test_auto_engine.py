"""The choice of an engine, and engines that the package does not know."""

from contextlib import closing

import pytest
from torch import nn

from chronofed import Classification, Cnn, CoreSet, Ditto, FedAvg, Method, Mlp, Train
from chronofed.clients.cache import StateCache
from chronofed.core.errors import IncompatibleError
from chronofed.engines import BatchedEngine, ProcessEngine, SerialEngine, ThreadEngine, auto
from chronofed.engines.auto import AUTO, ENGINES, choose, find_engine
from chronofed.models.zoo import Custom


def dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.Dropout(), nn.Linear(8, classes))


class Own(FedAvg):
    """A backbone that nobody said works stacked."""

    def direction(self, grad, params, server, client):
        return grad


@pytest.fixture
def drawing(task):
    return Classification(task.data, Custom(f"{__name__}:dropout"))


def test_linear_models_are_batched_whatever_the_machine(task):
    for workers, cohort in [(1, 1), (1, 9), (8, 9)]:
        choice = choose("auto", workers, task, Method(), cohort)
        assert (choice.engine, choice.workers) == ("batched", min(workers, cohort))
        assert "one program" in choice.reason


def test_what_cannot_be_batched_runs_side_by_side(task, drawing):
    own = Method(Own())
    choice = choose("auto", 4, task, own, cohort=3)
    assert (choice.engine, choice.workers) == ("threads", 3)
    assert "Own.direction is not declared" in choice.reason
    assert choose("auto", 4, task, own, cohort=1).engine == "serial"
    assert choose("auto", 1, task, own, cohort=5).engine == "serial"
    choice = choose("auto", 2, drawing, Method(), cohort=5)
    assert (choice.engine, choice.workers) == ("processes", 2)
    assert "draws random numbers" in choice.reason


def test_what_is_asked_for(task, drawing):
    assert choose("serial", 5, task, Method(), 3).workers == 1
    choice = choose("threads", 5, task, Method(Ditto(), CoreSet()), 3)
    assert (choice.engine, choice.workers, choice.reason) == ("threads", 5, "as requested")
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
    store = StateCache()
    with closing(choose(kind, 3, task, Method(), 5).build(task, store)) as engine:
        assert type(engine) is expected
        assert engine.client_states is store
        assert engine.workers == (1 if kind == "serial" else 3)
        assert len(engine.task.data.train) == len(task.data.train)
    with closing(choose(kind, 1, task, Method(), 5).build(task)) as engine:
        assert dict(engine.client_states) == {}


def test_every_engine_is_one_row_of_a_table(task):
    assert {AUTO, *ENGINES} == {"auto", "serial", "threads", "processes", "batched", "ray"}
    for name, cls in ENGINES.items():
        assert cls.summary
        assert find_engine(name) is cls is find_engine(f"{cls.__module__}:{cls.__name__}")


class Picky(SerialEngine):
    """An engine of one's own, which takes one method only."""

    max_workers = 3

    @classmethod
    def unsupported(cls, method, task, train):
        return None if train.lr == 0.5 else "lr is not 0.5"


def test_an_engine_of_ones_own_says_what_it_can_do(task):
    name = f"{__name__}:Picky"
    choice = choose(name, 8, task, Method(), 9, Train(lr=0.5))
    assert (choice.engine, choice.workers, choice.reason) == (name, 3, "as requested")
    assert type(choice.build(task)) is Picky
    with pytest.raises(IncompatibleError, match=r"^engine .*:Picky: lr is not 0.5; use auto$"):
        choose(name, 8, task, Method(), 9)


def test_where_no_engine_will_do_all_reasons_are_told(task, monkeypatch):
    monkeypatch.setattr(auto, "ENGINES", {"picky": Picky, "again": Picky})
    told = r"^engine auto: not picky: lr is not 0.5; not again: lr is not 0.5$"
    with pytest.raises(IncompatibleError, match=told):
        choose("auto", 1, task, Method(), 9)


def test_convolutions_are_not_batched(task):
    images = Classification(task.data, Cnn(channels=(2,), fc=4))
    small = Classification(task.data, Mlp((4,)))
    assert choose("auto", 2, small, Method(), 4).engine == "batched"
    assert images.evaluation_batch < small.evaluation_batch

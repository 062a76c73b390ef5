"""A schedule of local steps: every engine takes the steps of the round, and nothing else changes."""

import pytest
import torch

from chronofed import CoreSet, FedAvg, FedNova, Method, PostLocal, Scaffold, Step, Train
from chronofed.clients.messages import Order
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table, to_table
from chronofed.engines import ProcessEngine, ThreadEngine
from chronofed.engines.batched.support import unsupported_orders
from tests.helpers.methods import name
from tests.helpers.quadratics import QuadraticWorld, models
from tests.helpers.world import same
from tests.laws.test_batched import check

SETTINGS = {"lr": 0.1, "batch_size": 16}
SCHEDULE = PostLocal(rounds=2)


@pytest.mark.parametrize("backbone", [FedAvg(), Scaffold(), FedNova()], ids=name)
def test_it_is_one_run_after_another(backbone, train_for):
    """Mini-batch SGD for two rounds, and local SGD from there, bit for bit."""
    method = Method(backbone, CoreSet(size=5))
    both = Train(**SETTINGS, steps=4, steps_schedule=SCHEDULE)
    first = train_for(method, 2, settings=Train(**SETTINGS, steps=1))
    then = train_for(method, 5, start=first, settings=Train(**SETTINGS, steps=4))
    assert same(train_for(method, 5, settings=both), then)


@pytest.mark.parametrize(
    "kind", [ThreadEngine, pytest.param(ProcessEngine, marks=pytest.mark.product)], ids=str
)
def test_engines_agree(kind, train_for, task):
    settings = Train(**SETTINGS, epochs=2, steps_schedule=SCHEDULE)
    with kind(task, 2) as engine:
        got = train_for(Method(), 4, engine=engine, settings=settings)
    assert same(got, train_for(Method(), 4, settings=settings))


def test_the_batched_engine_agrees():
    for backbone in (FedAvg(), Scaffold()):
        check(Method(backbone), Train(lr=0.1, batch_size=8, epochs=2, steps_schedule=SCHEDULE))


def test_by_hand():
    """Client (h, b) = (1, 1) from 0 with steps of 1/2: 1 - w halves with every step; 1, 1, then 3 steps."""
    there = QuadraticWorld([[[(1.0, 1.0)]]])
    got = there.train(Method(), 4, lr=0.5, settings={"steps_schedule": SCHEDULE})
    assert (1 - models(got)).flatten().tolist() == [2**-1, 2**-2, 2**-5, 2**-8]


def test_the_settings_of_a_round():
    """Without steps, epochs count later; a rate may change at the same time."""
    train = Train(epochs=2, lr=0.1, steps_schedule=PostLocal(rounds=1, first_steps=3))
    assert [train.at(t).steps for t in range(3)] == [3, None, None]
    assert [train.at(t).count(64, 64) for t in range(2)] == [3, 4]
    fall = Train(steps=8, lr=0.1, schedule=Step(every=2), steps_schedule=SCHEDULE)
    assert [(fall.at(t).steps, fall.at(t).lr) for t in (1, 2)] == [(1, 0.1), (8, 0.1 * 0.1)]
    assert all(fall.at(t).steps_schedule is None for t in range(3))
    assert fall.at(0).schedule is None


def test_an_order_with_a_schedule_is_refused():
    train = Train(steps_schedule=SCHEDULE)
    order = Order(0, 0, {}, torch.zeros(0), Method().weights, None, train, 0)
    assert "a schedule of rates or steps, which the server applies" in unsupported_orders([order])


def test_in_a_specification():
    table = {"steps": 8, "steps_schedule": {"kind": "post-local", "rounds": 3}}
    train = from_table(table, Train, "train")
    assert train.steps_schedule == PostLocal(rounds=3, first_steps=1)
    assert from_table(to_table(train), Train) == train
    with pytest.raises(SpecError, match=r"train\.steps_schedule\.rounds: missing"):
        from_table({"steps_schedule": {"kind": "post-local"}}, Train, "train")

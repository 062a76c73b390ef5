"""Laws that every point of the product space must obey."""

import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from methods import BACKBONES, EVERY, MEMORIES, method, name
from torch import nn

from chronofed import (
    Adaptive,
    Classification,
    Correlated,
    Ditto,
    FedAvg,
    FedProx,
    Fixed,
    Forget,
    Fresh,
    Merged,
    Method,
    MimeLite,
    Optimal,
    Scaffold,
    Snapshot,
    Subsets,
    Uniform,
)
from chronofed.engines import SerialEngine
from chronofed.engines.serial import one_thread
from chronofed.errors import IncompatibleError
from chronofed.protocol import Client
from chronofed.records.checkpoint import decode, encode
from chronofed.scenarios import Schedule
from chronofed.tasks.models import Custom


def same(a, b) -> bool:
    """Bit for bit: server, buffers and every client's locker."""
    return encode(a) == encode(b)


@pytest.mark.parametrize("method", EVERY)
def test_same_seed_gives_same_bits_and_another_seed_does_not(method, train_for):
    assert same(train_for(method, 4), train_for(method, 4))
    assert not torch.equal(train_for(method, 4).params, train_for(method, 4, seed=1).params)


def with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, classes)
    )


@pytest.mark.parametrize("backbone", BACKBONES, ids=name)
def test_dropout_and_batch_norm_give_the_same_bits_too(backbone, train_for, data):
    task = Classification(data, Custom(f"{__name__}:with_dropout"))
    torch.manual_seed(1)
    first = train_for(Method(backbone), 2, task=task)
    torch.manual_seed(2)
    assert same(first, train_for(Method(backbone), 2, task=task))


@pytest.mark.parametrize("method", EVERY)
def test_resuming_equals_the_straight_run(method, train_for):
    half = decode(encode(train_for(method, 3)))
    assert same(train_for(method, 7, start=half), train_for(method, 7))


class ShuffledWorkers(SerialEngine):
    """Four threads, each with a model of its own; results arrive in a random order."""

    def prepare(self, method, orders, plan):
        answers = list(super().prepare(method, orders, plan))
        random.Random(plan.round).shuffle(answers)
        yield from answers

    def map(self, method, orders, plan):
        def one(order):
            visit = plan.visits[order.client]
            data = self.task.samples(visit.indices)
            locker = self.lockers.get(order.client)
            with one_thread():
                client = Client(method, order, locker, self.task.objective(), data, visit.key)
                return client.serve()

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(one, orders))
        random.Random(plan.round).shuffle(answers)
        for result, locker in answers:
            if method.stateful:
                self.lockers[result.client] = locker
            yield result


@pytest.mark.parametrize("method", EVERY)
def test_neither_workers_nor_the_order_of_results_matter(method, train_for, task):
    assert same(train_for(method, 5, engine=ShuffledWorkers(task)), train_for(method, 5))


@pytest.mark.parametrize("method", EVERY)
def test_learns(method, train_for, task):
    snapshot = train_for(method, 30)
    score = task.score(task.objective(), snapshot.params, snapshot.buffers, task.data.test)
    assert score.accuracy > 0.75


@pytest.mark.parametrize("method", EVERY)
def test_stateless_clients_are_refused_or_served(method, train_for, data):
    stateless = Fresh(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    if method.stateful:
        with pytest.raises(IncompatibleError, match="keeps its state on the client"):
            train_for(method, 2, scenario=stateless)
    else:
        assert train_for(method, 2, scenario=stateless).lockers == {}


@pytest.mark.parametrize("neutral", [FedProx(mu=0.0), MimeLite(beta=0.0), Ditto()], ids=name)
@pytest.mark.parametrize("memory", MEMORIES, ids=name)
def test_neutral_settings_are_fedavg(memory, neutral, train_for):
    """Bit for bit: no tie, no momentum, or a personal model that nobody else sees."""
    one, plain = (train_for(method(b, memory), 5) for b in (neutral, FedAvg()))
    assert torch.equal(one.params, plain.params)
    assert torch.equal(one.buffers, plain.buffers)


@pytest.mark.parametrize("memory", MEMORIES, ids=name)
def test_the_first_round_of_scaffold_is_fedavgs(memory, train_for):
    one, plain = (train_for(method(b, memory), 1) for b in (Scaffold(), FedAvg()))
    assert torch.equal(one.params, plain.params)


@pytest.mark.parametrize("memory", MEMORIES, ids=name)
@pytest.mark.parametrize("backbone", BACKBONES, ids=name)
def test_a_past_without_weight_is_forgotten(backbone, memory, train_for):
    weightless = Method(backbone, memory, Optimal(drift=0.0, loss=1.0))
    forgetful = Method(backbone, Forget())
    assert torch.equal(train_for(weightless, 5).params, train_for(forgetful, 5).params)


@pytest.mark.parametrize(
    "weights",
    [Merged(), Uniform(), Fixed(0.5), Optimal(1.0, 0.1), Correlated(1.0, 0.1, 0.5), Adaptive()],
    ids=name,
)
@pytest.mark.parametrize("method", EVERY)
def test_every_weighting_composes_with_every_method(method, weights, train_for):
    if method.backbone.private and weights.probes:
        with pytest.raises(ValueError, match="reports for Adaptive go to the server"):
            msgspec.structs.replace(method, weights=weights)
        return
    chosen = msgspec.structs.replace(method, weights=weights)
    result = train_for(chosen, 4)
    assert torch.isfinite(result.params).all()
    assert same(result, train_for(chosen, 4))


@pytest.mark.parametrize("method", EVERY)
def test_a_round_in_which_nobody_comes_changes_nothing(method, train_for, data):
    late = Schedule(spans=tuple((client, 2, -1) for client in range(4)))
    world = Subsets(clients=4, subsets=6, client_alpha=1.0, membership=late).on(data, seed=0)
    start = train_for(method, 1, scenario=world)
    nothing = Snapshot(2, start.server, start.buffers, weights=start.weights)
    assert same(train_for(method, 2, scenario=world), nothing)
    assert not same(train_for(method, 3, scenario=world), nothing)

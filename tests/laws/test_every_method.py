"""Laws that every point of the product space must obey.

``straight`` computes a method's undisturbed run once. The scope of the parameter keeps the tests of a method
together, so that they share it.
"""

from itertools import product
from statistics import fmean

import msgspec
import pytest
import torch
from torch import nn

from chronofed import (
    Adaptive,
    Bounded,
    Classification,
    Correlated,
    Covariance,
    Ditto,
    FedAvg,
    FedCurv,
    FedProx,
    Fixed,
    Forget,
    Merged,
    Method,
    MimeLite,
    Optimal,
    Scaffold,
    Snapshot,
    Stateless,
    Subsets,
    Uniform,
)
from chronofed.core.errors import IncompatibleError
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from chronofed.scenarios import Schedule
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.methods import (
    BACKBONES,
    MEMORIES,
    NORMALISED,
    PRIVATE,
    method,
    name,
    quick_pairs,
)
from tests.helpers.methods import every_method as methods
from tests.helpers.world import same, scores_of


def every_method(offset=None):
    return pytest.mark.parametrize("method", methods(offset), scope="module")


@every_method(0)
def test_same_seed_gives_same_bits_and_another_seed_does_not(method, train_for, straight):
    assert same(train_for(method, 4), straight(method, 4))
    # A head on a body that is a single layer does not depend on the seed, so compare what was trained.
    other, one = (
        last.server["params"] for last in (train_for(method, 1, seed=1), straight(method, 1))
    )
    assert not torch.equal(other, one)


def with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, classes)
    )


@pytest.mark.parametrize("backbone", NORMALISED, ids=name)
@pytest.mark.some(8)
def test_dropout_and_batch_norm_give_the_same_bits_too(backbone, train_for, data):
    task = Classification(data, Custom(f"{__name__}:with_dropout"))
    torch.manual_seed(1)
    first = train_for(Method(backbone), 2, task=task)
    torch.manual_seed(2)
    assert same(first, train_for(Method(backbone), 2, task=task))


@every_method(1)
def test_resuming_equals_the_straight_run(method, train_for, straight):
    half = decode(encode(straight(method, 3)))
    assert same(train_for(method, 6, start=half), straight(method, 6))


@every_method(2)
def test_neither_workers_nor_the_order_of_results_matter(method, train_for, straight, task):
    assert same(train_for(method, 4, engine=ShuffledWorkers(task)), straight(method, 4))


# Learns, but slowly: 82 % after 12 rounds, 93 % after 40.
SLOW = {("FedRod", "Ewc")}


@every_method(3)
def test_learns(method, straight, task, scenario):
    parts = name(method.backbone), name(method.memory)
    scores = scores_of(task, scenario, straight(method, 40 if parts in SLOW else 12))
    assert fmean(score.accuracy for score in scores) > 0.9


@every_method()
def test_stateless_clients_are_refused_or_served(method, train_for, data):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    if method.stateful:
        with pytest.raises(IncompatibleError, match="keeps its state on the client"):
            train_for(method, 2, scenario=stateless)
    else:
        assert train_for(method, 2, scenario=stateless).client_states == {}


@pytest.mark.parametrize(
    "neutral", [FedProx(mu=0.0), FedCurv(strength=0.0), MimeLite(beta=0.0), Ditto()], ids=name
)
@pytest.mark.parametrize("memory", MEMORIES, ids=name)
@pytest.mark.some(8)
def test_neutral_settings_are_fedavg(memory, neutral, straight):
    """Bit for bit: no tie, no penalty, no momentum, or a personal model that nobody else sees."""
    one, plain = (straight(method(b, memory), 5) for b in (neutral, FedAvg()))
    assert torch.equal(one.params, plain.params)
    assert torch.equal(one.buffers, plain.buffers)


@pytest.mark.parametrize("memory", MEMORIES, ids=name)
def test_the_first_round_of_scaffold_is_fedavgs(memory, straight):
    one, plain = (straight(method(b, memory), 1) for b in (Scaffold(), FedAvg()))
    assert torch.equal(one.params, plain.params)


@pytest.mark.parametrize(
    ("backbone", "memory"),
    [
        pytest.param(b, m, marks=marks, id=f"{name(b)}-{name(m)}")
        for b, m, marks in quick_pairs(BACKBONES, MEMORIES)
    ],
)
def test_a_past_without_weight_is_forgotten(backbone, memory, train_for, straight):
    weightless = Method(backbone, memory, Optimal(time_drift_sq=0.0, information_loss_sq=1.0))
    forgetful = Method(backbone, Forget())
    assert torch.equal(train_for(weightless, 5).params, straight(forgetful, 5).params)


WEIGHTS = [
    Merged(),
    Uniform(),
    Fixed(0.5),
    Optimal(1.0, 0.1),
    Correlated(1.0, 0.1, 0.5),
    Adaptive(),
    Bounded(1.0, 0.1, covariance=0.5),
    Covariance(tuple(tuple(1.0 + (k == j) for k in range(20)) for j in range(20)), 0.1),
]


def weighted():
    """Every pair of backbone, memory and weights, each with some of the third; some are quick."""
    backbones = [*BACKBONES, PRIVATE]
    step = max(4, len(backbones) * len(MEMORIES) * len(WEIGHTS) // 150)
    for (m, memory), (w, weights) in product(enumerate(MEMORIES), enumerate(WEIGHTS)):
        served = [b for b in backbones if not (b.private and memory.location == "server")]
        for number, backbone in enumerate(served):
            if (number + m + w) % step:
                continue
            quick = (m + w) % 3 == 0 and (m * len(WEIGHTS) + w) % len(
                served
            ) // step == number // step
            marks = () if quick else pytest.mark.product
            label = "-".join(map(name, (backbone, memory, weights)))
            yield pytest.param(method(backbone, memory), weights, marks=marks, id=label)


@pytest.mark.parametrize(("method", "weights"), list(weighted()))
def test_every_weighting_composes_with_every_method(method, weights, train_for):
    if method.backbone.private and weights.probes:
        with pytest.raises(ValueError, match="reports for Adaptive go to the server"):
            msgspec.structs.replace(method, weights=weights)
        return
    chosen = msgspec.structs.replace(method, weights=weights)
    result = train_for(chosen, 4)
    assert torch.isfinite(result.params).all()
    assert same(result, train_for(chosen, 4))


@every_method(3)
def test_a_round_in_which_nobody_comes_changes_nothing(method, train_for, data):
    late = Schedule(spans=tuple((client, 2, -1) for client in range(4)))
    world = Subsets(clients=4, subsets=6, client_alpha=1.0, membership=late).on(data, seed=0)
    start = train_for(method, 1, scenario=world)
    nothing = Snapshot(2, start.server, start.buffers, weighting_state=start.weighting_state)
    assert same(train_for(method, 2, scenario=world), nothing)
    assert not same(train_for(method, 3, scenario=world), nothing)

"""Every engine gives the same bits, for every method and any number of workers."""

import pytest
import torch
from torch import nn

from chronofed import Adaptive, Classification, FedAvg, Method, Mime, Scaffold, Taylor, Train
from chronofed.engines import ProcessEngine, ThreadEngine
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.methods import MEMORIES, NORMALISED, every_method, method, name
from tests.helpers.world import same

ROUNDS = 3
KINDS = {"threads": ThreadEngine, "processes": ProcessEngine}


def with_batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


@pytest.fixture(scope="module")
def engines(task):
    """One pool for all tests, because the method comes with every order; workers start when needed."""
    made = {}

    def engine(kind: str, workers: int = 2, task=task):
        key = kind, workers, id(task)
        if key not in made:
            made[key] = KINDS[kind](task, workers)
        return made[key]

    yield engine
    for each in made.values():
        each.close()


@pytest.fixture(scope="module")
def normalised(data):
    return Classification(data, Custom(f"{__name__}:with_batch_norm"))


@pytest.mark.parametrize("method", every_method(2))
def test_engines_agree(method, train_for, straight, engines):
    serial = straight(method, ROUNDS)
    for kind in KINDS:
        assert same(train_for(method, ROUNDS, engine=engines(kind)), serial), kind


@pytest.mark.some(5)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", MEMORIES, ids=name)
def test_the_number_of_workers_does_not_matter(memory, kind, workers, train_for, straight, engines):
    for backbone in (Scaffold(), Mime()):
        chosen = method(backbone, memory)
        result = train_for(chosen, ROUNDS, engine=engines(kind, workers))
        assert same(result, straight(chosen, ROUNDS))


@pytest.mark.some(7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backbone", NORMALISED, ids=name)
def test_buffers_agree_too(backbone, kind, train_for, engines, normalised):
    engine = engines(kind, task=normalised)
    result = train_for(Method(backbone), ROUNDS, engine=engine, task=normalised)
    assert same(result, train_for(Method(backbone), ROUNDS, task=normalised))
    assert result.buffers.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_sample_alone_is_no_mini_batch_of_its_own(
    kind, train_for, engines, normalised, scenario
):
    """BatchNorm cannot normalise a single sample."""
    size = len(scenario.at(0).visits[0].indices)
    world = {"settings": Train(lr=0.1, batch_size=size - 1), "task": normalised}
    result = train_for(Method(), 1, engine=engines(kind, task=normalised), **world)
    assert same(result, train_for(Method(), 1, **world))


@pytest.mark.parametrize("kind", KINDS)
def test_what_weights_learn_agrees(kind, train_for, engines):
    chosen = Method(FedAvg(), Taylor(), Adaptive())
    result = train_for(chosen, 5, engine=engines(kind))
    assert same(result, train_for(chosen, 5))
    assert any(v.any() for v in result.weighting_state.values())


@pytest.mark.parametrize("memory", MEMORIES, ids=name)
@pytest.mark.some(3)
def test_a_run_may_go_on_with_another_engine(memory, train_for, engines):
    chosen = method(Scaffold(), memory)
    first = decode(encode(train_for(chosen, 2, engine=engines("threads"))))
    second = decode(encode(train_for(chosen, 4, start=first, engine=engines("processes"))))
    assert same(train_for(chosen, 6, start=second), train_for(chosen, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_no_ones_randomness_is_touched(kind, train_for, engines):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    train_for(Method(Mime()), 1, engine=engines(kind))
    assert torch.equal(torch.get_rng_state(), state)

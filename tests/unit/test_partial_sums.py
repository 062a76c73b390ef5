"""Partial sums: a tree over clients that does not depend on engines, and what it must not change."""

import pytest
import torch

from chronofed import (
    Afl,
    Classification,
    CoreSet,
    Experiment,
    FedNova,
    FedOpt,
    Method,
    Mime,
    Mlp,
    Scaffold,
    Taylor,
)
from chronofed.clients.messages import Result
from chronofed.clients.partial_sums import add_up, by_part, check_summable, summed_here
from chronofed.core.errors import IncompatibleError
from chronofed.engines import ThreadEngine
from chronofed.models.zoo import Custom
from chronofed.runs.built import build
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.methods import BACKBONES, name
from tests.helpers.world import same

METHODS = [Method(), Method(FedNova(), CoreSet(5)), Method(Mime(), Taylor()), Method(FedOpt())]
ROUNDS = 3


def summable(backbone) -> bool:
    try:
        check_summable(backbone)
    except IncompatibleError:
        return False
    return True


SUMMABLE = [backbone for backbone in BACKBONES if summable(backbone)]


def results(count=7, seed=0) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)

    def one(client):
        delta = torch.randn(5, generator=generator)
        return Result(client, 0, 10 + client, {"delta": delta}, torch.randn(2, generator=generator))

    return [one(client) for client in range(count)]


def test_a_part_is_the_weighted_mean_of_its_clients():
    some = results(3)
    total = add_up(0, some, "samples")
    assert total.weight == 10 + 11 + 12
    for of_one, of_all in (
        (lambda r: r.upload["delta"], total.upload["delta"]),
        (lambda r: r.buffers, total.buffers),
    ):
        expected = sum(r.size * of_one(r).double() for r in some) / 33
        torch.testing.assert_close(of_all.double(), expected, rtol=1e-5, atol=1e-6)
    assert add_up(0, some, "clients").weight == 3


def test_clients_belong_to_parts_by_their_numbers():
    groups = by_part(list(reversed(results(7))), 3)
    assert {part: [r.client for r in some] for part, some in groups.items()} == {
        0: [0, 3, 6],
        1: [1, 4],
        2: [2, 5],
    }
    summed = summed_here(results(7), 3, Method())
    assert [each.part for each in summed.sums] == [0, 1, 2]
    assert sum(weight for weight, _ in summed.uploads) == sum(r.size for r in results(7))


@pytest.mark.parametrize("backbone", SUMMABLE, ids=name)
def test_one_part_is_the_usual_sum(backbone, train_for):
    chosen = Method(backbone)
    assert same(train_for(chosen, 2, partial_sums=1), train_for(chosen, 2))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: name(m.backbone))
def test_parts_agree_with_each_other_and_nearly_with_the_usual_sum(method, task, train_for):
    usual, summed = train_for(method, ROUNDS), train_for(method, ROUNDS, partial_sums=2)
    torch.testing.assert_close(summed.params, usual.params, rtol=1e-3, atol=1e-4)
    # Another tree, so other bits.
    assert not torch.equal(summed.params, usual.params)
    assert summed.traffic == usual.traffic
    for kind in (ThreadEngine, ShuffledWorkers):
        with kind(task, 2) as engine:
            assert same(train_for(method, ROUNDS, engine=engine, partial_sums=2), summed)


def with_batch_norm(shape, classes):
    return torch.nn.Sequential(
        torch.nn.Linear(shape[0], 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, classes)
    )


def test_buffers_are_summed_too(data, train_for):
    task = Classification(data, Custom(f"{__name__}:with_batch_norm"))
    usual, summed = (train_for(Method(), 2, task=task, partial_sums=k) for k in (None, 2))
    assert usual.buffers.any()
    torch.testing.assert_close(summed.buffers, usual.buffers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backbone", [Scaffold(), Afl(), FedOpt(backbone=Scaffold())], ids=name)
def test_a_backbone_that_needs_single_uploads_is_refused(backbone, train_for):
    with pytest.raises(
        IncompatibleError, match=r"partial_sums: .* needs the upload of every client"
    ):
        train_for(Method(backbone), 1, partial_sums=2)
    with pytest.raises(IncompatibleError, match="partial_sums"):
        build(Experiment(rounds=1, model=Mlp(hidden=(4,)), method=Method(backbone), partial_sums=2))


def test_a_fingerprint_without_partial_sums_is_as_it_was():
    assert Experiment().fingerprint() != Experiment(partial_sums=4).fingerprint()
    assert Experiment(name="old").fingerprint() == Experiment().fingerprint()

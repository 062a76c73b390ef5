"""Compositions of Distil and Balanced obey the laws on every engine, on Flower and with BatchNorm."""

import pytest
import torch

from chronofed import (
    Balanced,
    BinaryCrossEntropy,
    Classification,
    CoreSet,
    Distil,
    FedReg,
    FedRod,
    Generative,
    Linear,
    Method,
    Private,
)
from chronofed.engines import ThreadEngine
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.world import same
from tests.laws.test_every_engine import with_batch_norm
from tests.laws.test_extensions import after, processes, straight
from tests.laws.test_flower import same as same_but_clients
from tests.laws.test_flower import world

__all__ = ["after", "processes", "straight", "with_batch_norm", "world"]

CORE = CoreSet(6, "herding", 12, by="class")
METHODS = {
    "FLwF-2T": Method(memory=Distil(1.0, 0.5)),
    "EEIL": Method(Balanced(share=0.5), Distil(classes="heads", memory=CORE)),
    "generative": Method(memory=Distil(classes="seen", memory=Generative(4, 2))),
    "FedReg": Method(FedReg(steps=2), Distil(memory=CORE)),
    "FedRoD": Method(FedRod(), Distil(memory=CoreSet(6, "reservoir"))),
}
every = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS, scope="module")


@every
@pytest.mark.some(2)
def test_same_bits_again_resumed_in_any_order_and_on_other_engines(
    method, after, straight, task, processes
):
    whole = straight(method)
    assert same(after(method, 4, start=decode(encode(after(method, 2)))), whole)
    assert same(after(method, engine=ShuffledWorkers(task)), whole)
    with ThreadEngine(task, 2) as threads:
        assert same(after(method, engine=threads), whole)
    assert same(after(method, engine=processes), whole)
    assert not torch.equal(whole.params, after(Method(method.backbone)).params)


@every
def test_flower_ends_with_the_same_bits(method, world, after):
    there = world(method)
    assert same_but_clients(after(method, 3, engine=there.engine), after(method, 3))
    assert set(there.kinds()) == {"joined"}


@every
@pytest.mark.some(2)
def test_batch_norm_has_teachers_with_buffers_of_their_own(method, after, data):
    task = Classification(data, Custom(f"{with_batch_norm.__module__}:with_batch_norm"))
    whole = after(method, 3, task=task)
    half = decode(encode(after(method, 2, task=task)))
    assert same(after(method, 3, task=task, start=half), whole)
    assert not torch.equal(whole.params, after(Method(method.backbone), 3, task=task).params)
    if isinstance(method.memory, Distil):
        items = [item for state in whole.client_states.values() for item in state.items]
        kept = [item.record["teacher_buffers"] for item in items if "teacher" in item.record]
        assert kept
        assert all(torch.isfinite(buffers).all() and buffers.any() for buffers in kept)


@every
def test_private_serves_it(method, after):
    private = Private(method.backbone, noise=0.01)
    assert torch.isfinite(after(Method(private, method.memory, average="clients"), 2).params).all()


def test_the_loss_of_icarl_on_every_engine(after, data):
    """Here classes come back, and their labels no longer count: it runs, and the same everywhere."""
    task = Classification(data, Linear(), loss=BinaryCrossEntropy())
    method = Method(memory=Distil(form="targets", classes="seen", memory=CORE))
    whole = after(method, task=task)
    with ThreadEngine(task, 2) as threads:
        assert same(after(method, task=task, engine=threads), whole)
    assert torch.isfinite(whole.params).all()

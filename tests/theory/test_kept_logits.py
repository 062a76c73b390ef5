"""Outputs that core sets keep (DER++), against the loss written out."""

import pytest
import torch
from torch.nn import functional

from chronofed import CoreSet, Experiment, Method, Moment, Samples, Surrogate, Train
from chronofed.methods.local import ClientLocal
from chronofed.methods.memories import MemoryItem
from chronofed.methods.weighting import Merged
from tests.theory.test_heads import task

TASK = task("double_mlp")
HERE, _ = TASK.initial(1)
BEFORE, _ = TASK.initial(0)
MEMORY = CoreSet(size=3, keep_logits=0.4)


def items():
    """What was kept of two earlier data sets."""
    every, found = TASK.data.train, []
    for key in range(2):
        rows = torch.arange(5) + 5 * key
        draw = torch.Generator().manual_seed(key)
        record = MEMORY.observe(TASK.objective(), BEFORE, every[rows], draw)
        found.append(MemoryItem(key, 0, key, 5, record))
    return tuple(found)


def local_of(memory):
    """A client with six new samples, and the kept ones."""
    past = memory.recall(items(), Merged(), Moment(2, 9, 6))
    samples = TASK.data.train[torch.arange(20, 26)]
    draw = torch.Generator().manual_seed(0)
    return ClientLocal(TASK.objective(), samples, past, Train(batch_size="full"), draw)


def test_outputs_are_those_of_the_model_at_the_end_of_the_round():
    for item in items():
        want = TASK.objective().logits(BEFORE, item.record["x"])
        assert torch.equal(item.record["logits"], want)
    assert "logits" not in CoreSet().observe(
        TASK.objective(), BEFORE, TASK.data.train, torch.Generator()
    )


def test_gradients_are_those_of_the_loss_written_out():
    """The mean squared difference of every replayed sample has its weight, and no other sample has one."""
    local, kept = local_of(MEMORY), items()
    x = torch.cat([local.samples.x, *(k.record["x"] for k in kept)])
    y = torch.cat([local.samples.y, *(k.record["y"] for k in kept)])
    outputs = torch.cat([k.record["logits"] for k in kept])
    weight = local.pool.weight

    def loss(params):
        z = TASK.objective().logits(params, x)
        keep = (z[6:] - outputs).square().mean(1) @ weight[6:]
        return functional.cross_entropy(z, y, reduction="none") @ weight + 0.4 * keep

    gradient, step = local.stochastic_gradient(HERE), 1e-6
    torch.testing.assert_close(local.full_gradient(HERE), gradient)
    draw = torch.Generator().manual_seed(4)
    for _ in range(3):
        v = torch.randn(HERE.shape, generator=draw, dtype=torch.float64)
        slope = (loss(HERE + step * v) - loss(HERE - step * v)) / (2 * step)
        assert float(gradient @ v) == pytest.approx(float(slope), rel=1e-6, abs=1e-8)
    plain = local_of(CoreSet(size=3))
    assert not torch.allclose(plain.stochastic_gradient(HERE), gradient)


def test_without_weight_it_is_the_core_set(train_for):
    one, plain = (
        train_for(Method(memory=m), 4).params
        for m in (CoreSet(size=5, keep_logits=0.0), CoreSet(size=5))
    )
    assert torch.equal(one, plain)
    other = train_for(Method(memory=CoreSet(size=5, keep_logits=0.5)), 4).params
    assert not torch.equal(other, plain)


def test_picks_carry_the_outputs():
    outputs = torch.arange(6.0).view(3, 2)
    samples = Samples(torch.zeros(3, 1), torch.arange(3), outputs=outputs)
    assert torch.equal(samples[torch.tensor([2, 0])].outputs, outputs[[2, 0]])
    pool = Surrogate().pool(Samples(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)))
    assert pool.samples.outputs is None


def test_what_is_not_set_does_not_change_a_fingerprint():
    """Runs from before these settings existed can be resumed."""
    kept = Experiment(method=Method(memory=CoreSet(keep_logits=0.1)))
    assert kept.fingerprint() != Experiment(method=Method(memory=CoreSet())).fingerprint()

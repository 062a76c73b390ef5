"""The objective of a part of a model against differences of its own values, and torch's derivatives."""

import pytest
import torch
from torch.nn import functional

from chronofed import Mlp
from chronofed.core.types import Batch
from chronofed.methods.wrappers.view import ScaledObjective
from chronofed.models.objective import TorchObjective


@pytest.fixture
def world():
    """An objective, factors with zeros among them, offsets, a point and a batch."""
    torch.manual_seed(2)
    objective = TorchObjective(Mlp((4,)).build((3,), 2).double())
    d = objective.flat.size
    scale = torch.rand(d, dtype=torch.float64) * (torch.arange(d) % 4 > 0)
    offset, params = torch.randn(2, d, dtype=torch.float64)
    weight = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    batch = Batch(torch.randn(3, 3, dtype=torch.float64), torch.tensor([0, 1, 1]), weight)
    return objective, scale, offset, params, batch


def slope(function, params):
    """Central differences."""
    steps = 1e-5 * torch.eye(len(params), dtype=torch.float64)
    return torch.stack([(function(params + e) - function(params - e)) / 2e-5 for e in steps])


def test_derivatives_follow_the_chain_rule(world):
    objective, scale, offset, params, batch = world
    part = ScaledObjective(objective, scale, offset)

    def loss(w):
        return batch.weight @ objective.losses(scale * w + offset, batch)

    want = slope(loss, params)
    spans = (slice(0, 12), slice(16, 24))  # the matrices of both layers
    chosen = torch.cat([torch.arange(26)[span] for span in spans])
    torch.testing.assert_close(part.gradient(params, batch), want, rtol=0, atol=1e-8)
    found = part.loss_gradient(params, batch, spans)
    torch.testing.assert_close(found, want[chosen], rtol=0, atol=1e-8)
    assert not want[scale == 0].any()

    alone = slope(lambda w: objective.losses(scale * w + offset, batch), params)  # (d, n)
    first, second = part.gradient_moments(params, batch, spans)
    torch.testing.assert_close(first, want[chosen], rtol=0, atol=1e-8)
    squares = alone.square() @ batch.weight
    torch.testing.assert_close(second, squares[chosen], rtol=0, atol=1e-8)
    torch.testing.assert_close(part.squared_gradients(params, batch, spans), second)

    v = torch.zeros(len(params), dtype=torch.float64)
    v[chosen] = torch.randn(len(chosen), dtype=torch.float64)
    along = (
        part.gradient(params + 1e-5 * v, batch) - part.gradient(params - 1e-5 * v, batch)
    ) / 2e-5
    product = part.hessian_product(params, batch, spans, v[chosen])
    torch.testing.assert_close(product, along[chosen], rtol=0, atol=1e-7)


def test_values_and_distillation_are_those_of_the_point(world):
    objective, scale, offset, params, batch = world
    part, at = ScaledObjective(objective, scale, offset), scale * params + offset
    assert torch.equal(part.logits(params, batch.x), objective.logits(at, batch.x))
    assert torch.equal(part.losses(params, batch), objective.losses(at, batch))
    assert torch.equal(part.features(params, batch.x), objective.features(at, batch.x))
    inputs = part.input_gradient(params, batch.x, batch.y)
    assert torch.equal(inputs, objective.input_gradient(at, batch.x, batch.y))
    teacher = torch.randn(3, 2, dtype=torch.float64)

    def distance(w):
        logits = objective.logits(scale * w + offset, batch.x)
        outputs = functional.softmax(teacher / 2, 1) * functional.log_softmax(logits / 2, 1)
        return -batch.weight @ outputs.sum(1)

    found = part.distilled(params, batch, teacher)
    torch.testing.assert_close(found, slope(distance, params), rtol=0, atol=1e-8)


def test_without_an_offset_what_is_held_is_0(world):
    objective, scale, _, params, _ = world
    assert torch.equal(ScaledObjective(objective, scale).point(params), scale * params)
    assert ScaledObjective(objective, scale).names is not None
    part = ScaledObjective(objective, scale)
    part.buffers = objective.buffers
    assert torch.equal(part.buffers, objective.buffers)

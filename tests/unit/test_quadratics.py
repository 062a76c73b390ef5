"""The world of quadratics in which methods are compared with oracles."""

import pytest
import torch
from torch.autograd.functional import hessian as hessian_of
from torch.autograd.functional import jacobian

from chronofed import CoreSet, FedAvg, Method
from chronofed.core.types import Batch
from tests.helpers.quadratics import QuadraticWorld, apart, models


def test_derivatives_are_those_of_the_loss():
    world = QuadraticWorld([[[([2.0, 1.0], [1.0, 3.0]), ([4.0, 0.5], [0.0, -1.0])]]])
    objective, samples = world.objective(), world.samples(world.positions[0][0])
    batch, w = Batch.mean(samples), torch.tensor([0.7, -1.1], dtype=torch.float64)
    spans = (slice(1, 2),)

    def value(w):
        return (batch.weight * objective.losses(w, batch)).sum()

    gradient, hessian = jacobian(value, w), hessian_of(value, w)
    torch.testing.assert_close(objective.gradient(w, batch), gradient)
    mean, square = objective.gradient_moments(w, batch, spans)
    torch.testing.assert_close(mean, gradient[1:])
    each = jacobian(lambda w: objective.losses(w, batch), w)
    torch.testing.assert_close(square, each.square().mean(0)[1:])
    v = torch.tensor([3.0], dtype=torch.float64)
    torch.testing.assert_close(objective.hessian_product(w, batch, spans, v), hessian[1:, 1] * v)


def test_a_round_by_hand():
    """From 1, one step of 0.1: client 0 goes to 1 - 0.1 (2 - 1), client 1 to 1 - 0.1 (1 - 3); weights 1 : 2."""
    world = QuadraticWorld([[[(2.0, 1.0)]], [[(1.0, 3.0), (1.0, 3.0)]]], start=1.0)
    (snapshot,) = world.train(Method(FedAvg()), 1, steps=1)
    assert snapshot.params.item() == pytest.approx((0.9 + 2 * 1.2) / 3, abs=1e-15)


def test_data_sets_change_and_clients_stay_away():
    world = QuadraticWorld(
        [[[(2.0, 1.0)], [(1.0, 0.0)]], [[(1.0, 3.0)]]], keys=[{0: 1}, {1: 0, 0: 0}]
    )
    assert [{i: v.key for i, v in world.at(t).visits.items()} for t in range(3)] == [
        {0: 1}, {0: 0, 1: 0}, {0: 1},
    ]  # fmt: skip
    last = world.train(Method(memory=CoreSet(5)), 3)[-1]
    assert [(item.key, item.record["rows"].tolist()) for item in last.client_states[0].items] == [
        (0, [0]),
        (1, [1]),
    ]
    assert models([last]).shape == (1, 1)
    assert apart([last], [last]) == 0

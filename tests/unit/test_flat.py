"""Flat parameters against torch's own view of a module."""

import pytest
import torch
from torch import nn

from chronofed.core.flat import Flat


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 36, 4))


def test_reads_all_parameters_in_order(net):
    want = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    flat = Flat(net)
    assert torch.equal(flat.read(), want)
    assert flat.size == len(want)
    assert flat.spans["3.bias"] == slice(len(want) - 4, len(want))
    assert torch.equal(want[flat.spans["0.weight"]].view(3, 1, 3, 3), net[0].weight)


def test_bound_parameters_are_views(net):
    flat = Flat(net)
    vector = torch.zeros(flat.size)
    flat.bind(vector)
    vector += 1.0
    assert all(bool((p == 1).all()) for p in net.parameters())


def test_reading_gives_a_copy(net):
    flat = Flat(net)
    flat.read().zero_()
    assert flat.read().abs().sum() > 0


def test_gradient_is_autograd_of_every_parameter(net):
    x, flat = torch.randn(5, 1, 8, 8), Flat(net)
    loss = net(x).square().mean()
    want = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    assert torch.equal(flat.gradient(net(x).square().mean()), want)


def test_a_parameter_that_is_not_used_has_gradient_zero():
    net = nn.ModuleDict({"used": nn.Linear(2, 2, bias=False), "idle": nn.Linear(3, 3)})
    flat = Flat(net)
    grad = flat.gradient(net["used"](torch.ones(1, 2)).sum())
    assert torch.equal(grad[flat.spans["idle.weight"]], torch.zeros(9))
    assert torch.equal(grad[flat.spans["used.weight"]], torch.ones(4))


def test_frozen_parameters_stay_out():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].requires_grad_(requires_grad=False)
    flat = Flat(net)
    assert flat.size == 3
    assert list(flat.spans) == ["1.weight", "1.bias"]


def test_buffers_are_apart_and_come_back(net):
    flat = Flat(net)
    before = flat.buffers
    assert len(before) == 3 + 3 + 1  # mean, variance, counter
    net(torch.randn(5, 1, 8, 8))
    after = flat.buffers
    assert not torch.equal(before, after)
    flat.buffers = before
    assert torch.equal(flat.buffers, before)
    assert torch.equal(flat.read(), Flat(net).read())


def test_an_averaged_counter_is_rounded(net):
    flat = Flat(net)
    values = flat.buffers
    values[-1] = 2.5
    flat.buffers = values
    assert net[1].num_batches_tracked.dtype == torch.int64
    assert int(net[1].num_batches_tracked) == 2


def test_a_module_without_buffers_has_none():
    flat = Flat(nn.Linear(2, 2))
    assert len(flat.buffers) == 0
    flat.buffers = torch.empty(0)

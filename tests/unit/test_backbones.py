"""Each backbone against its formula, written out by hand; every term has a test that dies without it."""

import pytest
import torch

from chronofed import FedAvg, FedProx
from chronofed.backbones.base import weighted_mean


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_weighted_mean():
    uploads = [(1.0, {"delta": vector(1, 2)}), (3.0, {"delta": vector(5, -2)})]
    assert weighted_mean(uploads, "delta").tolist() == [4.0, -1.0]


def test_mean_of_one_is_exact():
    value = vector(0.1, 1 / 3)
    assert torch.equal(weighted_mean([(7.0, {"d": value})], "d"), value)


@pytest.mark.parametrize("backbone", [FedAvg(server_lr=0.5), FedProx(mu=0.2, server_lr=0.5)])
def test_server_step(backbone):
    """w + 0.5 * (1/4 * 4 + 3/4 * 8) = 1 + 3.5"""
    server = backbone.init_server(vector(1.0), clients=2)
    uploads = [(1.0, {"delta": vector(4.0)}), (3.0, {"delta": vector(8.0)})]
    assert backbone.aggregate(server, uploads)["params"].tolist() == [4.5]
    assert server["params"].tolist() == [1.0]  # the old state is left alone


def test_upload_is_the_update():
    upload, state = FedAvg().finish(vector(3.0), {"params": vector(1.0)}, {}, None)
    assert upload["delta"].tolist() == [2.0]
    assert state == {}


def test_server_state_is_a_copy():
    params = vector(1.0)
    server = FedAvg().init_server(params, clients=2)
    params.zero_()
    assert server["params"].tolist() == [1.0]


def test_fedavg_follows_the_gradient():
    grad = vector(1.0, -2.0)
    assert FedAvg().direction(grad, vector(9, 9), {"params": vector(0, 0)}, {}).tolist() == [1, -2]


def test_fedprox_direction_is_the_gradient_of_the_proximal_objective():
    generator = torch.Generator().manual_seed(0)
    w_t, w = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    v = w.clone().requires_grad_()
    (0.5 * 0.3 * (v - w_t).square().sum()).backward()
    step = FedProx(0.3).direction(torch.zeros(7).double(), w, {"params": w_t}, {})
    torch.testing.assert_close(step, v.grad, rtol=0, atol=1e-15)


def test_neither_keeps_state_on_the_client():
    for backbone in (FedAvg(), FedProx()):
        assert not backbone.stateful
        assert backbone.init_client(vector(1.0)) == {}
        assert backbone.reference


def test_defaults_are_the_papers():
    assert FedProx().mu == 0.1
    assert FedAvg().server_lr == 1.0
    with pytest.raises(ValueError, match="server_lr"):
        FedAvg(server_lr=0.0)

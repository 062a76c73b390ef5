"""The additive decomposition against its definition, in float64."""

import pytest
import torch

from chronofed import Additive, Backbone, FedAvg, FedProx, Method
from chronofed.core.errors import IncompatibleError
from chronofed.methods.wrappers import Private
from tests.helpers.quadratics import QuadraticWorld, apart

PARTS = [[[([2.0, 1.0], [2.0, 1.0])]], [[([1.0, 0.5], [3.0, 1.0])]], [[([1.0, 3.0], [-1.0, 2.0])]]]
LR, STEPS = 0.1, 3


class Still(Backbone, tag="test-still"):
    """A backbone whose model never moves."""

    def direction(self, grad, params, server, client):
        return grad.mul_(0)


def world(start=0.5, keys=None):
    return QuadraticWorld(PARTS, keys, start=start)


def trained(backbone, rounds=4, there=None):
    return (there or world()).train(Method(backbone), rounds, LR, STEPS)


def soft(v, bound):
    return v.sign() * (v.abs() - bound).clamp(min=0)


def written_out(rounds, sparsity, transfer, mask):
    there, mask = world(), torch.tensor(mask, dtype=torch.float64)
    b = torch.full((2,), 0.5, dtype=torch.float64)
    own = [torch.zeros(2, dtype=torch.float64) for _ in PARTS]
    alpha = [torch.zeros(2, dtype=torch.float64) for _ in PARTS]
    for t in range(rounds):
        sent, ends = [a.clone() for a in own], []
        for i in range(3):
            h, c = there.mean(i)
            others = sum(sent[j] for j in range(3) if j != i) / 2 if t else torch.zeros(2).double()
            y = b.clone()
            for _ in range(STEPS):
                g = h * (y + own[i] + alpha[i] * others) - c
                own[i] = mask * soft(own[i] - LR * g, LR * sparsity)
                alpha[i] = alpha[i] - LR * transfer * g * others
                y = y - LR * g
            ends.append((y, y + own[i] + alpha[i] * others))
        b = sum(y for y, _ in ends) / 3
        yield b, own, [theta for _, theta in ends]


@pytest.mark.parametrize(
    ("transfer", "layers", "mask"), [(0.7, ("*",), (1.0, 1.0)), (0.0, ("w1",), (0.0, 1.0))]
)
def test_written_out(transfer, layers, mask):
    """In a quadratic world every parameter is a tensor of its own."""
    ends = trained(Additive(FedAvg(), 0.2, transfer, layers))
    for snapshot, (b, own, theta) in zip(ends, written_out(4, 0.2, transfer, mask), strict=True):
        torch.testing.assert_close(snapshot.params, b, rtol=0, atol=1e-14)
        torch.testing.assert_close(
            snapshot.server["additive_parts"], torch.stack(own), rtol=0, atol=1e-14
        )
        for i, personal in enumerate(theta):
            kept = snapshot.client_states[i].backbone_state["personal"]
            torch.testing.assert_close(kept, personal, rtol=0, atol=1e-14)


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(0.3)], ids=repr)
def test_a_large_penalty_is_the_inner_backbone(inner):
    assert apart(trained(Additive(inner, sparsity=1e12)), trained(inner)) == 0
    assert apart(trained(Additive(inner, sparsity=0.1)), trained(inner)) > 0.01


def test_a_shared_model_that_stays_at_0_is_local_training():
    ends = trained(Additive(Still(), sparsity=0.0, transfer=0.0), 4, world(start=0.0))
    assert ends[-1].params.tolist() == [0.0, 0.0]
    for i in range(3):
        alone = QuadraticWorld([PARTS[i]], start=0.0).train(Method(), 4, LR, STEPS)[-1].params
        kept = ends[-1].client_states[i].backbone_state["personal"]
        torch.testing.assert_close(kept, alone, rtol=0, atol=1e-15)


def test_the_mean_of_those_that_sent_something():
    """Client 2 comes in the second round; before, client 0 hears of client 1 alone."""
    backbone = Additive()
    server = backbone.init_server(torch.zeros(2), 3)
    assert backbone.address(backbone.broadcast(server), 0)["others"].tolist() == [0.0, 0.0]
    parts = torch.tensor([[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]])
    for known, wanted in (([1, 1, 0], [3.0, 6.0]), ([1, 1, 1], [6.0, 7.5])):
        some = {"additive_known": torch.tensor(known).double(), "additive_parts": parts}
        sent = backbone.address(backbone.broadcast({**server, **some}), 0)
        assert sent["others"].tolist() == wanted
        assert sent.keys() == {"params", "others"}


def test_clients_may_join():
    backbone = Additive()
    server = backbone.enrol(backbone.init_server(torch.ones(2), 2), 4)
    assert server["additive_parts"].shape == (4, 2)
    assert len(server["additive_known"]) == 4
    assert backbone.enrol(server, 4)["additive_parts"].shape == (4, 2)


def test_private_hides_who_sent_what():
    private = Private(Additive(), bounds={"adaptive": 1.0})
    with pytest.raises(IncompatibleError, match="which Private hides"):
        world().train(Method(private, average="clients"), 1)


def test_what_travels():
    traffic = trained(Additive(), 1)[-1].traffic
    assert (traffic.up_bytes, traffic.down_bytes) == (3 * 32, 3 * 32)

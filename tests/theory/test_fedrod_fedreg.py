"""FedRoD and FedReg against identities and themselves written out, in float64."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from chronofed import (
    Classification,
    CoreSet,
    Deletion,
    FedAvg,
    FedReg,
    FedRod,
    Linear,
    Method,
    Regression,
    Subsets,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.methods.backbones.fedreg import _Made, along
from chronofed.methods.local import ClientLocal
from chronofed.methods.surrogate import Surrogate
from chronofed.models.zoo import Custom
from tests.helpers.incremental import incremental, rings
from tests.helpers.world import slopes

LR, STEPS = 0.3, 3
DATA = rings(4, 48)
FULL = Train(lr=LR, steps=STEPS, batch_size="full")
BOTH = incremental(DATA, (0, 1, 2, 3))
SOME = incremental(DATA, (0, 1, 2), (3, 1), length=2)


def double_linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes).double()


def double_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 5), nn.Tanh(), nn.Linear(5, classes)).double()


LINEAR = Classification(DATA, Custom(f"{__name__}:double_linear"))
NETWORK = Classification(DATA, Custom(f"{__name__}:double_mlp"))


def trained(backbone, rounds=3, task=NETWORK, world=BOTH, train=FULL, **others):
    return list(run(Method(backbone, **others), world, task, rounds=rounds, train=train))


def near(one, other, atol=2e-15):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


# --- FedRoD


def network(w, x):
    """The features and the logits of the network."""
    hidden = torch.tanh(functional.linear(x, w[:10].view(5, 2), w[10:15]))
    return hidden, functional.linear(hidden, w[15:35].view(4, 5), w[35:])


def test_of_equal_classes_the_balanced_softmax_is_the_softmax():
    """The offset is a constant, log(1/4)."""
    for one, other in zip(trained(FedRod()), trained(FedAvg()), strict=True):
        near(one.params, other.params)


def test_fedrod_written_out():
    """Unequal classes, one of them absent, and a personal head on detached features that goes on next round."""
    got = trained(FedRod(), 4, world=SOME)
    w, heads = NETWORK.initial(0)[0], torch.zeros(2, 24, dtype=torch.float64)
    for t in range(4):
        ends, sizes = [], []
        for i, visit in SOME.at(t).visits.items():
            x, y = (v[torch.from_numpy(visit.indices)] for v in (DATA.train.x, DATA.train.y))
            counts, v, head = y.bincount(minlength=4).double(), w.clone(), heads[i].clone()
            for _ in range(STEPS):
                u = v.clone().requires_grad_()
                loss = functional.cross_entropy(network(u, x)[1] + counts.log(), y)
                v = v - LR * torch.autograd.grad(loss, u)[0]
            features, generic = (part.detach() for part in network(v, x))
            for _ in range(STEPS):
                u = head.clone().requires_grad_()
                own = functional.linear(features, u[:20].view(4, 5), u[20:])
                loss = functional.cross_entropy(generic + own, y)
                head = head - LR * torch.autograd.grad(loss, u)[0]
            heads[i] = head
            state = got[t].client_states[i].backbone_state
            near(state["head"], head)
            personal = v.clone()
            personal[15:] += head
            near(state["personal"], personal)
            ends.append(v)
            sizes.append(len(y))
        w = sum(n * v for n, v in zip(sizes, ends, strict=True)) / sum(sizes)
        near(got[t].params, w)


def test_rows_of_absent_classes_stay():
    """Class 3 comes only in round 2; without the offset it would be pushed down."""
    first = NETWORK.initial(0)[0]
    last = trained(FedRod(), 2, world=SOME)[-1].params
    assert torch.equal(last[30:35], first[30:35])
    assert not torch.equal(trained(FedAvg(), 2, world=SOME)[-1].params[30:35], first[30:35])


def test_replayed_samples_count_in_the_shares():
    """Shares of a pool by hand; and a memory changes them."""
    local = ClientLocal(
        NETWORK.objective(),
        DATA.train[DATA.train.y < 2],
        Surrogate(),
        FULL,
        torch.Generator(),
    )
    offset = FedRod()._offset(local)
    np.testing.assert_allclose(offset.exp().numpy(), [0.5, 0.5, 0.0, 0.0])
    kept = trained(FedRod(), 3, world=SOME, memory=CoreSet(99))[-1]
    assert not torch.equal(kept.params, trained(FedRod(), 3, world=SOME)[-1].params)


def test_a_deleted_sample_takes_the_personal_head_with_it():
    world, gone = SOME, [Deletion(round=2, rows=(0,))]
    assert 0 in world.at(0).visits[0].indices
    last = list(run(Method(FedRod()), world, NETWORK, rounds=3, train=FULL, deletions=gone))[-1]
    sources = [last.client_states[i].backbone_state["sources"].tolist() for i in (0, 1)]
    assert sources[0] == sorted(world.at(2).visits[0].indices)
    assert sources[1] == sorted({*world.at(0).visits[1].indices, *world.at(2).visits[1].indices})


def test_the_head_has_a_name():
    near(trained(FedRod("2"))[-1].params, trained(FedRod())[-1].params, 0)
    with pytest.raises(SpecError, match=r"^method\.backbone\.head: .*has 0\.weight, 2\.weight"):
        trained(FedRod("fc"))


def test_a_regression_has_no_classes_to_balance():
    data = slopes()
    task, world = Regression(data, Linear()), Subsets(clients=2, subsets=3).on(data, seed=0)
    one, other = (trained(b, 3, task, world)[-1] for b in (FedRod(), FedAvg()))
    assert torch.equal(one.params, other.params)
    assert "personal" in one.client_states[0].backbone_state


# --- FedReg


def linear(w, x):
    return functional.linear(x, w[:8].view(4, 2), w[8:])


def climbed(w, x, y, length, steps):
    low, high = x.min(), x.max()
    for _ in range(steps):
        u = x.clone().requires_grad_()
        loss = functional.cross_entropy(linear(w, u), y, reduction="sum")
        x = x + (high - low) * length * torch.autograd.grad(loss, u)[0].sign()
        x = x.clamp(low, high)
    return x


def fedreg(rounds, mix, steps, pseudo, perturbed):
    """The algorithm, with torch alone; yields models, and the products that its corrections leave."""
    w, products = LINEAR.initial(0)[0], []
    for t in range(rounds):
        ends = []
        for visit in SOME.at(t).visits.values():
            x, y = (v[torch.from_numpy(visit.indices)] for v in (DATA.train.x, DATA.train.y))
            xs, xp = (climbed(w, x, y, length, steps) for length in (pseudo, perturbed))
            soft, v = linear(w, xs).softmax(1), w.clone()

            def slope(at, loss):
                u = at.clone().requires_grad_()
                return torch.autograd.grad(loss(u), u)[0]

            for _ in range(STEPS):
                v = v - LR * slope(
                    mix * v + (1 - mix) * w,
                    lambda u, x=x, y=y: functional.cross_entropy(linear(u, x), y),
                )
                at = (v + w) / 2
                g2 = slope(at, lambda u, x=xs, q=soft: functional.cross_entropy(linear(u, x), q))
                g3 = slope(at, lambda u, x=xp, y=y: functional.cross_entropy(linear(u, x), y))
                a = max(0.0, float((v - w) @ g2 / (g2 @ g2)))
                b = max(0.0, float((v - w - a * g2) @ g3 / (g3 @ g3)))
                products.append(
                    (a, b, float((v - w - a * g2) @ g2), float((v - w - a * g2 - b * g3) @ g3))
                )
                v = v - a * g2 - b * g3
            ends.append((len(y), v))
        w = sum(n * v for n, v in ends) / sum(n for n, _ in ends)
    return w, products


@pytest.mark.parametrize(
    "settings",
    [{"mix": 0.4, "steps": 3, "pseudo": 0.3, "perturbed": 0.2}, {"steps": 2, "pseudo": 0.05}],
)
def test_fedreg_written_out(settings):
    backbone = FedReg(**settings)
    want, products = fedreg(4, backbone.mix, backbone.steps, backbone.pseudo, backbone.perturbed)
    near(trained(backbone, 4, LINEAR, SOME)[-1].params, want, 1e-14)
    # Both corrections are at work, and leave what they should.
    assert any(a > 0 for a, _, _, _ in products)
    assert max(max(second, third) for _, _, second, third in products) < 1e-14


def test_no_step_is_along_a_gradient_of_made_samples(monkeypatch):
    """With gradients of any direction; a step that is along neither is the plain one."""
    samples, draws = DATA.train[torch.arange(20)], torch.Generator().manual_seed(0)
    seen = []

    def drawn(self, params, local):
        seen.append(torch.randn(2, len(params), generator=draws, dtype=torch.float64))
        return seen[-1]

    monkeypatch.setattr(_Made, "gradients", drawn)
    local = ClientLocal(LINEAR.objective(), samples, Surrogate(), FULL, torch.Generator())
    w, plain = LINEAR.initial(0)[0], 0
    for _ in range(40):
        v = w + torch.randn(len(w), generator=draws, dtype=torch.float64)
        direction = FedReg(steps=1).gradient(v, {"params": w}, local)
        uncorrected = FedReg(steps=0).gradient(v, {"params": w}, local)
        g2, g3 = seen[-1]
        first = v - LR * uncorrected - w
        first = first - g2 * (first @ g2 / (g2 @ g2)).clamp(min=0)
        last = v - LR * direction - w
        assert first @ g2 < 1e-14
        assert last @ g3 < 1e-14
        if first @ g3 <= 0:
            near(last, first)
        if (v - LR * uncorrected - w) @ g2 <= 0 and first @ g3 <= 0:
            assert torch.equal(direction, uncorrected)
            plain += 1
    assert 0 < plain < 40


def test_the_second_correction_matters():
    """Perturbed samples far away, where their true labels pull the other way."""
    one, other = (
        FedReg(steps=1, pseudo=0.01, perturbed=0.9),
        FedReg(steps=1, pseudo=0.01, perturbed=0.0),
    )
    _, products = fedreg(4, 0.5, 1, 0.01, 0.9)
    assert any(b > 0 for _, b, _, _ in products)
    assert not torch.equal(*(trained(b, 4, LINEAR, SOME)[-1].params for b in (one, other)))


def test_without_made_samples_it_is_a_step_at_the_mixed_point_and_with_mix_one_fedavg():
    found = trained(FedReg(1.0, 0), 3, LINEAR, SOME)[-1].params
    assert torch.equal(found, trained(FedAvg(), 3, LINEAR, SOME)[-1].params)
    want, _ = fedreg(3, 0.3, 0, 0.1, 0.1)
    mixed = trained(FedReg(0.3, 0), 3, LINEAR, SOME)[-1].params
    plain = LINEAR.initial(0)[0]
    for t in range(3):
        ends = []
        for visit in SOME.at(t).visits.values():
            x, y = (v[torch.from_numpy(visit.indices)] for v in (DATA.train.x, DATA.train.y))
            v = plain.clone()
            for _ in range(STEPS):
                u = (0.3 * v + 0.7 * plain).requires_grad_()
                v = v - LR * torch.autograd.grad(functional.cross_entropy(linear(u, x), y), u)[0]
            ends.append((len(y), v))
        plain = sum(n * v for n, v in ends) / sum(n for n, _ in ends)
    near(mixed, plain)
    assert not torch.equal(want, plain)


@pytest.mark.parametrize("size", [1.0, 1e-25])
def test_a_correction_does_not_depend_on_the_size_of_the_gradient(size):
    moved, gradient = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])
    near(along(moved, size * gradient), torch.tensor([2.0, 2.0]), 1e-6)
    assert not along(-moved, size * gradient).any()
    assert not along(moved, 0 * gradient).any()


def test_made_samples_are_made_once_a_round(monkeypatch):
    calls = []
    model = type(LINEAR.objective())
    whole = model.input_gradient

    def counted(self, params, x, y):
        calls.append(len(x))
        return whole(self, params, x, y)

    monkeypatch.setattr(model, "input_gradient", counted)
    train = Train(lr=0.1, steps=20, batch_size=4)
    trained(FedReg(steps=3), 1, LINEAR, BOTH, train)
    held = sum(len(visit.indices) for visit in BOTH.at(0).visits.values())
    assert sum(calls) == 2 * 3 * held


def test_only_plain_steps_suit_fedreg():
    for wrong in ({"momentum": 0.5}, {"weight_decay": 0.1}, {"optimizer": "adamw"}):
        with pytest.raises(IncompatibleError, match=rf"^train\.{next(iter(wrong))}: FedReg needs"):
            trained(FedReg(), 1, train=Train(**wrong))

"""FedRobust against FedAvg, a fixed point and itself written out, in float64."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    Deletion,
    FedAvg,
    FedRobust,
    Method,
    Samples,
    Train,
    run,
)
from chronofed.core.errors import SpecError
from chronofed.methods.local import ClientLocal
from chronofed.methods.surrogate import Surrogate
from chronofed.models.zoo import Custom
from chronofed.scenarios.base import Plan, Visit
from tests.helpers.quadratics import QuadraticObjective
from tests.helpers.world import blobs

LR, ASCENT, PENALTY, STEPS = 0.3, 0.2, 0.4, 3
DATA = blobs(dtype=torch.float64)
FULL = Train(lr=LR, steps=STEPS, batch_size="full")
FORMS = ("diagonal", "full")
every_form = pytest.mark.parametrize("form", FORMS)


def double_linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes).double()


TASK = Classification(DATA, Custom(f"{__name__}:double_linear"))


class World:
    """Two clients with 12 and 20 samples, the same in every round."""

    clients, persistent, rounds = 2, True, None
    rows = (np.arange(12), np.arange(12, 32))

    def at(self, t):
        return Plan(t, {i: Visit(rows, 0) for i, rows in enumerate(self.rows)})


def trained(backbone, rounds=3, train=FULL, task=TASK, world=None, **others):
    method = Method(backbone, **{n: others.pop(n) for n in ("memory",) if n in others})
    return list(run(method, world or World(), task, rounds=rounds, train=train, **others))


@every_form
@pytest.mark.parametrize("memory", [None, CoreSet(size=5)], ids=["none", "core-set"])
def test_a_large_penalty_is_fedavg_bit_for_bit(form, memory):
    train = Train(lr=LR, batch_size=5, epochs=2, clip_norm=1.0)
    memory = {} if memory is None else {"memory": memory}
    one = trained(FedRobust(penalty=1e30, form=form), train=train, **memory)
    other = trained(FedAvg(), train=train, **memory)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.params, b.params)


class LinearLoss(QuadraticObjective):
    """The loss w'x, whose gradient in x is w."""

    def encode(self, x):
        return x

    def gradient(self, params, batch):
        return batch.weight @ batch.x

    def input_gradient(self, params, x, y):
        return params.expand_as(x)


@every_form
def test_of_a_linear_loss_the_adversary_is_the_slope_over_twice_the_penalty(form):
    """And its matrix mean u x' / (2 lambda), of which the diagonal form has the diagonal."""
    x = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    samples = Samples(x, torch.zeros(2, dtype=torch.int64))
    u = torch.tensor([0.3, -0.7, 0.1], dtype=torch.float64)
    local = ClientLocal(LinearLoss(3), samples, Surrogate(), FULL, torch.Generator())
    backbone, server = FedRobust(penalty=PENALTY, ascent_lr=0.5, form=form), {"params": u}
    client = backbone.init_client(u)
    backbone.start(server, client, local)
    for _ in range(200):
        backbone.gradient(u, server, local)
    _, state = backbone.finish(u, server, client, local)
    matrix = torch.outer(u, x.mean(0)) / (2 * PENALTY)
    want = matrix if form == "full" else matrix.diagonal()
    torch.testing.assert_close(state["shift"], u / (2 * PENALTY), rtol=0, atol=1e-15)
    torch.testing.assert_close(state["scale"], want, rtol=0, atol=1e-15)


@every_form
def test_two_rounds_written_out(form):
    """Model and adversary step at the same time; the adversary goes on in the next round."""
    got = trained(FedRobust(penalty=PENALTY, ascent_lr=ASCENT, form=form), 2)
    w = TASK.initial(0)[0]
    kept = [(torch.zeros(5, 5).double(), torch.zeros(5).double()) for _ in World.rows]
    for t in range(2):
        ends = []
        for i, rows in enumerate(World.rows):
            x, y = DATA.train.x[rows], DATA.train.y[rows]
            v, (scale, shift) = w.clone(), kept[i]
            for _ in range(STEPS):
                leaves = [p.clone().requires_grad_() for p in (v, scale, shift)]
                u, a, d = leaves
                moved = x + x @ a.T + d
                logits = functional.linear(moved, u[:15].view(3, 5), u[15:])
                grads = torch.autograd.grad(functional.cross_entropy(logits, y), leaves)
                slope = grads[1] if form == "full" else torch.diag(grads[1].diagonal())
                v = v - LR * grads[0]
                scale = (scale + ASCENT * slope) / (1 + 2 * ASCENT * PENALTY)
                shift = (shift + ASCENT * grads[2]) / (1 + 2 * ASCENT * PENALTY)
            kept[i] = scale, shift
            ends.append(v)
            state = got[t].client_states[i].backbone_state
            torch.testing.assert_close(state["shift"], shift, rtol=0, atol=1e-14)
            want = scale if form == "full" else scale.diagonal()
            torch.testing.assert_close(state["scale"], want, rtol=0, atol=1e-14)
        w = (12 * ends[0] + 20 * ends[1]) / 32
        torch.testing.assert_close(got[t].params, w, rtol=0, atol=1e-14)


def test_an_adversary_made_of_a_deleted_row_is_dropped():
    gone = [Deletion(round=2, rows=(0,))]
    last = trained(FedRobust(), 3, deletions=gone)[-1].client_states
    alone = trained(FedRobust(), 3)[-1].client_states
    assert 0 not in last[0].backbone_state["sources"]
    assert last[0].backbone_state["shift"].norm() < alone[0].backbone_state["shift"].norm()
    assert last[1].backbone_state["sources"].tolist() == World.rows[1].tolist()


def pictures(features):
    x = torch.randn(32, features, generator=torch.Generator().manual_seed(0)).double()
    samples = Samples(x, (x[:, 0] > 0).long())
    data = Dataset("wide", samples, samples, ("a", "b"))
    return Classification(data, Custom(f"{__name__}:double_linear"))


def test_a_full_matrix_has_at_most_1000_features():
    trained(FedRobust(form="full"), 1, task=pictures(1000))
    trained(FedRobust(), 1, task=pictures(1001))
    with pytest.raises(
        SpecError, match=r"^method\.backbone\.form: full .* 1,001 features .* use diagonal"
    ):
        trained(FedRobust(form="full"), 1, task=pictures(1001))


# --- affine shifts


class Halves(World):
    rows = (np.arange(50), np.arange(50, 100))


def overlapping(seed):
    """Two classes that overlap: a strong feature and nine weak ones."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=1100)
    x = np.array([1.0, *[0.3] * 9]) * (2 * y - 1)[:, None] + rng.normal(size=(1100, 10))
    every = Samples(torch.from_numpy(x), torch.from_numpy(y))
    parts = every[torch.arange(100)], every[torch.arange(100, 1100)]
    return Classification(
        Dataset("overlapping", *parts, ("a", "b")), Custom(f"{__name__}:double_linear")
    )


def attacked(task, w, penalty):
    """Loss and accuracy on test samples under the affine shift that an adversary finds for this model."""
    test, weights, bias = task.data.test, w[:20].view(2, 10), w[20:]
    shift = torch.zeros(2, 10, dtype=torch.float64)
    for _ in range(300):
        leaf = shift.clone().requires_grad_()
        logits = functional.linear(test.x * (1 + leaf[0]) + leaf[1], weights, bias)
        (slope,) = torch.autograd.grad(functional.cross_entropy(logits, test.y), leaf)
        shift = (shift + 0.5 * slope) / (1 + penalty)
    logits = functional.linear(test.x * (1 + shift[0]) + shift[1], weights, bias)
    right = (logits.argmax(1) == test.y).double().mean()
    return float(functional.cross_entropy(logits, test.y)), float(right)


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_it_holds_under_affine_shifts_that_break_fedavg(seed):
    """Under an adversary with three times the penalty of training; without one it loses little."""
    task = overlapping(seed)
    plain, robust = (
        trained(b, 60, task=task, world=Halves())[-1].params
        for b in (FedAvg(), FedRobust(penalty=0.1, ascent_lr=0.5))
    )
    (loss, right), (robust_loss, robust_right) = (attacked(task, w, 0.3) for w in (plain, robust))
    assert robust_loss < 0.5 * loss
    assert robust_right > right + 0.1
    assert attacked(task, robust, 1e9)[1] > attacked(task, plain, 1e9)[1] - 0.05

"""Losses by hand, and every derivative of an objective against autograd in double precision."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from chronofed import (
    Absolute,
    Classification,
    CrossEntropy,
    Exact,
    Experiment,
    Fisher,
    Huber,
    Hutchinson,
    Linear,
    Loss,
    Mlp,
    Quantile,
    Regression,
    Squared,
)
from chronofed.core.errors import SpecError, UserCodeError
from chronofed.core.spec_io import from_table, to_table
from chronofed.core.types import Batch, Samples
from chronofed.flower.messages import method_fingerprint
from chronofed.methods.memories.curvature import MeanLoss
from chronofed.models.losses import WeightedCrossEntropy
from chronofed.models.objective import TorchObjective
from chronofed.runs.built import build
from chronofed.runs.rehearsal import rehearse
from tests.helpers.methods import name
from tests.helpers.world import blobs, slopes

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NUMBERS = [Squared(), Absolute(), Huber(0.5), Quantile(0.9)]


class Fourth(Loss):
    """A loss of the user's own, without a signal."""

    def __call__(self, outputs, targets):
        return (outputs[:, 0] - targets) ** 4


@pytest.mark.parametrize(
    ("loss", "values", "slopes"),
    [
        (Squared(), [2.0, 0.0, 0.125], [2.0, 0.0, -0.5]),
        (Absolute(), [2.0, 0.0, 0.5], [1.0, 0.0, -1.0]),
        (Huber(1.0), [1.5, 0.0, 0.125], [1.0, 0.0, -0.5]),
        (Huber(0.25), [0.25 * 1.875, 0.0, 0.25 * 0.375], [0.25, 0.0, -0.25]),
        (Quantile(0.9), [0.2, 0.0, 0.45], [0.1, 0.0, -0.9]),
    ],
    ids=name,
)
def test_losses_of_numbers_by_hand(loss, values, slopes):
    """Residuals 2, 0 and -1/2."""
    outputs, y = torch.tensor([[3.0], [1.0], [0.5]]).double(), torch.ones(3).double()
    torch.testing.assert_close(loss(outputs, y), torch.tensor(values, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(
        loss.signal(outputs, y)[:, 0], torch.tensor(slopes, dtype=torch.float64), **EXACT
    )
    torch.testing.assert_close(loss.signal(outputs, y), Loss.signal(loss, outputs, y), **EXACT)
    assert loss.total(outputs, y).item() == pytest.approx(sum(values))


def test_class_weights_by_hand():
    """Two equal logits: the cross-entropy is log 2 and the signal plus or minus one half."""
    loss = CrossEntropy({"b": 3.0}).of_class_names(("a", "b"))
    outputs, y = torch.zeros(2, 2).double(), torch.tensor([0, 1])
    want = torch.tensor([1.0, 3.0]).double()
    torch.testing.assert_close(loss(outputs, y), want * math.log(2), **EXACT)
    signal = torch.tensor([[-0.5, 0.5], [1.5, -1.5]]).double()
    torch.testing.assert_close(loss.signal(outputs, y), signal, **EXACT)
    torch.testing.assert_close(Loss.signal(loss, outputs, y), signal, **EXACT)


def test_the_default_is_plain_cross_entropy():
    assert CrossEntropy().of_class_names(("a", "b")) == CrossEntropy()
    assert Classification(blobs()).objective().loss == CrossEntropy()
    assert Regression(slopes()).objective().loss == Squared()
    assert TorchObjective(nn.Linear(2, 2)).loss == CrossEntropy()


def odd(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A model that the quick moments do not know."""
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Tanh(), nn.Linear(4, outputs))


class World:
    """A model in double precision, samples, and all derivatives by autograd alone."""

    def __init__(self, build, loss, outputs):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.module = build((5,), outputs).double()
        self.loss, self.objective = loss, TorchObjective(self.module, loss=loss)
        self.params = self.objective.flat.read()
        x = torch.randn(20, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        y = x.sum(1) if outputs == 1 else torch.arange(20) % outputs
        self.samples = Samples(x, y)

    def losses(self, params, x, y):
        parts = {
            n: params[span].view(self.module.get_parameter(n).shape)
            for n, span in self.objective.names.items()
        }
        return self.loss(functional_call(self.module.eval(), parts, (x,)), y)

    def rows(self):
        """One gradient a sample."""
        of = lambda w: self.losses(w, self.samples.x, self.samples.y)  # noqa: E731
        return torch.autograd.functional.jacobian(of, self.params)


WEIGHTED = WeightedCrossEntropy((2.0, 0.5, 1.0))
CASES = [
    pytest.param(build, loss, outputs, id=f"{label}-{name(loss)}")
    for label, build in (("linear", Linear().build), ("mlp", Mlp((4,)).build), ("odd", odd))
    for loss, outputs in [*((loss, 1) for loss in (*NUMBERS, Fourth())), (WEIGHTED, 3)]
]


@pytest.mark.parametrize(("build", "loss", "outputs"), CASES)
def test_every_derivative_is_of_the_loss(build, loss, outputs):
    """The quick moments, those of any model, and the last layer alone."""
    world = World(build, loss, outputs)
    one, w, batch = world.objective, world.params, Batch.mean(world.samples)
    rows, everything = world.rows(), (slice(0, len(w)),)
    first, second = one.gradient_moments(w, batch, everything)
    torch.testing.assert_close(first, rows.mean(0), **EXACT)
    torch.testing.assert_close(second, rows.square().mean(0), **EXACT)
    torch.testing.assert_close(one.gradient(w, batch), rows.mean(0), **EXACT)
    torch.testing.assert_close(one.loss_gradient(w, batch, everything), rows.mean(0), **EXACT)
    last = list(one.names.values())[-2:]
    spans = (slice(last[0].start, last[1].stop),)
    for got, want in zip(one.gradient_moments(w, batch, spans), (rows, rows.square()), strict=True):
        torch.testing.assert_close(got, want.mean(0)[spans[0]], **EXACT)

    def mean(params):
        return world.losses(params, world.samples.x, world.samples.y).mean()

    v = torch.linspace(-1, 1, len(w)).double()
    hessian = torch.autograd.functional.hessian(mean, w)
    torch.testing.assert_close(one.hessian_product(w, batch, everything, v), hessian @ v, **EXACT)
    x = world.samples.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(world.losses(w, x, world.samples.y).sum(), x)
    found = one.input_gradient(w, world.samples.x, world.samples.y)
    torch.testing.assert_close(found, slope, **EXACT)


def test_the_fisher_of_numbers():
    """Linear least squares: the Hessian is the true Fisher J'J; the empirical one has squared residuals."""
    world = World(Linear().build, Squared(), 1)
    a = torch.cat([world.samples.x, torch.ones(20, 1).double()], 1)
    residuals = a @ world.params - world.samples.y
    spans = (slice(0, 6),)
    loss = MeanLoss(world.objective, world.params, world.samples, spans)
    generator = torch.Generator().manual_seed(0)
    _, exact = Exact().expand(loss, generator)
    _, empirical = Fisher().expand(loss, generator)
    torch.testing.assert_close(exact, a.square().mean(0), **EXACT)
    torch.testing.assert_close(empirical, (residuals[:, None] * a).square().mean(0), **EXACT)
    _, noisy = Hutchinson(probes=200).expand(loss, generator)
    torch.testing.assert_close(noisy, exact, rtol=0, atol=0.3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Regression(slopes(), loss=CrossEntropy()),
            "loss: cross-entropy is not for numbers, which the target has; try squared",
        ),
        (
            lambda: Classification(blobs(), loss=Huber()),
            "loss: huber is not for classes, which the target has; try cross-entropy",
        ),
        (
            lambda: Classification(blobs(), loss=CrossEntropy({"d": 2.0})),
            "no class 'd'; the classes are a, b, c",
        ),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(make, message):
    with pytest.raises(SpecError, match=message):
        make()


def test_settings_are_checked_and_written_back():
    table = {"loss": {"kind": "huber", "delta": 0.5}}
    experiment = from_table(table, Experiment)
    assert experiment.loss == Huber(0.5)
    assert to_table(experiment)["loss"] == table["loss"]
    assert method_fingerprint(experiment) != method_fingerprint(Experiment())
    for bad in (
        {"kind": "quantile", "q": 1.0},
        {"kind": "huber", "delta": 0.0},
        {"kind": "hubber"},
    ):
        with pytest.raises(SpecError, match=r"^loss"):
            from_table({"loss": bad}, Experiment)
    with pytest.raises(SpecError, match="class_weights"):
        from_table({"loss": {"kind": "cross-entropy", "class_weights": "balanced"}}, Experiment)


OWN = """
from chronofed import Loss

class Own(Loss):
    scale: float = 1.0
    def __call__(self, outputs, targets):
        return self.scale * (outputs.exp().sum(1) + 0 * targets)

class Whole(Own):
    def __call__(self, outputs, targets):
        return super().__call__(outputs, targets).sum()

class Broken(Own):
    def __call__(self, outputs, targets):
        raise ZeroDivisionError("no")
"""


def test_a_loss_of_the_users_own(workdir, monkeypatch):
    (workdir / "ownlosses.py").write_text(OWN)
    monkeypatch.syspath_prepend(workdir)

    def rehearsed(kind):
        table = {"loss": {"kind": f"ownlosses:{kind}", "scale": 2.0}, "rounds": 1}
        built = build(from_table(table, Experiment))
        rehearse(built)
        return built

    loss = rehearsed("Own").task.objective().loss
    assert to_table(Experiment(loss=loss))["loss"] == {"kind": "ownlosses:Own", "scale": 2.0}
    with pytest.raises(SpecError, match=r"loss Whole: it returns \(\), expected one number"):
        rehearsed("Whole")
    with pytest.raises(UserCodeError, match="loss Broken failed: ZeroDivisionError: no"):
        rehearsed("Broken")

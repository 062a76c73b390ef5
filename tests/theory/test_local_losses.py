"""Local losses against their formulas written out, and their gradients against finite differences."""

import math

import pytest
import torch
from torch.nn import functional

from chronofed import (
    Classification,
    ClassWeighted,
    CoreSet,
    Custom,
    Dataset,
    FedAvg,
    FedLc,
    FedProx,
    FedRod,
    FedRs,
    Method,
    Mlp,
    NotTrueDistillation,
    Pool,
    PriorCorrection,
    Regression,
    Samples,
    Scaffold,
    Surrogate,
    Train,
    VacantDistillation,
)
from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Batch
from chronofed.engines.batched.support import unsupported
from chronofed.methods.local import ClientLocal

CLASSES = 4
COUNTS = torch.tensor([6.0, 3.0, 0.0, 1.0], dtype=torch.float64)


def double_mlp(shape, classes):
    return Mlp((5,)).build(shape, classes).double()


def task(regression=False):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(10, 3, generator=draw, dtype=torch.float64)
    y = x[:, 0] if regression else torch.arange(CLASSES).repeat_interleave(COUNTS.long())
    samples = Samples(x, y)
    data = Dataset("rows", samples, samples, () if regression else tuple("abcd"))
    return (Regression if regression else Classification)(data, Custom(f"{__name__}:double_mlp"))


TASK = task()
RECEIVED, BUFFERS = TASK.initial(0)
HERE, _ = TASK.initial(1)


def local_of(loss, past=None, train=None) -> ClientLocal:
    """One client in a round, as a client makes it."""
    objective, samples = TASK.objective(), TASK.data.train
    past = past or Surrogate()
    terms = loss.on(objective, RECEIVED, samples, past)
    taught = Surrogate(past.present, past.replay, past.quadratic, terms.teachers)
    draw = torch.Generator().manual_seed(0)
    taught = taught.taught_by(RECEIVED, BUFFERS)
    return ClientLocal(
        objective, samples, taught, train or Train(batch_size="full"), draw, terms=terms
    )


def logits(params):
    return TASK.objective().logits(params, TASK.data.train.x)


def written_out(name, params):  # noqa: PLR0911 - one formula each
    """The mean loss of the client's samples, by the formula of the publication."""
    z, q, y, n = logits(params), logits(RECEIVED), TASK.data.train.y, COUNTS
    plain = functional.cross_entropy(z, y, reduction="none")
    if name == "class-weighted":
        # Every class that is there has the same sum.
        return (plain * (10 / 3 / n)[y]).sum() / 10
    if name == "prior-correction":
        shift = 0.5 * torch.log((n + 2) / (10 + 2 * CLASSES))
        return functional.cross_entropy(z + shift, y)
    if name == "balanced-softmax":
        powers = n * z.exp()
        return -(powers.gather(1, y[:, None])[:, 0] / powers.sum(1)).log().mean()
    if name == "fedlc":
        shifted = torch.exp(z - 0.7 * n.pow(-0.25))
        return -(shifted.gather(1, y[:, None])[:, 0] / shifted.sum(1)).log().mean()
    if name == "fedrs":
        return functional.cross_entropy(z * torch.tensor([1, 1, 0.3, 1.0]), y)
    if name == "vacant":
        p, t = z.softmax(1)[:, 2], q.softmax(1)[:, 2]
        return plain.mean() + 0.4 * (t * (t / p).log()).mean()
    assert name == "not-true"
    total = plain.mean()
    for k in range(10):
        others = [c for c in range(CLASSES) if c != y[k]]
        p, t = (v[k, others].div(2.0).softmax(0) for v in (z, q))
        total = total + 0.3 * 4.0 * (t * (t / p).log()).sum() / 10
    return total


LOSSES = {
    "class-weighted": ClassWeighted(),
    "prior-correction": PriorCorrection(strength=0.5, smoothing=2.0),
    "balanced-softmax": PriorCorrection(strength=1.0, smoothing=0.0),
    "fedlc": FedLc(temperature=0.7),
    "fedrs": FedRs(scale=0.3),
    "vacant": VacantDistillation(weight=0.4),
    "not-true": NotTrueDistillation(weight=0.3, temperature=2.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_the_formula(name):
    """Central differences in random directions; the mini-batch and the full gradient are alike."""
    local = local_of(LOSSES[name])
    gradient = local.stochastic_gradient(HERE)
    torch.testing.assert_close(local.full_gradient(HERE), gradient)
    draw, step = torch.Generator().manual_seed(4), 1e-6
    for _ in range(3):
        v = torch.randn(HERE.shape, generator=draw, dtype=torch.float64)
        slope = (written_out(name, HERE + step * v) - written_out(name, HERE - step * v)) / (
            2 * step
        )
        assert float(gradient @ v) == pytest.approx(float(slope), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_it_changes_training_and_composes(name, train_for):
    """With a memory, a backbone with two gradients a step, and one with offsets of its own."""
    for method in (Method(FedAvg()), Method(Scaffold(), CoreSet(size=5)), Method(FedRod())):
        with_loss = Method(method.backbone, method.memory, loss=LOSSES[name])
        one, plain = (train_for(m, 3).params for m in (with_loss, method))
        assert torch.isfinite(one).all()
        # FedRoD leaves absent classes out, so there is no logit of theirs to scale.
        assert torch.equal(one, plain) == (name == "fedrs" and method.backbone == FedRod())


@pytest.mark.parametrize(
    "neutral",
    [
        ClassWeighted(power=0.0),
        PriorCorrection(strength=0.0),
        FedLc(temperature=0.0),
        FedRs(scale=1.0),
        VacantDistillation(weight=0.0),
        NotTrueDistillation(weight=0.0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_neutral_settings_are_the_tasks_loss(neutral, train_for):
    one = train_for(Method(FedProx(), CoreSet(size=5), loss=neutral), 3)
    plain = train_for(Method(FedProx(), CoreSet(size=5)), 3)
    torch.testing.assert_close(one.params, plain.params, rtol=1e-6, atol=1e-6)


def test_replayed_samples_count():
    """In proportion to their weights, and their classes are not absent."""
    samples = TASK.data.train
    past = Surrogate(0.5, replay=_pool(Samples(samples.x[:2], torch.tensor([2, 2])), 0.25))
    terms = FedRs().on(TASK.objective(), RECEIVED, samples, past)
    assert terms.scale.tolist() == [1, 1, 1, 1]
    offset = PriorCorrection(1.0, 0.0).on(TASK.objective(), RECEIVED, samples, past).offset
    want = torch.tensor([0.3, 0.15, 0.5, 0.05], dtype=torch.float64).log()
    torch.testing.assert_close(offset, want)


def _pool(samples, each):
    return Pool(samples, torch.full((len(samples),), each, dtype=torch.float64))


def test_one_class_leaves_full_correction_no_gradient():
    """The reason why it loses where a data set has one class; mild ones and scaled logits keep some."""
    counts = torch.tensor([10.0, 0, 0, 0], dtype=torch.float64)
    z = torch.tensor([[0.3, -0.2, 0.5, 0.1]], dtype=torch.float64)
    size = {}
    for name, loss in LOSSES.items():
        terms = loss.terms(counts)
        out = z * (1 if terms.scale is None else terms.scale)
        out = out + (0 if terms.offset is None else terms.offset)
        size[name] = float((out.softmax(1) - torch.tensor([[1.0, 0, 0, 0]])).abs().sum())
    assert size["balanced-softmax"] == size["fedlc"] == 0.0
    assert size["prior-correction"] > 0.1
    assert size["fedrs"] > 0.1


def test_the_last_layer_alone_has_the_same_gradient_with_a_scale():
    """It is computed without a backward pass."""
    objective, samples = TASK.objective(), TASK.data.train
    n = len(samples)
    scale, offset = torch.tensor([1, 0.5, 0.2, 1.0]), torch.tensor([0.1, -0.2, 0.0, 0.4])
    weight = torch.full((n,), 1 / n, dtype=torch.float64)
    batch = Batch(samples.x, samples.y, weight, offset, scale)
    spans = tuple(objective.names[name] for name in ("fc.weight", "fc.bias"))
    quick = objective.loss_gradient(HERE, batch, spans)
    whole = objective.gradient(HERE, batch)
    torch.testing.assert_close(quick, torch.cat([whole[span] for span in spans]))
    assert math.isfinite(float(quick.sum()))


def test_what_does_not_fit_is_refused():
    numbers = task(regression=True)
    with pytest.raises(IncompatibleError, match=r"^method\.loss: FedRs needs classes"):
        FedRs().on(numbers.objective(), RECEIVED, numbers.data.train, Surrogate())
    assert "Method.loss is set" in unsupported(Method(loss=FedRs()), TASK)

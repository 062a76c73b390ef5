"""Distillation, values of an objective, and offsets of logits, against float64 oracles."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import BinaryCrossEntropy, Pool, Samples, Surrogate, Teacher, Train
from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Batch
from chronofed.engines.batched.kernel import BatchedMlp
from chronofed.engines.batched.layout import layout_of
from chronofed.engines.batched.objective import BatchedObjective
from chronofed.engines.batched.workspace import Workspace
from chronofed.methods.local import ClientLocal
from chronofed.methods.teaching import outputs
from chronofed.models.distillation import distillation_losses
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Mlp

T = 3.0


def draw(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


def objective(*extra: nn.Module) -> TorchObjective:
    torch.manual_seed(0)
    return TorchObjective(nn.Sequential(nn.Linear(4, 3), *extra).double())


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


X, Y = draw(6, 4), torch.tensor([0, 1, 2, 0, 1, 0])
MEAN = Batch(X, Y, torch.full((6,), 1 / 6, dtype=torch.float64))


def signal(found: torch.Tensor) -> np.ndarray:
    """Derivative in the logits of a linear model, whose inputs are the rows of an identity."""
    return found[:12].view(3, 4).T.numpy()


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_the_derivative_in_the_logits_is_p_minus_q_over_t_b(form):
    """Without a factor T squared."""
    student, teacher = draw(4, 3), draw(3, 4).T
    z = student.clone().requires_grad_()
    losses = distillation_losses(z, teacher, T, form)
    (found,) = torch.autograd.grad(losses.mean(), z)
    make = softmax if form == "softmax" else lambda a: 1 / (1 + np.exp(-a))
    p, q = make(student.numpy() / T), make(teacher.numpy() / T)
    np.testing.assert_allclose(found.numpy(), (p - q) / (T * 4), rtol=0, atol=5e-17)
    ones = q * np.log(p) if form == "softmax" else q * np.log(p) + (1 - q) * np.log(1 - p)
    np.testing.assert_allclose(losses.detach().numpy(), -ones.sum(1), atol=1e-13)


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_a_model_that_is_its_own_teacher_learns_nothing(form):
    model = objective()
    w = model.flat.read()
    found = model.distilled(w, MEAN, model.logits(w, X), T, form=form)
    assert float(found.abs().max()) < 3e-17


def test_gradient_weights_and_classes():
    """On the rows of an identity, the gradient in the weights is that in the logits."""
    model, eye = objective(), torch.eye(4, dtype=torch.float64)
    w, weight = model.flat.read(), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    batch, taught = Batch(eye, torch.zeros(4, dtype=torch.int64), weight), draw(4, 3)
    z = model.logits(w, eye).numpy()
    found = signal(model.distilled(w, batch, taught, T))
    want = weight[:, None].numpy() * (softmax(z / T) - softmax(taught.numpy() / T)) / T
    np.testing.assert_allclose(found, want, atol=1e-15)
    some = [0, 2]
    found = signal(model.distilled(w, batch, taught, T, torch.tensor(some)))
    part = (
        weight[:, None].numpy()
        * (softmax(z[:, some] / T) - softmax(taught.numpy()[:, some] / T))
        / T
    )
    np.testing.assert_allclose(found[:, some], part, atol=1e-15)
    assert not found[:, 1].any()


def test_it_trains_with_batch_statistics_and_leaves_the_buffers():
    model = objective(nn.BatchNorm1d(3).double())
    w, before = model.flat.read(), model.buffers
    logits = draw(6, 3)
    found = model.distilled(w, MEAN, logits, 1.0)
    assert torch.equal(model.buffers, before)
    model.flat.module.eval()
    still = model.flat.gradient(
        distillation_losses(model.flat.module(X), logits, 1.0) @ MEAN.weight
    )
    assert not torch.allclose(found, still)


# Teachers of local training


def local(past: Surrogate, batch_size="full", steps=1) -> ClientLocal:
    train = Train(batch_size=batch_size, steps=steps)
    return ClientLocal(objective(), Samples(X, Y), past, train, torch.Generator().manual_seed(0))


def test_teachers_add_their_weighted_mean_over_the_samples():
    w, other = objective().flat.read(), objective().flat.read() + 0.5
    teachers = (Teacher(other, 0.7, T), Teacher(other * 2, 0.2, 1.0, torch.tensor([1, 2])))
    plain, taught = local(Surrogate()), local(Surrogate(teachers=teachers))
    model = objective()
    want = plain.stochastic_gradient(w)
    for one in teachers:
        logits = model.logits(one.params, X)
        want = want + one.weight * model.distilled(w, MEAN, logits, one.temperature, one.classes)
    torch.testing.assert_close(taught.stochastic_gradient(w), want, rtol=0, atol=1e-15)
    torch.testing.assert_close(taught.full_gradient(w), want, rtol=0, atol=1e-15)
    assert not torch.allclose(want, plain.stochastic_gradient(w))


def test_mini_batches_are_unbiased_also_with_replayed_samples_of_negative_weight():
    """The mean over all mini-batches of one sample, by their probabilities, is the full gradient."""
    w = objective().flat.read()
    replay = Pool(Samples(draw(3, 4), Y[:3]), torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64))
    past = Surrogate(0.6, replay, teachers=(Teacher(w + 0.5, 5.0),))
    one = local(past, batch_size=1)
    share = one.pool.weight.abs() / one.pool.weight.abs().sum()
    weight = one.pool.weight.sign() * one.pool.weight.abs().sum()
    every = [(torch.tensor([j]), weight[j : j + 1]) for j in range(len(share))]
    object.__setattr__(one, "_draws", iter(every))
    mean = share @ torch.stack([one.stochastic_gradient(w) for _ in every])
    torch.testing.assert_close(mean, one.full_gradient(w), rtol=0, atol=1e-14)
    torch.testing.assert_close(local(past).stochastic_gradient(w), mean, rtol=0, atol=1e-14)


def test_a_teacher_speaks_with_its_own_buffers():
    model = objective(nn.BatchNorm1d(3).double())
    w = model.flat.read()
    own = torch.cat([draw(3), draw(3).exp(), torch.ones(1, dtype=torch.float64)])
    past = Surrogate(teachers=(Teacher(w, 1.0, 1.0, buffers=own),))
    one = ClientLocal(model, Samples(X, Y), past, Train(batch_size="full"), torch.Generator())
    model.buffers = own
    want = model.logits(w, X).clone()
    model.buffers = torch.zeros(7, dtype=torch.float64)
    torch.testing.assert_close(outputs(past.teachers[0], X, model), want)
    assert not model.buffers.any()
    with pytest.raises(IncompatibleError, match="a teacher has none"):
        ClientLocal(
            model, Samples(X, Y), Surrogate(teachers=(Teacher(w, 1.0),)), Train(), one.generator
        )


def test_the_server_s_model_stands_in_for_a_teacher_without_parameters():
    w, b = draw(3), draw(2)
    past = Surrogate(teachers=(Teacher(None, 0.5), Teacher(w * 2, 0.1)))
    found = past.taught_by(w, b).teachers
    assert found[0].params is w
    assert found[0].buffers is b
    assert found[1] is past.teachers[1]
    assert Surrogate().taught_by(w, b).teachers == ()


# Values, shapes, offsets


def test_losses_and_shapes():
    model = objective()
    w = model.flat.read()
    found = model.losses(w, Batch(X.repeat(100, 1), Y.repeat(100), torch.zeros(600)))
    p = softmax(model.logits(w, X).numpy())
    want = -np.log(p[np.arange(6), Y.numpy()])
    np.testing.assert_allclose(found.numpy(), np.tile(want, 100), atol=1e-14)
    assert not found.requires_grad
    assert model.shapes == {"0.weight": (3, 4), "0.bias": (3,)}


OFFSET = torch.tensor([math.log(3), math.log(2), math.log(1)], dtype=torch.float64)


def shifted_bias(model: TorchObjective, offset: torch.Tensor) -> torch.Tensor:
    """Parameters of a model whose last bias holds the offset."""
    w = model.flat.read()
    w[-3:] += offset
    return w


def models():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 3)).double()
    return {
        "any model": TorchObjective(
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        ),
        "known layers": TorchObjective(plain),
        "ours": TorchObjective(Mlp((5,)).build((4,), 3).double()),
    }


@pytest.mark.parametrize("kind", ["any model", "known layers", "ours"])
def test_an_offset_is_a_bias_that_is_not_trained(kind):
    """In every derivative of the loss, and for the last layer alone."""
    model = models()[kind]
    w, there = model.flat.read(), shifted_bias(model, OFFSET)
    batch = Batch(X, Y, MEAN.weight, OFFSET)
    last = (slice(len(w) - 3, len(w)),)
    for spans in ((slice(0, len(w)),), last):
        for name in ("loss_gradient", "squared_gradients"):
            found, want = (
                getattr(model, name)(w, batch, spans),
                getattr(model, name)(there, MEAN, spans),
            )
            torch.testing.assert_close(found, want, rtol=0, atol=1e-13)
        v = draw(sum(s.stop - s.start for s in spans))
        found = model.hessian_product(w, batch, spans, v)
        torch.testing.assert_close(
            found, model.hessian_product(there, MEAN, spans, v), rtol=0, atol=1e-13
        )
    torch.testing.assert_close(
        model.gradient(w, batch), model.gradient(there, MEAN), rtol=0, atol=1e-13
    )
    torch.testing.assert_close(
        model.losses(w, batch), model.losses(there, MEAN), rtol=0, atol=1e-13
    )


def test_minus_infinity_leaves_a_class_out_and_equal_counts_change_nothing():
    model, w = objective(), objective().flat.read()
    some = Batch(X[Y < 2], Y[Y < 2], torch.full((5,), 0.2, dtype=torch.float64))
    masked = Batch(some.x, some.y, some.weight, torch.tensor([0.0, 0.0, -math.inf]))
    found = model.gradient(w, masked)
    assert torch.isfinite(found).all()
    assert not found[:12].view(3, 4)[2].any()
    equal = Batch(X, Y, MEAN.weight, torch.full((3,), math.log(2.0)))
    torch.testing.assert_close(
        model.gradient(w, equal), model.gradient(w, MEAN), rtol=0, atol=1e-14
    )


def test_an_offset_reaches_local_training():
    one = local(Surrogate())
    w, want = objective().flat.read(), objective()
    batch = Batch(X, Y, MEAN.weight, OFFSET)
    torch.testing.assert_close(one.stochastic_gradient(w, OFFSET), want.gradient(w, batch))
    torch.testing.assert_close(one.full_gradient(w, OFFSET), want.gradient(w, batch))


def test_the_batched_objective_knows_shapes_and_refuses_the_rest():
    torch.manual_seed(0)
    model = TorchObjective(Mlp((5,)).build((4,), 3))
    batched = BatchedObjective(BatchedMlp(layout_of(model), Workspace()), 2)
    assert batched.shapes == model.shapes
    w, batch = model.flat.read().repeat(2, 1), Batch.mean(Samples(X.float()[None], Y[None]))
    for call in (
        lambda: batched.logits(w, batch.x),
        lambda: batched.losses(w, batch),
        lambda: batched.distilled(w, batch, batch.x),
    ):
        with pytest.raises(IncompatibleError, match="works on one client at a time"):
            call()
    with pytest.raises(
        IncompatibleError, match=r"Batch\.offset is set, which the kernel does not read"
    ):
        batched.loss_gradient(w, Batch(batch.x, batch.y, batch.weight, OFFSET), (slice(0, 3),))


def test_of_a_regression_it_is_half_the_squared_difference():
    """Whatever the temperature; a single class among several is no number, and has nothing to say."""
    student, teacher = draw(4, 1), draw(1, 4).T
    found = distillation_losses(student, teacher, T)
    np.testing.assert_allclose(found.numpy(), (student - teacher).numpy()[:, 0] ** 2 / 2)
    one = torch.tensor([1])
    assert not distillation_losses(draw(4, 3), draw(3, 4).T, T, classes=one).any()
    for form in ("sigmoid", "targets"):
        with pytest.raises(IncompatibleError, match=f"'{form}' needs classes, but there is one"):
            distillation_losses(student, teacher, T, form)


def test_targets_replace_the_labels_of_some_classes():
    """Together with the labels' loss the derivative is p - q for these classes, and p - y for others."""
    loss, z = BinaryCrossEntropy(), draw(6, 3).requires_grad_()
    teacher, old = draw(3, 6).T, torch.tensor([0, 2])
    both = loss(z, Y) + distillation_losses(z, teacher, T, "targets", old, Y)
    (found,) = torch.autograd.grad(both.sum(), z)
    p, q = (1 / (1 + np.exp(-v.detach().numpy())) for v in (z, teacher))
    want = p - np.eye(3)[Y.numpy()]
    want[:, [0, 2]] = (p - q)[:, [0, 2]]
    np.testing.assert_allclose(found.numpy(), want, atol=1e-15)
    model = objective()
    with pytest.raises(IncompatibleError, match="set loss = 'binary-cross-entropy'"):
        model.distilled(model.flat.read(), MEAN, draw(6, 3), form="targets")


def test_binary_cross_entropy_is_a_sum_over_classes():
    loss, z = BinaryCrossEntropy(), draw(6, 3)
    p, y = 1 / (1 + np.exp(-z.numpy())), np.eye(3)[Y.numpy()]
    want = -(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(1)
    np.testing.assert_allclose(loss(z, Y).numpy(), want, atol=1e-14)
    np.testing.assert_allclose(loss.signal(z, Y).numpy(), p - y, atol=1e-15)
    np.testing.assert_allclose(super(type(loss), loss).signal(z, Y).numpy(), p - y, atol=1e-15)
    z[:, 2] = -math.inf
    some = Y < 2
    left = -(y * np.log(p) + (1 - y) * np.log(1 - p))[:, :2].sum(1)
    np.testing.assert_allclose(loss(z, Y)[some].numpy(), left[some.numpy()], atol=1e-14)
    assert not loss.signal(z, Y)[:, 2].any()

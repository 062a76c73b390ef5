"""Hand-written gradients of many models at once, against autograd, one model after another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chronofed.core.types import Batch
from chronofed.engines.batched.kernel import BatchedMlp, Schedule, twin
from chronofed.engines.batched.layout import Layout, layout_of
from chronofed.engines.batched.loop import compiled, descend_plainly
from chronofed.engines.batched.quadratics import Quadratics
from chronofed.engines.batched.workspace import Workspace
from chronofed.methods.surrogate import Quadratic
from chronofed.models.layers import Classifier, Scale
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Cnn, Linear, Mlp, ResNet18

sizes = st.integers(1, 7)


@st.composite
def problems(draw):
    """Models of one shape, parameters of some clients, and their batches with some padding."""
    hidden = tuple(draw(st.lists(sizes, max_size=2)))
    features, classes = draw(sizes), draw(st.integers(2, 5))
    clients, rows = draw(sizes), draw(sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    objective = TorchObjective(Mlp(hidden).build((features,), classes).double())

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weight = normal(clients, rows)
    weight[:, draw(st.integers(0, rows)) :] = 0
    y = torch.randint(classes, (clients, rows), generator=generator)
    return (
        objective,
        normal(clients, objective.flat.size),
        Batch(normal(clients, rows, features), y, weight),
    )


def kernel_of(objective) -> BatchedMlp:
    layout = layout_of(objective)
    assert isinstance(layout, Layout), layout
    assert layout.size == objective.flat.size
    return BatchedMlp(layout, Workspace())


@settings(max_examples=60)
@given(problems())
def test_gradients_are_those_of_autograd(problem):
    objective, params, batch = problem
    got = kernel_of(objective).gradient(params, batch, torch.full_like(params, torch.nan))
    torch.testing.assert_close(got, twin(objective, params, batch), rtol=1e-10, atol=1e-12)


@settings(max_examples=30)
@given(problems(), st.sampled_from([0.0, 0.3]))
def test_a_fused_step_goes_along_the_gradient(problem, decay):
    objective, params, batch = problem
    want = params - 0.1 * (twin(objective, params, batch) + decay * params)
    kernel_of(objective).step_(params, batch, 0.1, decay)
    torch.testing.assert_close(params, want, rtol=1e-10, atol=1e-12)


@settings(max_examples=30)
@given(problems())
def test_one_point_may_stand_for_all_clients(problem):
    objective, params, batch = problem
    point = params[:1].expand_as(params)
    got = kernel_of(objective).gradient(point, batch, torch.empty_like(params))
    torch.testing.assert_close(got, twin(objective, point, batch), rtol=1e-10, atol=1e-12)


@settings(max_examples=30)
@given(st.lists(problems(), min_size=2, max_size=4))
def test_memory_that_is_used_again_leaves_no_trace(several):
    space = Workspace()
    for objective, params, batch in several:
        kernel = BatchedMlp(layout_of(objective), space)
        got = kernel.gradient(params, batch, torch.empty_like(params))
        torch.testing.assert_close(got, twin(objective, params, batch), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_scaled_as_the_model_does(dtype):
    objective = TorchObjective(Linear().build((256,), 2).to(dtype))
    bytes_, out = torch.arange(256, dtype=torch.uint8)[None], torch.empty(1, 256, dtype=dtype)
    layout_of(objective).encode_(bytes_, out)
    assert torch.equal(out, Scale()(bytes_, dtype))


def test_layers_without_bias():
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)).double()
    objective = TorchObjective(module)
    params = torch.randn(2, objective.flat.size, dtype=torch.float64)
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randint(2, (2, 5))
    batch = Batch(x, y, torch.rand(2, 5, dtype=torch.float64))
    got = kernel_of(objective).gradient(params, batch, torch.empty_like(params))
    torch.testing.assert_close(got, twin(objective, params, batch), rtol=1e-10, atol=1e-12)
    want = params - 0.1 * got
    kernel_of(objective).step_(params, batch, 0.1)
    torch.testing.assert_close(params, want, rtol=1e-10, atol=1e-12)


def frozen() -> nn.Module:
    module = Linear().build((3,), 2)
    module.fc.bias.requires_grad_(False)
    return module


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied_weights() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    return module


def hooked() -> nn.Module:
    module = Linear().build((3,), 2)
    module.fc.register_forward_hook(lambda *_: None)
    return module


class Extended(Classifier):
    """A subclass may do anything."""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Cnn().build((1, 28, 28), 10), "the model has a Conv2d: only linear models and MLPs"),
        (ResNet18(4).build((3, 8, 8), 10), "the model has a ResNet"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout()), "the model has a Dropout"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "the model has a BatchNorm1d"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "not a chain of linear layers with ReLU"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), "not a chain of linear layers"),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)), "not a chain"),
        (Extended({}, 3, 2), "the model has a Extended"),
        (frozen(), "shared, frozen or outside"),
        (tied(), "shared, frozen or outside"),
        (tied_weights(), "shared, frozen or outside"),
        (hooked(), "a Linear of the model has a hook"),
        (Linear().build((3,), 2).half(), "numbers are float16"),
    ],
)
def test_other_models_are_told_apart(module, reason):
    assert reason in str(layout_of(TorchObjective(module)))


def test_augmented_samples_and_other_objectives_are_told_apart():
    objective = TorchObjective(Linear().build((3,), 2), augment=lambda x, generator: x)
    assert layout_of(objective) == "training samples are augmented"
    assert "the objective is object" in str(layout_of(object()))


# --- the loop that torch runs without Python


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_loop_equals_plain_loop_and_steps(decay, bias, dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, 3)).to(dtype)
    layout = layout_of(TorchObjective(module))
    kernel = BatchedMlp(layout, Workspace())
    x, clients, sizes = torch.randn(30, 6, dtype=dtype), 3, [4, 4, 2]
    schedule = Schedule(
        x,
        torch.randint(30, (clients, 10)),
        torch.randint(3, (clients, 10, 1)),
        torch.rand(clients, 10, 1, dtype=dtype),
        sizes,
    )
    start = torch.randn(clients, layout.size, dtype=dtype)
    quick, plain, steps = start.clone(), start.clone(), start.clone()
    kernel.descend_(quick, schedule, lr=0.1, decay=decay)
    args = (
        schedule.rows,
        schedule.y,
        schedule.weight,
        sizes,
        layout.offsets,
        kernel.no_quadratic,
        0.1,
        1 - 0.1 * decay,
        False,
    )
    descend_plainly(plain, x, *args)
    for rows, y, weight in schedule.steps:
        kernel.step_(steps, Batch(x[rows], y, weight), 0.1, decay)
    torch.testing.assert_close(quick, plain)
    torch.testing.assert_close(quick, steps, rtol=1e-5, atol=1e-6)
    assert not torch.equal(quick, start)


def test_where_torch_cannot_compile_it_runs_as_it_is(monkeypatch):
    def refuse(function):
        raise RuntimeError("no TorchScript here")

    monkeypatch.setattr(torch.jit, "script", refuse)
    compiled.cache_clear()
    assert compiled() is descend_plainly
    compiled.cache_clear()
    monkeypatch.undo()
    assert compiled() is not descend_plainly


# --- the same with quadratics of the past

WEIGHTS_AND_BIASES = (slice(0, 12), slice(12, 16), slice(16, 28), slice(28, 31))  # of 3-4-3


def quadratic(spans, generator, dtype) -> Quadratic:
    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(size, generator=generator, dtype=dtype)

    size = sum(span.stop - span.start for span in spans)
    scale = tuple(torch.rand(len(spans), generator=generator).tolist())
    return Quadratic(spans, scale, normal(1.0), normal(0.5).abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "spans",
    [
        (slice(16, 31),),
        (slice(0, 31),),
        (slice(28, 31),),
        (slice(0, 12), slice(16, 28)),
        (slice(12, 28), slice(28, 31)),
        WEIGHTS_AND_BIASES,
    ],
    ids=str,
)
def test_fused_steps_with_a_past_equal_autograd(spans, shared, decay, dtype):
    generator = torch.Generator().manual_seed(0)
    objective = TorchObjective(Mlp((4,)).build((3,), 3).to(dtype))
    kernel, clients, sizes, lr = kernel_of(objective), 3, [4, 4, 2], 0.1
    pasts = [quadratic(spans, generator, dtype) for _ in range(clients)]
    pasts = pasts[:1] * clients if shared else pasts
    schedule = Schedule(
        torch.randn(30, 3, generator=generator, dtype=dtype),
        torch.randint(30, (clients, 10), generator=generator),
        torch.randint(3, (clients, 10, 1), generator=generator),
        torch.rand(clients, 10, 1, generator=generator, dtype=dtype),
        sizes,
    )
    start = torch.randn(clients, kernel.layout.size, generator=generator, dtype=dtype)
    want, loop, steps = start.clone(), start.clone(), start.clone()
    every = Quadratics.of(pasts)
    assert len(every.linear) == (1 if shared else clients)
    term = every.term(kernel.layout, lr, 1 - lr * decay)
    kernel.descend_(loop, schedule, lr, decay, term)
    for rows, y, weight in schedule.steps:
        batch = Batch(schedule.x[rows], y, weight)
        kernel.step_(steps, batch, lr, decay, term)
        gradient = twin(objective, want, Batch(batch.x, y[..., 0], weight[..., 0]))
        together = gradient.clone()
        for grad, params, past in zip(gradient, want, pasts, strict=True):
            past.add_gradient_(grad, params)
        every.add_gradient_(together, want)
        torch.testing.assert_close(together, gradient)
        want -= lr * (gradient + decay * want)
    limit = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(loop, want, rtol=limit, atol=limit)
    torch.testing.assert_close(steps, want, rtol=limit, atol=limit)


def test_the_past_of_the_first_clients():
    generator = torch.Generator().manual_seed(0)
    pasts = [quadratic((slice(16, 31),), generator, torch.float64) for _ in range(3)]
    assert torch.equal(Quadratics.of(pasts).first(2).linear, Quadratics.of(pasts[:2]).linear)
    assert len(Quadratics.of([pasts[0], pasts[0]]).first(2).scale) == 1
    assert Quadratics.of([None, None]) is None


@pytest.mark.parametrize(
    ("spans", "aligned"),
    [
        (WEIGHTS_AND_BIASES, True),
        ((slice(0, 16), slice(28, 31)), True),
        ((slice(16, 30),), False),
        ((slice(17, 31),), False),
        ((slice(0, 12), slice(12, 13)), False),
    ],
    ids=str,
)
def test_spans_of_whole_weights_and_biases(spans, aligned):
    layout = layout_of(TorchObjective(Mlp((4,)).build((3,), 3)))
    assert layout.aligned(spans) is aligned

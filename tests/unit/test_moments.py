"""Sums of single samples' gradients and of their squares, against the reference that computes each of them."""

import pytest
import torch
from torch import nn

from chronofed import Fisher, SquaredGradient, Taylor
from chronofed.core.types import Batch, Samples
from chronofed.methods.memories.curvature import MeanLoss
from chronofed.models import moments as module_under_test
from chronofed.models import objective as objectives
from chronofed.models.layers import Classifier, Transpose
from chronofed.models.moments import moments, reference_moments, supports
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Cnn, Cnn1d, Mlp, ResNet18

CLASSES = 3


def classifier(*parts: nn.Module, width: int) -> nn.Module:
    return Classifier({str(i): part for i, part in enumerate(parts)}, width, CLASSES)


def odd_convolution() -> nn.Module:
    """Different in height and width, in all that a convolution can be asked for."""
    conv = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 3))
    return classifier(conv, nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), width=3 * 3 * 6)


def odd_time() -> nn.Module:
    conv = nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2)
    return classifier(Transpose(), conv, nn.BatchNorm1d(4), nn.Flatten(), width=4 * 3)


def linear_at_positions() -> nn.Module:
    return classifier(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), width=30)


MODELS = {
    "mlp": (Mlp((6, 4)).build, (5,)),
    "cnn": (Cnn((3, 4), 6).build, (2, 8, 8)),
    "cnn1d": (Cnn1d((3, 4), 6).build, (9, 2)),
    "resnet": (ResNet18(4).build, (3, 8, 8)),
    "resnet-group": (ResNet18(4, "group").build, (3, 16, 16)),
    "resnet-none": (ResNet18(4, "none").build, (3, 8, 8)),
    "odd": (lambda *_: odd_convolution(), (2, 6, 5)),
    "odd-time": (lambda *_: odd_time(), (8, 2)),
    "positions": (lambda *_: linear_at_positions(), (2, 3, 4)),
}


def model(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """With BatchNorm statistics as after training."""
    build, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = build(shape, CLASSES).to(dtype)
        for buffer in found.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return found.eval()


def batch(name: str, n: int = 7, dtype: torch.dtype = torch.float64) -> Batch:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(n, *MODELS[name][1], generator=draw, dtype=dtype)
    y = torch.randint(CLASSES, (n,), generator=draw)
    return Batch(x, y, torch.rand(n, generator=draw, dtype=torch.float64) - 0.3)


def assert_same(name: str, names: list[str], dtype: torch.dtype, **tolerance: float) -> None:
    single, some = model(name, dtype), batch(name, dtype=dtype)
    got, want = moments(single, names, some), reference_moments(single, names, some)
    for one, other, parameter in zip(got, want, names, strict=True):
        shape = single.get_parameter(parameter).shape
        for mine, its in zip(one, other, strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.reshape(shape), its.reshape(shape), **tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_single_gradients(name, monkeypatch):
    single = model(name)
    names = [n for n, _ in single.named_parameters()]
    assert supports(single)
    assert_same(name, names, torch.float64, rtol=1e-10, atol=1e-12)
    assert_same(name, names[::-3], torch.float64, rtol=1e-10, atol=1e-12)
    assert_same(name, names, torch.float32, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(module_under_test, "CACHED_NUMBERS", 500)  # a few samples at a time, or one
    assert_same(name, names, torch.float64, rtol=1e-10, atol=1e-12)


def test_nothing_is_left_behind_and_the_backward_pass_goes_no_deeper():
    single, some = model("resnet"), batch("resnet")
    reached: list[bool] = []
    single.layer3.register_forward_hook(lambda *a: reached.append(a[2].requires_grad))
    moments(single, ["layer4.1.conv2.weight"], some)
    assert reached == [False]
    assert all(parameter.requires_grad for parameter in single.parameters())
    assert not any(part._forward_hooks for part in single.layer4.modules())
    with pytest.raises(RuntimeError):
        moments(single, ["layer4.1.conv2.weight"], Batch(some.x[:, :1], some.y, some.weight))
    assert all(parameter.requires_grad for parameter in single.parameters())
    assert not any(part._forward_hooks for part in single.layer4.modules())


class Own(nn.Linear):
    """A layer of one's own."""


def shared() -> nn.Module:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    return nn.Sequential(one, other)


def hooked() -> nn.Module:
    one = nn.Linear(4, 4)
    one.register_forward_hook(lambda *a: 2 * a[2])
    return nn.Sequential(one)


UNKNOWN = {
    "own": lambda: nn.Sequential(Own(4, 4)),
    "shared": shared,
    "hooked": hooked,
    "in place": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)),
    "another norm": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)),
    "groups": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 4, 2, groups=2), nn.Flatten()
    ),
    "circular": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)),
        nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_other_models_are_served_by_the_reference(kind, monkeypatch):
    torch.manual_seed(0)
    one = TorchObjective(UNKNOWN[kind]().double())
    assert not supports(one.flat.module)
    monkeypatch.setattr(objectives, "moments", None)
    params, everything = one.flat.read(), (slice(0, one.flat.size),)
    x, y = torch.randn(5, 4).double(), torch.randint(4, (5,))
    some = Batch(x, y, torch.rand(5, dtype=torch.float64))
    first, second = one.gradient_moments(params, some, everything)
    rows = torch.stack(
        [one.loss_gradient(params, Batch(*one_of(some, j)), everything) for j in range(5)]
    )
    torch.testing.assert_close(first, some.weight @ rows)
    torch.testing.assert_close(second, some.weight @ rows.square())


def one_of(some: Batch, j: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return some.x[j : j + 1], some.y[j : j + 1], torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(
    "part",
    [
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Dropout(),
    ],
    ids=str,
)
def test_parts_that_are_not_supports(part):
    assert not supports(nn.Sequential(nn.Flatten(), part))
    assert supports(nn.Sequential(nn.Flatten(), nn.ReLU()))


def test_a_layer_that_is_called_twice_is_not_supports():
    one = nn.Linear(4, 4)
    assert not supports(nn.Sequential(one, nn.ReLU(), one))


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_an_objective_adds_up_its_chunks(name, monkeypatch):
    one = TorchObjective(model(name))
    params, some = one.flat.read(), batch(name, 9)
    spans = tuple(s for n, s in one.names.items() if not n.endswith("bias"))
    whole = one.gradient_moments(params, some, spans)
    torch.testing.assert_close(whole[0], one.loss_gradient(params, some, spans))
    assert torch.equal(whole[1], one.squared_gradients(params, some, spans))
    monkeypatch.setattr(objectives, "CHUNK_SAMPLES", 4)
    torch.testing.assert_close(one.gradient_moments(params, some, spans), whole)
    monkeypatch.setattr(objectives, "supports", lambda _: False)
    monkeypatch.setattr(objectives, "MAX_GRADIENT_NUMBERS", 3 * len(whole[0]))
    torch.testing.assert_close(one.gradient_moments(params, some, spans), whole)


class Halved(Fisher, tag=True):
    """A curvature of one's own, from one of ours."""

    def expand(self, loss, generator):
        gradient, diagonal = super().expand(loss, generator)
        return gradient, diagonal / 2


class Doubled(SquaredGradient, tag=True):
    """The same of the other."""

    def expand(self, loss, generator):
        gradient, diagonal = super().expand(loss, generator)
        return gradient, diagonal * 2


@pytest.mark.parametrize(
    ("own", "ours", "factor"),
    [(Halved(), Fisher(), 0.5), (Doubled(), SquaredGradient(), 2.0)],
    ids=["fisher", "squared"],
)
def test_expansions_have_the_diagonal_of_a_subclass(own, ours, factor):
    one, some = TorchObjective(model("mlp")), batch("mlp")
    samples, nothing = Samples(some.x, some.y), torch.Generator()
    params, spans = one.flat.read(), (slice(0, one.flat.size),)
    loss = MeanLoss(one, params, samples, spans)
    gradient, diagonal = ours.expand(loss, nothing)
    torch.testing.assert_close(gradient, one.loss_gradient(params, Batch.mean(samples), spans))
    torch.testing.assert_close(own.expand(loss, nothing), (gradient, factor * diagonal))
    record = Taylor(own, {"*": 1.0}).observe(one, params, samples, nothing)
    torch.testing.assert_close(record["diagonal"], factor * diagonal)


def test_a_layer_that_is_listened_to_is_called_and_says_the_same():
    """In use BatchNorm is folded into the convolution before it, which then is not called."""
    single, some = model("resnet"), batch("resnet")
    folded, heard = single(some.x), []
    single.layer1[0].conv2.register_forward_hook(lambda *_: heard.append("conv2"))
    single.layer2[0].downsample[1].register_forward_hook(lambda *_: heard.append("downsample"))
    torch.testing.assert_close(single(some.x), folded)
    assert heard == ["conv2", "downsample"]

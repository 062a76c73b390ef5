"""Models: sizes, names, the treatment of bytes, and clear refusals."""

import copy

import msgspec
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from chronofed.core.config import kind_of
from chronofed.core.errors import SpecError, UserCodeError
from chronofed.core.types import Batch
from chronofed.models import layers
from chronofed.models.layers import BasicBlock, Scale
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import (
    Cnn,
    Cnn1d,
    Custom,
    Linear,
    Mlp,
    ModelSettings,
    ResNet18,
    ResNetCifar,
)

GREY, COLOUR, WINDOW = (1, 28, 28), (3, 32, 32), (128, 6)
SMALL = [
    (Linear(), GREY),
    (Mlp((20, 10)), COLOUR),
    (Cnn((4, 8), fc=16), GREY),
    (Cnn((4, 8), fc=16), COLOUR),
    (Cnn1d((4, 8), fc=16), WINDOW),
    (ResNet18(4, "batch"), COLOUR),
    (ResNet18(4, "group"), GREY),
    (ResNet18(4, "none"), COLOUR),
    (ResNetCifar(8, 4, "batch"), COLOUR),
    (ResNetCifar(14, 4, "group"), GREY),
    (ResNetCifar(8, 4, "group", stride=2), COLOUR),
]


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def images(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("settings", "shape", "classes", "expected"),
    [
        (Linear(), GREY, 10, 785 * 10),
        (Mlp(), GREY, 10, 785 * 200 + 201 * 10),
        (Mlp(()), (5,), 3, 6 * 3),
        (Mlp((7, 4)), (5,), 3, 6 * 7 + 8 * 4 + 5 * 3),
        (Cnn(), GREY, 10, 1_663_370),  # McMahan et al. (2017)
        (Cnn(), COLOUR, 10, 2_432 + 51_264 + 4097 * 512 + 5_130),
        (Cnn1d(), WINDOW, 6, 992 + 10_304 + (32 * 64 + 1) * 128 + 129 * 6),
        (ResNet18(), COLOUR, 10, 11_173_962),
        (ResNet18(norm="group"), COLOUR, 10, 11_173_962),
        (ResNet18(), COLOUR, 100, 11_173_962 + 90 * 513),
        (ResNet18(norm="none"), COLOUR, 10, 11_173_962 - 4_800),  # a bias for each scale and shift
        # He et al. (2016) count 0.27 million for 20 layers and 0.85 for 56.
        (ResNetCifar(), COLOUR, 10, 78_042),
        (ResNetCifar(stride=2), COLOUR, 10, 78_042),
        (ResNetCifar(14), COLOUR, 10, 78_042 + 97_216),
        (ResNetCifar(20), COLOUR, 10, 78_042 + 2 * 97_216),
        (ResNetCifar(56), COLOUR, 10, 78_042 + 8 * 97_216),
    ],
)
def test_number_of_parameters(settings, shape, classes, expected):
    with torch.device("meta"):
        assert size(settings.build(shape, classes)) == expected


@pytest.mark.parametrize(("settings", "shape"), SMALL)
def test_logits_and_gradients_reach_everything(settings, shape):
    model = settings.build(shape, 7)
    logits = model(images(3, *shape))
    assert logits.shape == (3, 7)
    assert logits.dtype == torch.float32
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.fc.out_features == 7  # the head has the same name everywhere


@pytest.mark.parametrize(("settings", "shape"), SMALL)
def test_bytes_are_scaled_and_numbers_are_not(settings, shape):
    model = settings.build(shape, 3).eval()
    x = images(2, *shape)
    scaled = (x.float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(model(x), model(scaled))
    assert not torch.allclose(model(x), model(x.float()))


@pytest.mark.parametrize(("settings", "shape"), SMALL)
def test_the_parameters_decide_the_dtype(settings, shape):
    model, x = settings.build(shape, 3).eval(), images(2, *shape)
    double = copy.deepcopy(model).double()
    assert double(x).dtype == torch.float64
    assert double((x.float() / 255 - 0.5) / 0.25).dtype == torch.float64
    # Also when they are swapped in for one call, as per-client parameters are.
    state = {name: value.clone() for name, value in double.state_dict().items()}
    torch.testing.assert_close(functional_call(model, state, (x,)), double(x))


@pytest.mark.parametrize(("settings", "shape"), SMALL)
def test_many_clients_at_once_equal_one_by_one(settings, shape):
    models = [settings.build(shape, 3).eval() for _ in range(3)]
    x = images(3, 2, *shape)
    parameters, buffers = stack_module_state(models)

    def one(parameters, buffers, x):
        return functional_call(models[0], (parameters, buffers), (x,))

    together = vmap(one)(parameters, buffers, x)
    alone = torch.stack([model(own) for model, own in zip(models, x, strict=True)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_scale():
    scale = Scale()
    assert list(scale.state_dict()) == []
    ends = torch.tensor([0, 255], dtype=torch.uint8)
    assert scale(ends).tolist() == [-2, 2]
    assert scale(ends, torch.float64).dtype == torch.float64
    numbers = torch.tensor([0.0, 255.0])
    assert scale(numbers) is numbers


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_resnet_parts(norm):
    model = ResNet18(8, norm).build(COLOUR, 10)
    names = ["scale", "conv1", "norm1", "layer1", "layer2", "layer3", "layer4", "fc"]
    assert [name for name, _ in model.named_children()] == names
    assert bool(list(model.buffers())) == (norm == "batch")
    assert (model.conv1.bias is not None) == (norm == "none")
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        assert len(stage) == 2
        stage.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape[1:])))
    model(images(2, *COLOUR))
    assert shapes == [(8, 32, 32), (16, 16, 16), (32, 8, 8), (64, 4, 4)]


@pytest.mark.parametrize(("depth", "blocks"), [(8, 1), (20, 3)])
def test_small_resnets_have_three_stages_and_six_n_plus_two_layers(depth, blocks):
    model = ResNetCifar(depth, 4).build(COLOUR, 10)
    assert model.stages == ("layer1", "layer2", "layer3")
    assert [len(model.get_submodule(name)) for name in model.stages] == [blocks] * 3
    wide = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(wide) + 1 == depth
    assert model.embed(images(2, *COLOUR)).shape == (2, 16)


@pytest.mark.parametrize(("stride", "sides"), [(1, [32, 16, 8]), (2, [16, 8, 4])])
def test_stride_of_the_first_convolution_sets_the_resolution_of_all_stages(stride, sides):
    model = ResNetCifar(8, 4, stride=stride).build(COLOUR, 10)
    seen = []
    for name in model.stages:
        model.get_submodule(name).register_forward_hook(
            lambda _, __, out: seen.append(out.shape[-1])
        )
    model(images(2, *COLOUR))
    assert seen == sides


@pytest.mark.parametrize(("width", "groups"), [(64, 32), (32, 16), (8, 4), (6, 1), (5, 1), (1, 1)])
def test_no_channel_is_alone_in_its_group(width, groups):
    norm = ResNet18(width, "group").build(COLOUR, 10).norm1
    assert (norm.num_groups, norm.num_channels) == (groups, width)


def test_block_adds_its_input():
    block = BasicBlock(4, 4, 1, "none")
    nn.init.zeros_(block.conv2.weight)
    nn.init.zeros_(block.conv2.bias)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x.relu())
    shrink = BasicBlock(4, 6, 2, "none")
    nn.init.zeros_(shrink.conv2.weight)
    nn.init.zeros_(shrink.conv2.bias)
    assert torch.equal(shrink(x), shrink.downsample(x).relu())
    assert shrink(x).shape == (2, 6, 3, 3)


def test_cnn1d_convolves_along_time():
    model = Cnn1d((4,), fc=8).build(WINDOW, 3)
    assert model.features.conv1.weight.shape == (4, 6, 5)
    x, seen = torch.randn(2, *WINDOW), []
    model.features.conv1.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(x)
    assert torch.equal(seen[0], x.transpose(1, 2))


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (
            Cnn(),
            WINDOW,
            r"^model cnn needs images \(channels, height, width\), not samples \(128, 6\)$",
        ),
        (ResNet18(), (5,), r"^model resnet18 needs images"),
        (
            Cnn1d(),
            GREY,
            r"^model cnn1d needs windows \(time, channels\), not samples \(1, 28, 28\)$",
        ),
        (Cnn((4,) * 5), GREY, r"^5 poolings reduce a length of 28 to 0: use fewer channels$"),
        (Cnn1d((4, 4)), (3, 6), r"^2 poolings reduce a length of 3 to 0"),
    ],
)
def test_a_shape_that_does_not_fit(settings, shape, message):
    with pytest.raises(SpecError, match=message):
        settings.build(shape, 10)


def test_settings_from_a_specification():
    kinds = Linear | Mlp | Cnn | Cnn1d | ResNet18 | Custom
    content = {"kind": "resnet18", "width": 8, "norm": "group"}
    settings = msgspec.convert(content, kinds)
    assert settings == ResNet18(8, "group")
    assert msgspec.to_builtins(settings) == content
    assert msgspec.convert({"kind": "mlp", "hidden": [3, 4]}, kinds) == Mlp((3, 4))
    assert msgspec.convert({"kind": "custom", "factory": "a:b"}, kinds).options == {}
    assert [kind_of(kind) for kind in (Linear, Cnn, Cnn1d)] == ["linear", "cnn", "cnn1d"]
    assert issubclass(Custom, ModelSettings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mlp((0,)), r"Mlp\.hidden: .*>= 1"),
        (lambda: Cnn(fc=0), r"Cnn\.fc"),
        (lambda: ResNet18(norm="layer"), r"ResNet18\.norm: .*'layer'"),
        (lambda: ResNet18(width=1.5), r"ResNet18\.width"),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "chronofed_test_models.py").write_text(
        "import torch\n"
        "number = 3\n"
        "def build(shape, classes, bias=True, note=''):\n"
        "    model = torch.nn.Linear(shape[0], classes, bias=bias)\n"
        "    model.note = note\n"
        "    return model\n"
        "def nothing(shape, classes):\n"
        "    return [shape, classes]\n"
    )
    (tmp_path / "chronofed_test_broken.py").write_text("import chronofed_test_absent\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("user_module")
def test_custom():
    plain = Custom("chronofed_test_models:build").build((4,), 3)
    assert (plain.in_features, plain.out_features, plain.note) == (4, 3, "")
    assert plain.bias is not None
    own = Custom("chronofed_test_models:build", {"bias": False, "note": "mine"}).build((4,), 3)
    assert own.bias is None
    assert own.note == "mine"


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (
            "chronofed_test_models",
            {},
            "'chronofed_test_models': expected package.module:name",
        ),
        (":build", {}, "':build': expected package.module:name"),
        (
            "chronofed_test_absent:build",
            {},
            "'chronofed_test_absent:build': No module .*PYTHONPATH",
        ),
        ("chronofed_test_models:biuld", {}, "'chronofed_test_models' has no attribute 'biuld'"),
        ("chronofed_test_models:number", {}, "chronofed_test_models:number is no function"),
        ("chronofed_test_models:nothing", {}, "nothing returned list, not a torch.nn.Module"),
        ("chronofed_test_models:build", {"deep": 1}, "cannot be called: .*'deep'"),
        ("chronofed_test_models:build", {"classes": 1}, "cannot be called: .*'classes'"),
    ],
)
def test_custom_refused(factory, options, message):
    with pytest.raises(SpecError, match=rf"(?s)^(?!.*\n)model custom: .*{message}"):
        Custom(factory, options).build((4,), 3)


@pytest.mark.usefixtures("user_module")
def test_custom_module_that_fails_is_shown_with_the_users_frames():
    with pytest.raises(UserCodeError, match="'chronofed_test_broken:build': No module") as caught:
        Custom("chronofed_test_broken:build").build((4,), 3)
    assert "chronofed_test_broken.py" in caught.value.frames
    assert "zoo.py" not in caught.value.frames


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_batch_norm_is_folded_in_evaluation_only(norm):
    """In use the same function as without folding; in training the batch's own statistics."""
    torch.manual_seed(0)
    module = ResNet18(width=4, norm=norm).build((3, 8, 8), 5).double()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
            nn.init.normal_(m.weight)
            nn.init.normal_(m.bias)
    x = torch.randn(6, 3, 8, 8, dtype=torch.float64)

    for mode in (True, False):
        module.train(mode)
        buffers = {n: b.clone() for n, b in module.named_buffers()}
        found = module(x)
        module.load_state_dict(buffers, strict=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "_normed", lambda x, conv, norm: norm(conv(x)))
            expected = module(x)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        changed = any((b != buffers[n]).any() for n, b in module.named_buffers())
        assert changed == (mode and norm == "batch")


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8)], ids=["coloured", "grey"])
def test_order_of_pixels_in_memory_does_not_matter(shape):
    torch.manual_seed(0)
    objective = TorchObjective(Cnn(channels=(4, 4), fc=8).build(shape, 3).double())
    params = objective.flat.read()
    x, y = torch.randint(256, (5, *shape), dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1])
    batch = Batch(x, y, torch.full((5,), 0.2, dtype=torch.float64))
    loss = functional.cross_entropy(objective.flat.module(x), y)
    expected = objective.flat.gradient(loss)
    torch.testing.assert_close(objective.gradient(params, batch), expected, rtol=1e-10, atol=1e-12)
    logits = objective.logits(params, x)
    torch.testing.assert_close(logits, objective.flat.module(x).detach(), rtol=1e-10, atol=1e-12)


class Shortcut(nn.Module):
    """A strided 1x1 convolution of colours, as a model of a user's own may have it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 8, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.float()).mean((2, 3))


@pytest.mark.parametrize(
    ("settings", "channels", "together"),
    [
        (ResNet18(4), 3, False),
        (ResNet18(7, "group"), 3, False),
        (ResNet18(8, "group"), 3, False),
        (ResNet18(8), 3, True),
        (Cnn((4, 8), 16), 3, True),
        (None, 3, False),
        (None, 8, True),
    ],
    ids=str,
)
def test_layout_of_images(settings, channels, together):
    """Narrow strided convolutions and group norms never see channels last.

    In torch 2.13 the convolutions' backward pass would end the process, and the norms take ten times as long.
    """
    module = settings.build((channels, 32, 32), 10) if settings else Shortcut(channels)
    seen = []
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = images(4, 32, 32, channels).permute(0, 3, 1, 2)
    objective = TorchObjective(module)
    params = objective.flat.read()
    batch = Batch(x, torch.arange(4) % 8, torch.full((4,), 0.25, dtype=torch.float64))
    objective.logits(params, x)
    objective.loss_gradient(params, batch, (slice(0, len(params)),))
    objective.gradient(params, batch)
    assert len(seen) == 3
    assert {one.is_contiguous(memory_format=torch.channels_last) for one in seen} == {together}
    assert {one.is_contiguous() for one in seen} == {not together}

"""Models as settings: what a specification can name, and how each becomes a module.

Parameters start as torch's own initialisers leave them; the caller seeds. Every model takes a batch
of samples as they are stored, ``uint8`` images included, and returns logits ``(b, classes)``.
"""

import importlib
import inspect
import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from chronofed.config import Count, Kind
from chronofed.errors import SpecError

Norm = Literal["batch", "group", "none"]


class ModelSettings(Kind):
    """Base of all models that a specification can name."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new model for samples of this shape and this many classes."""


class Scale(nn.Module):
    r"""Bytes to numbers, :math:`(x/255 - 0.5)/0.25`; other numbers are taken as scaled already.

    It has no parameters, so the caller says which dtype its own have; else it is torch's default.
    """

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Scale ``uint8`` and leave the values of everything else alone."""
        dtype = dtype or torch.get_default_dtype()
        return x.to(dtype) * (4 / 255) - 2 if x.dtype == torch.uint8 else x.to(dtype)

    @staticmethod
    def inverse(z: Tensor) -> Tensor:
        """The bytes whose scaled values are nearest to ``z``."""
        return ((z + 2) * (255 / 4)).round_().clamp_(0, 255).to(torch.uint8)


class Classifier(nn.Module):
    """Scaled samples through ``features`` to a flat vector, and ``fc`` to logits."""

    def __init__(self, layers: dict[str, nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.scale = Scale()
        self.features = nn.Sequential(OrderedDict(layers))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(b, classes)``."""
        out: Tensor = self.fc(self.seen(x))
        return out

    def seen(self, x: Tensor) -> Tensor:
        """What the last layer sees."""
        # The dtype is read here, not stored: parameters may be swapped in by torch.func.
        out: Tensor = self.features(self.scale(x, self.fc.weight.dtype))
        return out


class Linear(ModelSettings, tag="linear"):
    """Softmax regression on the flattened sample; its loss is convex."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """One fully connected layer."""
        return Classifier({"flatten": nn.Flatten()}, math.prod(shape), classes)


class Mlp(ModelSettings, tag="mlp"):
    """Fully connected layers with ReLU between them on the flattened sample.

    Attributes:
        hidden: Widths of the hidden layers.
    """

    hidden: tuple[Count, ...] = (200,)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """By default 784-200-10 for Fashion-MNIST."""
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        width = math.prod(shape)
        for number, hidden in enumerate(self.hidden, 1):
            layers |= {f"fc{number}": nn.Linear(width, hidden), f"relu{number}": nn.ReLU()}
            width = hidden
        return Classifier(layers, width, classes)


class Cnn(ModelSettings, tag="cnn"):
    """The CNN of McMahan et al. (2017): 5x5 convolutions with 2x2 max pooling, one hidden layer.

    Attributes:
        channels: Channels after each convolution.
        fc: Width of the hidden layer.
    """

    channels: tuple[Count, ...] = (32, 64)
    fc: Count = 512

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """With 1,663,370 parameters for 28x28 grey images and 10 classes."""
        channels, height, width = _images(shape, "cnn")
        layers, flat = _convolutions(nn.Conv2d, nn.MaxPool2d, (channels, *self.channels))
        size = flat * _pooled(height, self.channels) * _pooled(width, self.channels)
        layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(size, self.fc), "relu": nn.ReLU()}
        return Classifier(layers, self.fc, classes)


class Cnn1d(ModelSettings, tag="cnn1d"):
    """Convolutions along time for windows of sensor data, ``(time, channels)``.

    Attributes:
        channels: Channels after each convolution.
        fc: Width of the hidden layer.
    """

    channels: tuple[Count, ...] = (32, 64)
    fc: Count = 128

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Time comes first in a window and last in torch's convolutions, so it is moved inside."""
        if len(shape) != 2:
            raise SpecError(f"model cnn1d needs windows (time, channels), not samples {shape}")
        time, sensors = shape
        layers, flat = _convolutions(nn.Conv1d, nn.MaxPool1d, (sensors, *self.channels))
        layers = {"transpose": Transpose()} | layers
        size = flat * _pooled(time, self.channels)
        layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(size, self.fc), "relu": nn.ReLU()}
        return Classifier(layers, self.fc, classes)


class ResNet18(ModelSettings, tag="resnet18"):
    """ResNet-18 for small images: a 3x3 stem without pooling, four stages of two basic blocks.

    Attributes:
        width: Channels of the first stage; each further stage has twice as many.
        norm: What follows every convolution.
    """

    width: Count = 64
    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """With 11,173,962 parameters for CIFAR-10 at the default settings."""
        channels, _, _ = _images(shape, "resnet18")
        return ResNet(channels, self.width, self.norm, classes)


class Custom(ModelSettings, tag="custom"):
    """The user's own model: a function that gets ``shape=``, ``classes=`` and the options.

    Attributes:
        factory: Where the function is: ``package.module:function``.
        options: Further arguments of the function, by name.
    """

    factory: str
    options: dict[str, int | float | str | bool] = msgspec.field(default_factory=dict)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Call the function; whatever is wrong with its address or its result is a SpecError."""
        factory = _imported(self.factory)
        try:
            arguments = inspect.signature(factory).bind(
                shape=shape, classes=classes, **self.options
            )
        except TypeError as error:
            raise SpecError(f"model custom: {self.factory} cannot be called: {error}") from None
        model = factory(*arguments.args, **arguments.kwargs)
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise SpecError(f"model custom: {self.factory} returned {kind}, not a torch.nn.Module")
        return model


class Transpose(nn.Module):
    """``(b, time, channels)`` to ``(b, channels, time)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap the last two axes."""
        return x.transpose(-1, -2)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a short cut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride, norm)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1, norm)
        self.norm2 = _norm(norm, outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            shortcut = _conv(inputs, outputs, 1, stride, norm)
            self.downsample = nn.Sequential(shortcut, _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The residual is added before the last ReLU."""
        out = functional.relu(_normed(x, self.conv1, self.norm1))
        shortcut = _normed(x, *self.downsample) if len(self.downsample) else x
        return functional.relu(_normed(out, self.conv2, self.norm2) + shortcut)


class ResNet(nn.Module):
    """The module of :class:`ResNet18`, with the usual names of its parts."""

    def __init__(self, channels: int, width: int, norm: Norm, classes: int) -> None:
        super().__init__()
        self.scale = Scale()
        self.conv1 = _conv(channels, width, 3, 1, norm)
        self.norm1 = _norm(norm, width)
        self.layer1 = _stage(width, width, 1, norm)
        self.layer2 = _stage(width, 2 * width, 2, norm)
        self.layer3 = _stage(2 * width, 4 * width, 2, norm)
        self.layer4 = _stage(4 * width, 8 * width, 2, norm)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(b, classes)``."""
        logits: Tensor = self.fc(self.seen(x))
        return logits

    def seen(self, x: Tensor) -> Tensor:
        """What the last layer sees; the mean over all pixels makes any image size possible."""
        x = functional.relu(_normed(self.scale(x, self.fc.weight.dtype), self.conv1, self.norm1))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((-2, -1))


def _stage(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride, norm)
    return nn.Sequential(first, BasicBlock(outputs, outputs, 1, norm))


def _conv(inputs: int, outputs: int, kernel: int, stride: int, norm: Norm) -> nn.Conv2d:
    # A normalisation has its own bias, which makes one of the convolution redundant.
    bias = norm == "none"
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)


def _normed(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    """A convolution and what follows it; in use, BatchNorm is folded into the convolution's weights.

    Not where somebody listens (a forward hook): then both are called.
    """
    apart = norm.training or conv._forward_hooks or norm._forward_hooks
    if apart or not isinstance(norm, nn.BatchNorm2d) or not isinstance(conv, nn.Conv2d):
        out: Tensor = norm(conv(x))
        return out
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    weight, bias = conv.weight * scale[:, None, None, None], norm.bias - mean * scale
    return functional.conv2d(x, weight, bias, conv.stride, conv.padding)


def _norm(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        # 32 groups as in Wu and He (2018), fewer where that leaves a channel alone in its group.
        return nn.GroupNorm(math.gcd(32, channels, channels // 2), channels)
    return nn.Identity()


def _convolutions(
    conv: type[nn.Conv1d | nn.Conv2d],
    pool: type[nn.MaxPool1d | nn.MaxPool2d],
    channels: tuple[int, ...],
) -> tuple[dict[str, nn.Module], int]:
    """Convolution of width 5, ReLU and pooling by 2 for every two channels; the last channels."""
    layers: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise(channels), 1):
        layers[f"conv{number}"] = conv(inputs, outputs, 5, padding=2)
        layers[f"relu_conv{number}"] = nn.ReLU()
        layers[f"pool{number}"] = pool(2)
    return layers, channels[-1]


def _pooled(length: int, stages: tuple[int, ...]) -> int:
    """What is left of a length that every stage halves."""
    left = length >> len(stages)
    if left == 0:
        raise SpecError(f"{len(stages)} poolings leave nothing of {length}: give fewer channels")
    return left


def _images(shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise SpecError(
            f"model {model} needs images (channels, height, width), not samples {shape}"
        )
    channels, height, width = shape
    return channels, height, width


def _imported(path: str) -> Callable[..., Any]:
    """The function at ``package.module:function``."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise SpecError(f"model custom: {path!r} is not of the form 'package.module:function'")
    try:
        found: Callable[..., Any] | None = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        hint = "is it installed, or its folder in PYTHONPATH?"
        raise SpecError(f"model custom: cannot import {module}: {error}; {hint}") from None
    if not callable(found):
        raise SpecError(f"model custom: module {module} has no function {name!r}")
    return found

"""Models that a specification can name, and the modules that they build.

Parameters start with torch's own initialisers; the caller seeds them. Every model takes a batch of samples
as they are stored, including ``uint8`` images, and returns logits ``(b, classes)``. For a regression
``classes`` is 1, and the one output is the prediction.
"""

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import msgspec
from torch import nn

from chronofed.core.config import Count, Integer, Kind, Number
from chronofed.core.errors import SpecError
from chronofed.core.user_code import import_name, user_code
from chronofed.models.layers import Classifier, Norm, ProgressiveNetwork, ResNet, Transpose


class ModelSettings(Kind):
    """Base of all models that a specification can name."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a new model for samples of this shape and this number of classes."""


class Linear(ModelSettings, tag="linear"):
    """Softmax regression, or linear regression, on the flattened sample; its loss is convex."""

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


class Progressive(ModelSettings, tag="progressive"):
    """A progressive network: columns of fully connected layers, each with connections from those before it.

    The backbone ``pnn`` trains one column after the other. A column is an ``mlp``; a gate, one number for each
    column, weighs their outputs. Parameters grow with the square of the number of columns.

    Attributes:
        columns: Number of columns.
        hidden: Widths of the hidden layers of a column.
    """

    columns: Count = 3
    hidden: tuple[Count, ...] = (200,)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build all columns; the gate is at the first."""
        return ProgressiveNetwork((math.prod(shape), *self.hidden, classes), self.columns)


class Cnn(ModelSettings, tag="cnn"):
    """The CNN of McMahan et al. (2017): 5x5 convolutions with 2x2 max pooling, one hidden layer.

    Attributes:
        channels: Channels after each convolution.
        fc: Width of the hidden layer.
    """

    channels: tuple[Count, ...] = (32, 64)
    fc: Count = 512

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build it; it has 1,663,370 parameters for 28x28 grey images and 10 classes."""
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
        """Build it; time comes first in a window and last in torch's convolutions, so the model swaps them."""
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
        norm: Normalisation after every convolution.
    """

    width: Count = 64
    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build it; it has 11,173,962 parameters for CIFAR-10 with the default settings."""
        channels, _, _ = _images(shape, "resnet18")
        return ResNet(channels, self.width, self.norm, classes)


class ResNetCifar(ModelSettings, tag="resnet-cifar"):
    """The residual networks of He et al. (2016) for CIFAR: three stages of basic blocks, ``6n + 2`` layers.

    Of the same width, ResNet-8 takes a third of the arithmetic of a ``resnet18``, with a tenth of its
    parameters. Shortcuts that change the shape are 1x1 convolutions.

    Attributes:
        depth: Number of layers with weights on the longest path: 8, 14, 20 and so on.
        width: Channels of the first stage; the publication has 16. Each further stage has twice as many.
        norm: Normalisation after every convolution.
        stride: Stride of the first convolution; the publication has 1. With 2 all stages work at half the
            resolution, which takes a quarter of the arithmetic.
    """

    depth: Literal[8, 14, 20, 26, 32, 44, 56] = 8
    width: Count = 16
    norm: Norm = "batch"
    stride: Literal[1, 2] = 1

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build it; ResNet-8 has 78,042 parameters for CIFAR-10 with the default settings."""
        channels, _, _ = _images(shape, "resnet-cifar")
        blocks = (self.depth - 2) // 6
        return ResNet(channels, self.width, self.norm, classes, 3, blocks, self.stride)


class Custom(ModelSettings, tag="custom"):
    """The user's own model: a function that takes ``shape=``, ``classes=`` and the options.

    For a regression ``classes`` is 1.

    Attributes:
        factory: The function: ``package.module:function``.
        options: More keyword arguments of the function.
    """

    factory: str
    options: dict[str, Integer | Number | str | bool] = msgspec.field(default_factory=dict)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Call the function.

        Raises:
            SpecError: If it cannot be imported or called, or does not return a module.
            UserCodeError: If it fails.
        """
        factory: Callable[..., Any] = import_name(self.factory, "model custom")
        if not callable(factory):
            raise SpecError(f"model custom: {self.factory} is no function")
        try:
            arguments = inspect.signature(factory).bind(
                shape=shape, classes=classes, **self.options
            )
        except (TypeError, ValueError) as error:
            raise SpecError(f"model custom: {self.factory} cannot be called: {error}") from None
        with user_code(f"model custom: {self.factory} failed"):
            model = factory(*arguments.args, **arguments.kwargs)
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise SpecError(f"model custom: {self.factory} returned {kind}, not a torch.nn.Module")
        return model


def _convolutions(
    conv: type[nn.Conv1d | nn.Conv2d],
    pool: type[nn.MaxPool1d | nn.MaxPool2d],
    channels: tuple[int, ...],
) -> tuple[dict[str, nn.Module], int]:
    """Return convolution of width 5, ReLU and pooling by 2 for every two channels, and the last channels."""
    layers: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise(channels), 1):
        layers[f"conv{number}"] = conv(inputs, outputs, 5, padding=2)
        layers[f"relu_conv{number}"] = nn.ReLU()
        layers[f"pool{number}"] = pool(2)
    return layers, channels[-1]


def _pooled(length: int, stages: tuple[int, ...]) -> int:
    """Return the length after every stage has halved it."""
    left = length >> len(stages)
    if left == 0:
        raise SpecError(
            f"{len(stages)} poolings reduce a length of {length} to 0: use fewer channels"
        )
    return left


def _images(shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise SpecError(
            f"model {model} needs images (channels, height, width), not samples {shape}"
        )
    channels, height, width = shape
    return channels, height, width

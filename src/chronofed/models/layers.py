"""Modules that the models of :mod:`chronofed.models.zoo` are made of."""

import math
from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["batch", "group", "none"]


class Scale(nn.Module):
    r"""Scale bytes, :math:`(x/255 - 0.5)/0.25`; other numbers count as scaled already.

    It has no parameters, so the caller passes the dtype of its own; the default is torch's.
    """

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Scale ``uint8``; keep the values of other dtypes."""
        dtype = dtype or torch.get_default_dtype()
        return x.to(dtype) * (4 / 255) - 2 if x.dtype == torch.uint8 else x.to(dtype)

    @staticmethod
    def inverse(z: Tensor) -> Tensor:
        """Return the bytes whose scaled values are nearest to ``z``."""
        return ((z + 2) * (255 / 4)).round_().clamp_(0, 255).to(torch.uint8)


class Classifier(nn.Module):
    """Scale samples, map them to a vector by ``features`` and to logits by ``fc``."""

    def __init__(self, layers: dict[str, nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.scale = Scale()
        self.features = nn.Sequential(OrderedDict(layers))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(b, classes)``."""
        out: Tensor = self.fc(self.embed(x))
        return out

    def embed(self, x: Tensor) -> Tensor:
        """Return the input of the last layer."""
        # The dtype is read here, not stored: torch.func may swap parameters in.
        out: Tensor = self.features(self.scale(x, self.fc.weight.dtype))
        return out


class Transpose(nn.Module):
    """Turn ``(b, time, channels)`` into ``(b, channels, time)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap the last two axes."""
        return x.transpose(-1, -2)


class Column(nn.Module):
    """One column of a progressive network: the layers of an MLP, and connections from earlier columns.

    Args:
        widths: Inputs, hidden layers and outputs.
        earlier: Number of columns before it.
    """

    def __init__(self, widths: tuple[int, ...], earlier: int) -> None:
        super().__init__()
        names = [f"fc{number}" for number in range(1, len(widths) - 1)] + ["fc"]
        for name, inputs, outputs in zip(names, widths, widths[1:], strict=False):
            self.add_module(name, nn.Linear(inputs, outputs))
        for name, inputs, outputs in zip(names[1:], widths[1:], widths[2:], strict=False):
            rows = [nn.Linear(inputs, outputs, bias=False) for _ in range(earlier)]
            self.add_module(f"from_{name}", nn.ModuleList(rows))
        self.names = tuple(names)

    def forward(self, x: Tensor, earlier: list[list[Tensor]]) -> list[Tensor]:
        """Return the outputs of all layers; ``earlier`` has those of the columns before."""
        outputs: list[Tensor] = []
        for number, name in enumerate(self.names):
            x = self.get_submodule(name)(x)
            if number:
                connections = self.get_submodule(f"from_{name}").children()
                for connection, column in zip(connections, earlier, strict=True):
                    x = x + connection(column[number - 1])
            x = x if name == "fc" else functional.relu(x)
            outputs.append(x)
        return outputs


class ProgressiveNetwork(nn.Module):
    """The module of :class:`~chronofed.models.zoo.Progressive`: columns, and a gate that weighs them."""

    def __init__(self, widths: tuple[int, ...], columns: int) -> None:
        super().__init__()
        self.scale = Scale()
        self.columns = nn.ModuleList(Column(widths, earlier) for earlier in range(columns))
        gate = torch.zeros(columns)
        gate[0] = 1
        self.gate = nn.Parameter(gate)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(b, classes)``."""
        x = self.scale(x, self.gate.dtype).flatten(1)
        outputs: list[list[Tensor]] = []
        for column in self.columns:
            outputs.append(column(x, outputs))
        weighed = [weight * own[-1] for weight, own in zip(self.gate, outputs, strict=True)]
        return torch.stack(weighed).sum(0)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

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
        """Add the shortcut before the last ReLU."""
        out = functional.relu(_normed(x, self.conv1, self.norm1))
        shortcut = _normed(x, *self.downsample) if len(self.downsample) else x
        return functional.relu(_normed(out, self.conv2, self.norm2) + shortcut)


class ResNet(nn.Module):
    """Residual networks for small images: :class:`~chronofed.models.zoo.ResNet18` and its kin for CIFAR.

    Args:
        channels: Channels of the images.
        width: Channels of the first stage; each further stage has twice as many, at half the resolution.
        norm: Normalisation after every convolution.
        classes: Number of logits.
        stages: Number of stages; their names are the usual ones, ``layer1`` and so on.
        blocks: Basic blocks of a stage.
        stride: Stride of the first convolution.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        norm: Norm,
        classes: int,
        stages: int = 4,
        blocks: int = 2,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.scale = Scale()
        self.conv1 = _conv(channels, width, 3, stride, norm)
        self.norm1 = _norm(norm, width)
        self.stages = tuple(f"layer{number}" for number in range(1, stages + 1))
        inputs = width
        for number, name in enumerate(self.stages):
            outputs = width << number
            self.add_module(name, _stage(inputs, outputs, 1 if number == 0 else 2, norm, blocks))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(b, classes)``."""
        logits: Tensor = self.fc(self.embed(x))
        return logits

    def embed(self, x: Tensor) -> Tensor:
        """Return the input of the last layer; the mean over all pixels allows any image size."""
        x = functional.relu(_normed(self.scale(x, self.fc.weight.dtype), self.conv1, self.norm1))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return x.mean((-2, -1))


def _stage(inputs: int, outputs: int, stride: int, norm: Norm, blocks: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride, norm)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1, norm) for _ in range(blocks - 1)))


def _conv(inputs: int, outputs: int, kernel: int, stride: int, norm: Norm) -> nn.Conv2d:
    # A normalisation layer has a bias of its own, which makes the convolution's redundant.
    bias = norm == "none"
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)


def _normed(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    """Apply a convolution and its normalisation; in evaluation, fold BatchNorm into the convolution.

    With a forward hook on either of them, both are called.
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
        # 32 groups as in Wu and He (2018); fewer if a group would have a single channel.
        return nn.GroupNorm(math.gcd(32, channels, channels // 2), channels)
    return nn.Identity()

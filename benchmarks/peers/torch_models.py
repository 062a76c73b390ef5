"""The models of ``workload.py`` as plain torch modules, for the peers that run on torch."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from workload import CLASSES, Clients, Workload, initial, layers, probe, scaled


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a short cut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def build(work: Workload) -> nn.Sequential:
    """The model with the first parameters of the workload."""
    model = {"mlp": _mlp, "cnn": _cnn, "resnet": _resnet}[work.model](work)
    put(model, initial(work))
    return model


def _mlp(_: Workload) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))


def _cnn(work: Workload) -> nn.Sequential:
    hidden = layers(work)[2].weight[1]
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=work.padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=work.padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(hidden, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def _resnet(_: Workload, width: int = 16) -> nn.Sequential:
    blocks: list[nn.Module] = []
    inputs = width
    for stage in range(4):
        outputs = width << stage
        blocks.append(BasicBlock(inputs, outputs, 2 if stage else 1))
        blocks.append(BasicBlock(outputs, outputs, 1))
        inputs = outputs
    stem = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*stem, *blocks, *head)


@torch.no_grad()
def put(model: nn.Module, params: Sequence[NDArray[np.floating]]) -> None:
    """Overwrite the parameters."""
    for mine, new in zip(model.parameters(), params, strict=True):
        mine.copy_(torch.from_numpy(np.asarray(new)))


def arrays(model: nn.Module) -> list[NDArray[np.floating]]:
    """A copy of the parameters."""
    return [param.detach().numpy().copy() for param in model.parameters()]


def tensors(data: Clients) -> list[tuple[Tensor, Tensor]]:
    """Every client's scaled images and labels, resident."""
    images, labels = torch.from_numpy(scaled(data.images)), torch.from_numpy(data.labels)
    return list(zip(images, labels, strict=True))


class Probe:
    """The loss on the workload's fixed batch."""

    def __init__(self, data: Clients) -> None:
        images, labels = probe(data)
        self.images, self.labels = torch.from_numpy(scaled(images)), torch.from_numpy(labels)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """In training mode, as the running statistics of a young BatchNorm say little."""
        kept = {name: value.clone() for name, value in model.named_buffers()}
        loss = functional.cross_entropy(model(self.images), self.labels).item()
        for name, value in model.named_buffers():
            value.copy_(kept[name])
        return loss

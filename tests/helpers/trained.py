"""Trained models that no run has made: the weights are random, the statistics of BatchNorm are not trivial."""

from pathlib import Path

import torch

from chronofed.data.preparation import Target
from chronofed.models.description import ModelDescription
from chronofed.models.exporting import example
from chronofed.models.trained import TrainedModel
from chronofed.models.zoo import Cnn, Cnn1d, Linear, Mlp, ResNet18, ResNetCifar

CLASSES = ("a", "b", "c")
ABOUT = {
    "linear": ModelDescription(model=Linear(), shape=(5,), classes=CLASSES),
    "mlp": ModelDescription(model=Mlp((7, 6)), shape=(5,), classes=CLASSES),
    "number": ModelDescription(model=Mlp((4,)), shape=(5,), scale=Target("y", 100.0, 7.0)),
    "cnn": ModelDescription(model=Cnn((3, 4), 8), shape=(1, 8, 8), dtype="uint8", classes=CLASSES),
    "cnn1d": ModelDescription(model=Cnn1d((3, 4), 8), shape=(12, 2), classes=CLASSES),
    "batch": ModelDescription(
        model=ResNet18(width=4), shape=(3, 8, 8), dtype="uint8", classes=CLASSES
    ),
    "group": ModelDescription(
        model=ResNetCifar(14, 4, "group", stride=2),
        shape=(3, 16, 16),
        dtype="uint8",
        classes=CLASSES,
    ),
}


def trained(name: str, folder: Path) -> TrainedModel:
    """Make a model by its name in ``ABOUT``."""
    about = ABOUT[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = about.model.build(about.shape, about.outputs)
        network.train()
        with torch.no_grad():
            for _ in range(3):
                network(example(about, 16))
    return TrainedModel(network, about, folder)

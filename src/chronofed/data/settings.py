"""Named image data sets in a specification."""

from pathlib import Path
from typing import Literal

from chronofed.data import registry
from chronofed.data.dataset import Dataset, DataSettings


class Images(DataSettings, tag="images"):
    """A named image data set; ``chronofed data list`` shows all.

    Attributes:
        name: Name of the data set.
        augment: ``crop-flip`` for random crops and flips of training images, as usual for CIFAR.
    """

    name: Literal["fashion-mnist-mini", "fashion-mnist", "cifar10", "cifar100"] = (
        "fashion-mnist-mini"
    )
    augment: Literal["none", "crop-flip"] = "none"

    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the data set."""
        return registry.load(self.name, folder)

"""A data set in memory: training samples that clients share out, and a test set that nobody trains on."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chronofed.config import Kind
from chronofed.types import Samples

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Origin:
    """Which client and which period every row came from, where the data say so."""

    clients: tuple[str, ...]  # names; codes point here
    periods: tuple[str, ...]  # names in time order, e.g. "2009-03"
    train_client: Codes  # (n,)
    train_period: Codes  # (n,)
    test_client: Codes  # (m,)
    test_period: Codes  # (m,)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test samples with the names of the classes."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    origin: Origin | None = None
    notes: tuple[str, ...] = ()  # what was left out or filled in, one line each

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def labels(self) -> Codes:
        """Training labels, for a scenario to share out."""
        return np.asarray(self.train.y.numpy(), dtype=np.int64)


class DataSettings(Kind):
    """Base of all data that a specification can name."""

    @abstractmethod
    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the data; ``folder`` is where to look first, ``seed`` decides what is held out."""

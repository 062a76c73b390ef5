"""A data set in RAM: training samples to split among clients, and a test set."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chronofed.core.config import Kind
from chronofed.core.types import Samples

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Origin:
    """Client and period of every row, for data that have them.

    Attributes:
        clients: Names; a code is a position here.
        periods: Names in time order, e.g. ``2009-03``; a code is a position here.
        train_client: Client of every training row.
        train_period: Period of every training row.
        test_client: Client of every test row.
        test_period: Period of every test row.
    """

    clients: tuple[str, ...]
    periods: tuple[str, ...]
    train_client: Codes  # (n,)
    train_period: Codes  # (n,)
    test_client: Codes  # (m,)
    test_period: Codes  # (m,)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test samples with the names of the classes.

    Attributes:
        name: Name of the data set.
        train: Training samples.
        test: Test samples.
        classes: Names of the classes.
        origin: Client and period of every row, if known.
        notes: Rows that were left out and values that were filled in, one line each.
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    origin: Origin | None = None
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def labels(self) -> Codes:
        """Training labels, for a scenario to split."""
        return np.asarray(self.train.y.numpy(), dtype=np.int64)


class DataSettings(Kind):
    """Base of all data that a specification can name."""

    @abstractmethod
    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the data; ``folder`` is searched first, ``seed`` chooses the test rows."""

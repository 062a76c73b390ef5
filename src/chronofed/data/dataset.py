"""A data set in RAM: training samples to split among clients, and a test set."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.config import Fraction, Kind
from chronofed.core.types import Samples
from chronofed.data.preparation import Preparation, Settled

Codes = NDArray[np.int64]
EvaluateOn = Literal["test", "validation"]


def _none() -> Codes:
    return np.zeros(0, dtype=np.int64)


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
        validation_client: Client of every validation row.
        validation_period: Period of every validation row.
    """

    clients: tuple[str, ...]
    periods: tuple[str, ...]
    train_client: Codes  # (n,)
    train_period: Codes  # (n,)
    test_client: Codes  # (m,)
    test_period: Codes  # (m,)
    validation_client: Codes = field(default_factory=_none)  # (v,)
    validation_period: Codes = field(default_factory=_none)  # (v,)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples by purpose, with the names of the classes.

    Attributes:
        name: Name of the data set.
        train: Training samples.
        test: Test samples.
        classes: Names of the classes.
        origin: Client and period of every row, if known.
        notes: Rows that were left out and values that were filled in, one line each.
        validation: Samples to choose settings by, if some are held out for that.
        preparation: How the columns of a table became features and classes.
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    origin: Origin | None = None
    notes: tuple[str, ...] = ()
    validation: Samples | None = None
    preparation: Preparation | None = None

    def evaluated_on(self, purpose: EvaluateOn) -> "Dataset":
        """Return the data to evaluate on as its test samples.

        For ``validation``, nothing of the test samples is left, so nothing can be chosen by them.
        """
        if purpose == "test":
            return self
        none = self.train[torch.zeros(0, dtype=torch.int64)]
        origin = self.origin and replace(
            self.origin,
            test_client=self.origin.validation_client,
            test_period=self.origin.validation_period,
        )
        samples = none if self.validation is None else self.validation
        return replace(self, test=samples, origin=origin)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def labels(self) -> Codes:
        """Training labels, for a scenario to split."""
        return np.asarray(self.train.y.numpy(), dtype=np.int64)


class DataSettings(Kind, kw_only=True):
    """Base of all data that a specification can name.

    Attributes:
        validation: Share of the training rows that is held out to choose settings by (``evaluate.on``).
    """

    validation: Fraction = 0.0

    @abstractmethod
    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the data; ``folder`` is searched first, ``seed`` chooses the test rows.

        If the result has no validation samples, they are taken from its training samples at random.
        """

    def load_settled(self, folder: Path | None, seed: int, settled: Settled) -> Dataset:
        """Read the data with what earlier training has settled, which is nothing but for a table."""
        return self.load(folder, seed)

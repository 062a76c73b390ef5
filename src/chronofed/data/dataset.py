"""A data set in RAM: training samples to split among clients, and a test set."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.config import Fraction, Kind
from chronofed.core.types import Samples
from chronofed.data.preparation import Preparation, Settled, Target
from chronofed.data.scales import Scales

Codes = NDArray[np.int64]
EvaluateOn = Literal["test", "validation"]
BINS = 10
"""Groups of equally many training samples that stand for classes where targets are numbers."""


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
        overlap: Number of later rows of its client that a row overlaps with, such as windows of a signal.
    """

    clients: tuple[str, ...]
    periods: tuple[str, ...]
    train_client: Codes  # (n,)
    train_period: Codes  # (n,)
    test_client: Codes  # (m,)
    test_period: Codes  # (m,)
    validation_client: Codes = field(default_factory=_none)  # (v,)
    validation_period: Codes = field(default_factory=_none)  # (v,)
    overlap: int = 0


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples by purpose, with the names of the classes.

    Without classes the targets are numbers, float32 and best scaled to deviations of about 1: a regression.

    Attributes:
        name: Name of the data set.
        train: Training samples.
        test: Test samples.
        classes: Names of the classes; empty if targets are numbers.
        origin: Client and period of every row, if known.
        notes: Rows that were left out and values that were filled in, one line each.
        validation: Samples to choose settings by, if some are held out for that.
        preparation: How the columns of a table became features and classes.
        scales: How far the features of every period lie from what the preparation was fitted on.
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    origin: Origin | None = None
    notes: tuple[str, ...] = ()
    validation: Samples | None = None
    preparation: Preparation | None = None
    scales: Scales | None = None

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

    def first_periods(self, periods: int) -> "Dataset":
        """Return the training rows of the first periods, and nothing that came later.

        Clients are numbered in the order in which they appear, so those that are left keep their numbers.
        """
        origin = self.origin
        if origin is None:
            return self
        early = origin.train_period < periods
        client = origin.train_client[early]
        clients = origin.clients[: int(client.max(initial=-1)) + 1]
        known = (clients, origin.periods[:periods], client, origin.train_period[early])
        cut = Origin(*known, _none(), _none(), overlap=origin.overlap)
        train, none = (self.train[torch.from_numpy(pick)] for pick in (early, np.zeros_like(early)))
        return replace(self, train=train, test=none, validation=None, origin=cut)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def scaling(self) -> Target:
        """The scale of targets that are numbers; 1 where the data do not say."""
        known = None if self.preparation is None else self.preparation.target
        return Target() if known is None else known

    @property
    def labels(self) -> Codes:
        """Training labels, for a scenario to split; of numbers, their bins (:attr:`groups`)."""
        return self.codes(self.train)

    def codes(self, samples: Samples) -> Codes:
        """Return the class of every sample; of numbers, the bin between quantiles of the training targets."""
        y = samples.y.numpy()
        if self.classes:
            return np.asarray(y, dtype=np.int64)
        return np.searchsorted(self._edges(), y, side="right").astype(np.int64)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the classes; of numbers, of at most ten bins with equally many training samples."""
        if self.classes:
            return self.classes
        scale = self.scaling
        edges = [f"{scale.mean + scale.deviation * edge:.4g}" for edge in self._edges().tolist()]
        inner = [f"{low} to {high}" for low, high in pairwise(edges)]
        return (f"below {edges[0]}", *inner, f"from {edges[-1]}") if edges else ("all",)

    def _edges(self) -> NDArray[np.float64]:
        """Return the inner edges of the bins; those that no sample lies below are left out."""
        y = self.train.y.numpy().astype(np.float64)
        if not len(y):
            return np.zeros(0)
        places = np.arange(1, BINS) / BINS
        edges: NDArray[np.float64] = np.unique(np.quantile(y, places, method="higher"))
        return np.asarray(edges[edges > y.min()])


class DataSettings(Kind, kw_only=True):
    """Base of all data that a specification can name.

    Attributes:
        validation: Share of the training rows that is held out to choose settings by (``evaluate.on``).
    """

    validation: Fraction = 0.0

    @property
    def timed(self) -> bool:
        """True if rows have a time, so that a model can be evaluated on the period that comes next."""
        return False

    def holding_out(self, test: float) -> "DataSettings":
        """Return the settings with this share of test rows, where they leave it open."""
        return self

    @abstractmethod
    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the data; ``folder`` is searched first, ``seed`` chooses the test rows.

        If the result has no validation samples, they are taken from its training samples at random.
        """

    def load_settled(self, folder: Path | None, seed: int, settled: Settled) -> Dataset:
        """Read the data with what earlier training has settled, which is nothing but for a table."""
        return self.load(folder, seed)

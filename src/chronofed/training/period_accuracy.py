r"""Accuracy by client and data set, and the measures that follow: forgetting and backward transfer.

With :math:`a_t(i, k)` the accuracy after round *t* on data set *k* of client *i*:

* forgetting: :math:`\max_{s \le t} a_s - a_t`, mean over the pairs that are followed;
* backward transfer: :math:`a_t - a_{t_0}`, where :math:`t_0` is the first evaluation after the pair was seen,
  mean over the pairs seen before that.

Where test samples name their client and period, accuracy is measured on those. Otherwise it is the accuracy on
the test set, reweighted to the classes of the data set.

Of a regression it is the mean absolute error in the target's units, where less is better: forgetting is its
rise since the least, backward transfer its fall since the first. Where test samples do not name their client
and period, bins of the target stand for classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import Visit

# client and key of a data set
Pair = tuple[int, int]
DIGITS = 5
# Classes that describe a data set.
MAIN_CLASSES = 3


@dataclass(slots=True)
class PeriodAccuracy:
    """The pairs of client and data set seen so far, each with its weights of the test samples."""

    data: Dataset
    # shares of the classes
    _classes: dict[Pair, NDArray[np.float64]] = field(default_factory=dict)
    # test rows of the pair's own, where test samples name their client and period
    _rows: dict[Pair, NDArray[np.int64]] = field(default_factory=dict)
    # classes of training and test samples, and the number of test samples of each class
    _labels: NDArray[np.int64] = field(init=False)
    _test_labels: NDArray[np.int64] = field(init=False)
    _tested: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._labels, self._test_labels = self.data.labels, self.data.codes(self.data.test)
        self._tested = np.bincount(self._test_labels, minlength=len(self.data.groups))

    def __len__(self) -> int:
        return len(self._classes)

    @property
    def basis(self) -> Literal["rows", "classes"]:
        """The samples of an accuracy: test rows of the pair's own, or the classes of the common test set."""
        return "classes" if self.data.origin is None else "rows"

    def visit(self, client: int, visit: Visit) -> bool:
        """Note the data set that a client holds; tell if it is new and can be measured."""
        pair = (client, visit.key)
        if pair in self._classes:
            return False
        counts = np.bincount(self._labels[visit.indices], minlength=len(self._tested))
        self._classes[pair] = counts / counts.sum()
        origin = self.data.origin
        if origin is not None:
            own = (origin.test_client == client) & (origin.test_period == visit.key)
            self._rows[pair] = np.flatnonzero(own)
        return self.tested(pair) > 0

    def tested(self, pair: Pair) -> int:
        """Count the test samples behind the accuracy of a pair."""
        if pair in self._rows:
            return len(self._rows[pair])
        return int(self._tested[self._classes[pair] > 0].sum())

    def accuracies(
        self, correct: NDArray[np.float64], pairs: Iterable[Pair] | None = None
    ) -> list[list[float]]:
        """Compute ``[client, key, accuracy]`` of some pairs, by default all, where they can be measured."""
        recall = self._recall(correct)
        return [
            [*pair, round(accuracy, DIGITS) if self.data.classes else accuracy]
            for pair in (self._classes if pairs is None else pairs)
            if (accuracy := self._accuracy(pair, self._classes[pair], recall, correct)) is not None
        ]

    def main_classes(self, pair: Pair) -> list[list[float]]:
        """Return ``[class, share]`` of the most frequent classes of a data set, for people."""
        shares = self._classes[pair]
        most = np.argsort(-shares, kind="stable")[:MAIN_CLASSES]
        return [[int(c), round(float(shares[c]), 2)] for c in most if shares[c] >= 0.005]

    def client_accuracy(self, client: int, correct: NDArray[np.float64]) -> float | None:
        """Average the accuracy over a client's data sets so far; ``None`` if none has test samples."""
        recall = self._recall(correct)
        found = [
            self._accuracy(pair, shares, recall, correct)
            for pair, shares in self._classes.items()
            if pair[0] == client
        ]
        measured = [accuracy for accuracy in found if accuracy is not None]
        return float(np.mean(measured)) if measured else None

    def _accuracy(
        self,
        pair: Pair,
        shares: NDArray[np.float64],
        recall: NDArray[np.float64],
        correct: NDArray[np.float64],
    ) -> float | None:
        if pair not in self._rows:
            return float(shares @ recall)
        own = self._rows[pair]
        return float(correct[own].mean()) if len(own) else None

    def _recall(self, correct: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute the accuracy on the test samples of each class; 0 for a class without any."""
        right = np.bincount(self._test_labels, weights=correct, minlength=len(self._tested))
        return np.asarray(right / np.maximum(self._tested, 1))


@dataclass(slots=True)
class AccuracyHistory:
    """First, best and latest accuracy of the pairs of the latest line of ``period_accuracy.jsonl``."""

    # of a regression: mean absolute errors, of which less is better
    lower: bool = False
    # round and accuracy
    first: dict[Pair, tuple[int, float]] = field(default_factory=dict)
    best: dict[Pair, float] = field(default_factory=dict)
    latest: dict[Pair, float] = field(default_factory=dict)
    round: int = 0

    @property
    def entry(self) -> Literal["accuracy", "error"]:
        """The entry of a line that holds the values."""
        return "error" if self.lower else "accuracy"

    @property
    def record(self) -> str:
        """The name of the record (:mod:`chronofed.training.records`)."""
        return f"period_{self.entry}"

    def add(self, line: Mapping[str, Any]) -> None:
        """Add one line; pairs that are no longer followed are dropped, because their numbers would be old."""
        self.round = int(line["round"])
        self.latest = {(int(c), int(k)): value for c, k, value in line[self.entry]}
        self.first = {p: self.first.get(p, (self.round, a)) for p, a in self.latest.items()}
        better = min if self.lower else max
        self.best = {p: better(self.best.get(p, a), a) for p, a in self.latest.items()}

    def measures(self) -> dict[str, float]:
        """Compute forgetting and backward transfer as of the latest line."""
        if not self.latest:
            return {}
        forgetting = [self.best[pair] - accuracy for pair, accuracy in self.latest.items()]
        old = [
            self.latest[pair] - accuracy
            for pair, (since, accuracy) in self.first.items()
            if since < self.round
        ]
        if self.lower:
            # Differences of errors, in the target's units: neither rounded nor of the same sign.
            measures = {"forgetting_mae": 0.0 - float(np.mean(forgetting))}
            return measures | ({"backward_transfer_mae": 0.0 - float(np.mean(old))} if old else {})
        measures = {"forgetting": round(float(np.mean(forgetting)), DIGITS)}
        return measures | ({"backward_transfer": round(float(np.mean(old)), DIGITS)} if old else {})

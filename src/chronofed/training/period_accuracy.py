r"""Accuracy by client and data set, and the measures that follow: forgetting and backward transfer.

With :math:`a_t(i, k)` the accuracy after round *t* on data set *k* of client *i*:

* forgetting: :math:`\max_{s \le t} a_s - a_t`, mean over all pairs seen;
* backward transfer: :math:`a_t - a_{t_0}`, where :math:`t_0` is the first evaluation after the pair was seen,
  mean over the pairs seen before that.

Where test samples name their client and period, accuracy is measured on those. Otherwise it is the accuracy on
the test set, reweighted to the classes of the data set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def __len__(self) -> int:
        return len(self._classes)

    def visit(self, client: int, visit: Visit) -> None:
        """Note the data set that a client holds."""
        pair = (client, visit.key)
        if pair in self._classes:
            return
        labels = self.data.labels[visit.indices]
        counts = np.bincount(labels, minlength=len(self.data.classes))
        self._classes[pair] = counts / counts.sum()
        origin = self.data.origin
        if origin is not None:
            own = (origin.test_client == client) & (origin.test_period == visit.key)
            self._rows[pair] = np.flatnonzero(own)

    def accuracies(self, correct: NDArray[np.bool_]) -> list[list[float]]:
        """Compute ``[client, key, accuracy]`` of every pair that can be measured, in the order of arrival."""
        recall = self._recall(correct)
        return [
            [client, key, round(accuracy, DIGITS)]
            for (client, key), shares in self._classes.items()
            if (accuracy := self._accuracy((client, key), shares, recall, correct)) is not None
        ]

    def main_classes(self, pair: Pair) -> list[list[float]]:
        """Return ``[class, share]`` of the most frequent classes of a data set, for people."""
        shares = self._classes[pair]
        most = np.argsort(-shares, kind="stable")[:MAIN_CLASSES]
        return [[int(c), round(float(shares[c]), 2)] for c in most if shares[c] >= 0.005]

    def client_accuracy(self, client: int, correct: NDArray[np.bool_]) -> float:
        """Average the accuracy over all data sets that one client held so far."""
        recall = self._recall(correct)
        found = [
            self._accuracy(pair, shares, recall, correct)
            for pair, shares in self._classes.items()
            if pair[0] == client
        ]
        return float(np.mean([accuracy for accuracy in found if accuracy is not None]))

    def _accuracy(
        self,
        pair: Pair,
        shares: NDArray[np.float64],
        recall: NDArray[np.float64],
        correct: NDArray[np.bool_],
    ) -> float | None:
        if pair not in self._rows:
            return float(shares @ recall)
        own = self._rows[pair]
        return float(correct[own].mean()) if len(own) else None

    def _recall(self, correct: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Compute the accuracy on the test samples of each class; 0 for a class without any."""
        labels, classes = self.data.test.y.numpy(), len(self.data.classes)
        total = np.bincount(labels, minlength=classes)
        right = np.bincount(labels, weights=correct, minlength=classes)
        return np.asarray(right / np.maximum(total, 1))


@dataclass(slots=True)
class AccuracyHistory:
    """First, best and latest accuracy of every pair, from the lines of ``period_accuracy.jsonl``."""

    # round and accuracy
    first: dict[Pair, tuple[int, float]] = field(default_factory=dict)
    best: dict[Pair, float] = field(default_factory=dict)
    latest: dict[Pair, float] = field(default_factory=dict)
    round: int = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        self.round = int(line["round"])
        for client, key, accuracy in line["accuracy"]:
            pair = (int(client), int(key))
            self.first.setdefault(pair, (self.round, accuracy))
            self.best[pair] = max(self.best.get(pair, 0.0), accuracy)
            self.latest[pair] = accuracy

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
        measures = {"forgetting": round(float(np.mean(forgetting)), DIGITS)}
        return measures | ({"backward_transfer": round(float(np.mean(old)), DIGITS)} if old else {})

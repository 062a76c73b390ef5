"""Quality of predictions where the target is known, summed over parts of a table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The smallest probability that counts: that of float32 that is not 0.
_LEAST = 1e-38


class PredictionMeasures:
    """Sums over rows, from which the measures follow.

    Attributes:
        rows: Rows with a known target.
        unknown: Rows whose class the model does not know: they count as wrong, and not for the log loss.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.rows = self.unknown = 0
        self._classes = len(classes)
        self._sums: dict[str, float] = {}
        # Deviations are summed from here, so that large targets do not cancel.
        self._origin = 0.0

    def add(self, target: NDArray[np.float64], outputs: NDArray[Any]) -> None:
        """Add rows: codes of classes and probabilities ``(n, classes)``, or numbers and numbers ``(n,)``."""
        if len(target):
            self._add_classes(target, outputs) if self._classes else self._add_numbers(
                target, outputs
            )
            self.rows += len(target)

    def result(self) -> dict[str, float]:
        r"""Return the measures; empty if no target is known.

        Accuracy and log loss :math:`-\frac1n\sum\ln p_{y}`; or MAE, RMSE and
        :math:`R^2 = 1 - \sum(y-\hat y)^2 / \sum(y-\bar y)^2`.
        """
        if not self.rows:
            return {}
        if self._classes:
            known = self.rows - self.unknown
            loss = {"log_loss": self._sums["loss"] / known} if known else {}
            return {"rows": self.rows, "accuracy": self._sums["right"] / self.rows, **loss}
        mean_sq = self._sums["error_sq"] / self.rows
        spread_sq = self._sums["target_sq"] / self.rows - (self._sums["target"] / self.rows) ** 2
        fit = {"r2": 1 - mean_sq / spread_sq} if spread_sq > 0 else {}
        error = self._sums["error"] / self.rows
        return {"rows": self.rows, "mae": error, "rmse": float(np.sqrt(mean_sq)), **fit}

    def _add_classes(self, target: NDArray[np.float64], outputs: NDArray[Any]) -> None:
        known = target >= 0
        self.unknown += int(np.count_nonzero(~known))
        codes, shares = target[known].astype(np.int64), outputs[known].astype(np.float64)
        true = shares[np.arange(len(codes)), codes]
        self._sum(right=shares.argmax(1) == codes, loss=-np.log(np.maximum(true, _LEAST)))

    def _add_numbers(self, target: NDArray[np.float64], outputs: NDArray[Any]) -> None:
        if not self.rows:
            self._origin = float(target.mean())
        error, moved = outputs - target, target - self._origin
        self._sum(error=abs(error), error_sq=error**2, target=moved, target_sq=moved**2)

    def _sum(self, **values: NDArray[Any]) -> None:
        for name, each in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(each.sum())

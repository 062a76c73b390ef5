"""The target of a table: classes or numbers, decided and scaled on the first periods alone."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.columns import Columns
from chronofed.data.dataset import Codes
from chronofed.data.preparation import Target

TaskChoice: TypeAlias = Literal["auto", "classification", "regression"]

MOST_CLASSES = 20
"""Distinct whole numbers that are taken for classes without asking."""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column to predict.

    Attributes:
        columns: The table.
        name: Name of the column.
        fitted: Rows that decide: training rows of the first periods.
    """

    columns: Columns
    name: str
    fitted: Codes

    def is_regression(self, task: TaskChoice) -> bool:
        """Decide whether to predict numbers: those with a fraction are, text and few whole numbers are classes.

        Raises:
            DataError: If it cannot be told, or the cells do not fit the task.
        """
        values = self.columns.values(self.name, self.fitted)
        numbers = values.dtype.kind == "f"
        if task == "regression" and not numbers:
            what = "dates" if values.dtype.kind == "M" else "text"
            raise DataError(f"{self._place} holds {what}, and a regression needs numbers")
        if task != "auto" or not numbers:
            return task == "regression"
        seen = values[self.fitted]
        if (seen % 1).any():
            return True
        distinct = len(np.unique(seen))
        if distinct > MOST_CLASSES:
            raise DataError(
                f"{self._place} has {distinct} different whole numbers in the {len(seen)} rows that decide: "
                "set data.task to 'regression' for numbers, or to 'classification' for classes"
            )
        return False

    def scaled(self, place: Codes) -> tuple[NDArray[np.float32], Target]:
        """Fit mean and deviation on the deciding rows; return the scaled numbers of some rows, and the scale.

        Raises:
            DataError: If a number is infinite, or too many deviations away for float32.
        """
        cells = self.columns.numbers(self.name)
        seen = cells[self.fitted].astype(np.float64)
        mean, deviation = float(seen.mean()), float(seen.std())
        # Rounding leaves a little deviation to equal numbers.
        varied = seen.min() < seen.max() and deviation > 0
        target = Target(self.name, mean, deviation if varied else 1.0)
        return scaled_numbers(self.columns, target, place), target

    @property
    def _place(self) -> str:
        return f"{self.columns.path}: target {self.name!r}"


def scaled_numbers(columns: Columns, target: Target, place: Codes) -> NDArray[np.float32]:
    """Return a column's numbers of some rows, scaled.

    Raises:
        DataError: If one is no finite number, also after scaling.
    """
    cells = columns.numbers(target.name)[place]
    with np.errstate(over="ignore"):
        scaled = ((cells - target.mean) / target.deviation).astype(np.float32)
    broken = np.flatnonzero(~np.isfinite(scaled))
    if len(broken):
        complaint = f"{cells[broken[0]]:g} is no number that can be predicted"
        raise columns.cell_error(target.name, int(place[broken[0]]), complaint)
    return scaled

"""Classes: those of the first periods or of a list, and a place for classes that come later.

The number of a model's outputs must not depend on the future. So the classes of a table are those of the
periods that it is fitted on, unless they are listed. A class that comes later is an error, or ``other``.
"""

from dataclasses import dataclass

import numpy as np

from chronofed.core.errors import DataError
from chronofed.data.columns import Categorical, Columns
from chronofed.data.dataset import Codes
from chronofed.data.rows import Rows

OTHER = "other"
"""Name of the class of all targets that are not listed."""
_REMEDIES = "list it in data.classes, or set data.other_class = true"


@dataclass(frozen=True, slots=True)
class ClassRule:
    """The classes of a table.

    Attributes:
        target: Column of the classes.
        listed: All classes in order; empty for those of the first periods.
        other: True to add a class for all others.
    """

    target: str
    listed: tuple[str, ...] = ()
    other: bool = False

    def fit(
        self, columns: Columns, rows: Rows, fitted: Codes, periods: int
    ) -> tuple[Codes, tuple[str, ...]]:
        """Return the class of every row, and the names of the classes in order.

        Args:
            columns: The table.
            rows: The rows that are used.
            fitted: Positions in the file of the training rows that are fitted on.
            periods: Number of first periods that are fitted on.
        """
        found = columns.labels(self.target, rows.place, fitted)
        names = self.listed or self._first(columns, rows, found, periods)
        if self.other and OTHER in names:
            complaint = f"target {self.target!r} has a class {OTHER!r} of its own"
            raise DataError(f"{columns.path}: {complaint}; leave data.other_class out")
        position = {name: code for code, name in enumerate(names)}
        unknown = len(names) if self.other else -1
        lookup = np.array([position.get(name, unknown) for name in found.distinct], np.int64)
        codes: Codes = lookup[found.codes]
        if (codes < 0).any():
            raise self._unknown(columns, rows, found, codes, periods)
        return codes, (*names, OTHER) if self.other else names

    def _first(
        self, columns: Columns, rows: Rows, found: Categorical, periods: int
    ) -> tuple[str, ...]:
        """Return the classes of the first periods; test rows count, so that all seeds have the same."""
        seen = np.unique(found.codes[rows.period < periods])
        names = tuple(found.distinct[k] for k in seen.tolist())
        if len(names) == 1 and not self.other:
            only = f"target {self.target!r} has only one class, {names[0]!r}"
            where = rows.names_until(periods)
            more = f", in {where}, the periods that are fitted on; list all in data.classes"
            later = len(found.distinct) > 1
            raise DataError(f"{columns.path}: {only}{more if later else ''}")
        return names

    def _unknown(
        self, columns: Columns, rows: Rows, found: Categorical, codes: Codes, periods: int
    ) -> DataError:
        first = int(np.flatnonzero(codes < 0)[0])
        name = found.distinct[found.codes[first]]
        if self.listed:
            problem = f"{name!r} is not a known class: {', '.join(self.listed)}; {_REMEDIES}"
            return columns.cell_error(self.target, int(rows.place[first]), problem)
        when = rows.periods[rows.period[first]]
        since = f"after the periods that are fitted on ({rows.names_until(periods)})"
        problem = f"class {name!r} of {self.target!r} first appears in {when}, {since}"
        return DataError(f"{columns.path}: {problem}; {_REMEDIES}")

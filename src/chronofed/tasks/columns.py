"""The user's own files as columns: CSV, Parquet and npz.

A column is a one-dimensional array of one of three kinds, told apart by its ``dtype``:

* numbers: ``float64``, missing is NaN;
* dates: ``datetime64[us]`` in UTC, missing is NaT;
* text: ``object`` holding ``str``, missing is ``""``.

Parquet and npz say what a column holds. A CSV file does not, so the kind is what at least half of
the cells that are not empty (or ``nan``) can be read as: numbers, else ISO 8601 dates, else text. A
cell that breaks the rule of its column is an error with its row, never a guess. A column is
converted when it is asked for, so one that nobody uses can hold anything.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronofed.errors import DataError
from chronofed.tasks.dataset import Codes

Column: TypeAlias = NDArray[Any]

_LARGEST = np.finfo(np.float32).max  # features become float32
_EXACT = 2**53  # beyond this, neighbouring integers are the same float64
_CHUNK = 2000  # rows of a CSV file that stay in the processor's cache while they are sorted out


@dataclass(frozen=True, slots=True)
class Labels:
    """Text cells, with every distinct text kept (and later parsed) once."""

    distinct: Sequence[str]
    codes: Codes  # (n,)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.codes.shape

    def text(self) -> Column:
        """One text per row."""
        return np.array(self.distinct, dtype=object)[self.codes]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one file.

    Attributes:
        path: The file, for messages.
        held: What the file holds under each name; in an npz file arrays of any number of axes.
        lines: Line of every row in a CSV file; elsewhere rows count from 1.
        untyped: Whether text may turn out to be numbers or dates, as in a CSV file.
    """

    path: Path
    held: Mapping[str, NDArray[Any] | Labels]
    lines: Sequence[int] | None = None
    untyped: bool = False

    def __getitem__(self, name: str) -> NDArray[Any] | Labels:
        if name not in self.held:
            raise DataError(f"{self.path}: no column {name!r}; {_nearest(name, list(self.held))}")
        return self.held[name]

    def rows(self, names: Iterable[str]) -> int:
        """Number of rows, which all these columns must agree on."""
        shapes = {name: self[name].shape for name in names}
        lengths = {shape[:1] for shape in shapes.values()}
        if len(lengths) != 1 or () in lengths:
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise DataError(f"{self.path}: arrays with different numbers of rows: {listed}")
        return int(lengths.pop()[0])

    def values(self, name: str) -> Column:
        """The column as numbers, dates or text."""
        held = self[name]
        if isinstance(held, Labels):
            return self._parsed(name, held) if self.untyped else held.text()
        return self._typed(name, held)

    def times(self, name: str) -> Column:
        """The column as numbers or dates; text is read as such even where the file says text."""
        held = self[name]
        column = self._parsed(name, held) if isinstance(held, Labels) else self.values(name)
        if column.dtype == object:
            row = int(np.flatnonzero(~missing(column))[0])
            complaint = f"{column[row]!r} is neither a date such as 2009-03-01 nor a number"
            raise self.refusal(name, row, complaint)
        return column

    def text(self, name: str) -> Column:
        """The column as text: names such as ``007`` or a 64-bit number are kept as they are."""
        held = self[name]
        if isinstance(held, Labels):
            return held.text()
        exact = held if held.dtype.kind in "biu" else self._typed(name, held)
        distinct, codes = np.unique(self._flat(name, exact), return_inverse=True)
        if exact.dtype.kind == "f" and np.any(np.abs(distinct) > _EXACT):
            complaint = "holds numbers beyond 2^53, which floats cannot tell apart: save it as text"
            raise DataError(f"{self.path}: column {name!r} {complaint}")
        return Labels([_label(value) for value in distinct.tolist()], codes).text()

    def refusal(self, name: str, row: int, complaint: str) -> DataError:
        """The error about one cell; ``row`` counts from 0."""
        number = self.lines[row] if self.lines is not None else row + 1
        return DataError(f"{self.path}, row {number}, column {name!r}: {complaint}")

    def tensor(self, name: str) -> NDArray[Any]:
        """An array of numbers with any number of axes after the rows, in its own precision."""
        held = self[name]
        if isinstance(held, Labels) or held.dtype.kind not in "biuf":
            raise DataError(f"{self.path}: array {name!r} does not hold numbers")
        return self._bounded(name, held)

    def _typed(self, name: str, array: NDArray[Any]) -> Column:
        if array.dtype.kind == "M":
            return self._flat(name, array).astype("datetime64[us]")
        if array.dtype.kind not in "biuf":
            raise DataError(f"{self.path}: column {name!r} holds neither numbers, dates nor text")
        return self._bounded(name, self._flat(name, array).astype(np.float64))

    def _flat(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if array.ndim != 1:
            complaint = f"has shape {array.shape}, where one value per row is needed"
            raise DataError(f"{self.path}: array {name!r} {complaint}")
        return array

    def _bounded(self, name: str, numbers: NDArray[Any]) -> NDArray[Any]:
        beyond = np.argwhere(np.abs(numbers) > _LARGEST)
        if len(beyond):
            first = tuple(beyond[0])
            complaint = f"{numbers[first]} is too large; numbers go up to {_LARGEST:.1e}"
            raise self.refusal(name, int(first[0]), complaint)
        return numbers

    def _parsed(self, name: str, labels: Labels) -> Column:
        """Text as the first kind that at least half of its cells have; then all must have it."""
        numbers = self._read_as(name, labels, _number, "number")
        if numbers is not None:
            return self._bounded(name, numbers.astype(np.float64)[labels.codes])
        dates = self._read_as(name, labels, _date, "date such as 2009-03-01")
        return labels.text() if dates is None else dates.astype("datetime64[us]")[labels.codes]

    def _read_as(
        self, name: str, labels: Labels, parse: Callable[[str], object], what: str
    ) -> Column | None:
        """The value of every distinct text; ``None`` if less than half of the cells have one."""
        counts = np.bincount(labels.codes, minlength=len(labels.distinct))
        present = np.array([cell != "" for cell in labels.distinct], dtype=np.bool_)
        values = np.array([_attempt(parse, cell) for cell in labels.distinct], dtype=object)
        unread = present & np.array([value is None for value in values], dtype=np.bool_)
        if 2 * counts[unread].sum() > counts[present].sum():
            return None
        if unread.any():
            row = int(np.flatnonzero(unread[labels.codes])[0])
            complaint = f"{labels.distinct[labels.codes[row]]!r} is not a {what}"
            raise self.refusal(name, row, f"{complaint}; leave a missing value empty")
        return values


def missing(column: Column) -> NDArray[np.bool_]:
    """Which entries of a column are missing."""
    if column.dtype == object:
        return np.asarray(column == "", dtype=np.bool_)
    return np.isnat(column) if column.dtype.kind == "M" else np.isnan(column)


def _attempt(parse: Callable[[str], object], cell: str) -> object:
    try:
        return parse(cell)
    except (ValueError, OverflowError):
        return None


def _number(cell: str) -> float:
    if "_" in cell:  # float("1_2") is 12
        raise ValueError(cell)
    return float(cell)


def _date(cell: str) -> datetime:
    month = re.fullmatch(r"\d{4}-\d{2}", cell)
    moment = datetime.fromisoformat(f"{cell}-01" if month else cell)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _label(value: float | datetime | None) -> str:
    """How a number or a date is called: ``7`` for 7.0, a date without its midnight."""
    if isinstance(value, datetime):
        return value.isoformat().removesuffix("T00:00:00")
    if value is None or np.isnan(value):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _nearest(name: str, names: Sequence[str]) -> str:
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f"did you mean {folded[close[0]]!r}?" if close else f"it has {', '.join(names)}"

"""Columns of the user's own files: CSV, Parquet and npz.

A column is a one-dimensional array of one of three kinds, distinguished by its ``dtype``:

* numbers: ``float64``, missing is NaN;
* dates: ``datetime64[us]`` in UTC, missing is NaT;
* text: ``object`` holding ``str``, missing is ``""``.

Parquet and npz files have types. A CSV file has none, so the kind of a column is the first of numbers, ISO
8601 dates and text that at least half of its cells can be parsed as; empty cells and ``nan`` do not count.
For a feature or target only the cells of the first periods decide, so that later rows cannot change what it
is. A cell that does not fit the kind of its column is an error with its row, never a guess. A column is
converted on first use, so a column that is not used can hold anything.
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

from chronofed.core.errors import DataError
from chronofed.data.dataset import Codes

Column: TypeAlias = NDArray[Any]

# Features become float32.
_LARGEST = np.finfo(np.float32).max
# Beyond this, neighbouring integers are the same float64.
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Categorical:
    """Text cells as codes; every distinct text is stored and parsed once."""

    distinct: Sequence[str]
    codes: Codes  # (n,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as of an array."""
        return self.codes.shape

    def text(self) -> Column:
        """Return one text per row."""
        return np.array(self.distinct, dtype=object)[self.codes]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one file.

    Attributes:
        path: The file, for messages.
        arrays: The columns by name; arrays of an npz file may have any number of axes.
        lines: Line of every row of a CSV file; in other files rows count from 1.
        untyped: True if text may be numbers or dates, as in a CSV file.
    """

    path: Path
    arrays: Mapping[str, NDArray[Any] | Categorical]
    lines: Sequence[int] | None = None
    untyped: bool = False

    def __getitem__(self, name: str) -> NDArray[Any] | Categorical:
        if name not in self.arrays:
            raise DataError(f"{self.path}: no column {name!r}; {_nearest(name, list(self.arrays))}")
        return self.arrays[name]

    def rows(self, names: Iterable[str]) -> int:
        """Return the number of rows, which must be the same for all these columns."""
        shapes = {name: self[name].shape for name in names}
        lengths = {shape[:1] for shape in shapes.values()}
        if len(lengths) != 1 or () in lengths:
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise DataError(f"{self.path}: arrays with different numbers of rows: {listed}")
        return int(lengths.pop()[0])

    def values(self, name: str, deciding: Codes | None = None) -> Column:
        """Return a column as numbers, dates or text; the ``deciding`` rows, by default all, decide which."""
        held = self[name]
        if isinstance(held, Categorical):
            return self._parsed(name, held, deciding) if self.untyped else held.text()
        return self._typed(name, held)

    def numbers(self, name: str) -> Column:
        """Return a column as numbers; refuse any other cell."""
        held = self[name]
        if not isinstance(held, Categorical):
            column = self._typed(name, held)
            if column.dtype.kind == "M":
                raise DataError(f"{self.path}: feature {name!r} contains dates; leave it out")
            return column
        read = [_try_parse(_number, text) for text in held.distinct if self.untyped and text]
        if not any(value is not None for value in read) and any(held.distinct):
            dates = self.untyped and any(_try_parse(_date, text) for text in held.distinct)
            kind, advice = ("dates", "leave it out") if dates else ("text", "list its categories")
            raise DataError(f"{self.path}: feature {name!r} contains {kind}; {advice}")
        # No row votes, so that every cell must be a number.
        return self._parsed(name, held, np.zeros(0, dtype=np.int64))

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the rows without a value."""
        held = self[name]
        if isinstance(held, Categorical):
            empty = np.fromiter((text == "" for text in held.distinct), np.bool_)
            return np.asarray(empty[held.codes], dtype=np.bool_)
        return missing(self._typed(name, held))

    def times(self, name: str) -> Column:
        """Return a column as numbers or dates; text is parsed, even in a file with types."""
        held = self[name]
        column = self._parsed(name, held) if isinstance(held, Categorical) else self.values(name)
        if column.dtype == object:
            row = int(np.flatnonzero(~missing(column))[0])
            complaint = f"{column[row]!r} is neither a date such as 2009-03-01 nor a number"
            raise self.cell_error(name, row, complaint)
        return column

    def text(self, name: str) -> Column:
        """Return a column as text; names such as ``007`` and 64-bit integers keep all digits."""
        held = self[name]
        if isinstance(held, Categorical):
            return held.text()
        exact = held if held.dtype.kind in "biu" else self._typed(name, held)
        distinct, codes = np.unique(self._flat(name, exact), return_inverse=True)
        if exact.dtype.kind == "f" and np.any(np.abs(distinct) > _EXACT):
            complaint = "holds numbers beyond 2^53, which floats cannot tell apart: save it as text"
            raise DataError(f"{self.path}: column {name!r} {complaint}")
        return Categorical([_name(value) for value in distinct.tolist()], codes).text()

    def cell_error(self, name: str, row: int, complaint: str) -> DataError:
        """Return an error about one cell; ``row`` counts from 0."""
        number = self.lines[row] if self.lines is not None else row + 1
        return DataError(f"{self.path}, row {number}, column {name!r}: {complaint}")

    def tensor(self, name: str) -> NDArray[Any]:
        """Return an array of numbers with any number of axes after the rows, in its own precision."""
        held = self[name]
        if isinstance(held, Categorical) or held.dtype.kind not in "biuf":
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
            raise self.cell_error(name, int(first[0]), complaint)
        return numbers

    def _parsed(self, name: str, cells: Categorical, deciding: Codes | None = None) -> Column:
        """Parse text as the first kind that fits at least half of its deciding cells; then all must fit."""
        votes = cells.codes if deciding is None else cells.codes[deciding]
        counts = np.bincount(votes, minlength=len(cells.distinct))
        numbers = self._read_as(name, cells, counts, _number, "number")
        if numbers is not None:
            return self._bounded(name, numbers.astype(np.float64)[cells.codes])
        dates = self._read_as(name, cells, counts, _date, "date such as 2009-03-01")
        return cells.text() if dates is None else dates.astype("datetime64[us]")[cells.codes]

    def _read_as(
        self,
        name: str,
        cells: Categorical,
        counts: Codes,
        parse: Callable[[str], object],
        what: str,
    ) -> Column | None:
        """Parse every distinct text; return ``None`` if less than half of the cells counted fit."""
        present = np.array([text != "" for text in cells.distinct], dtype=np.bool_)
        values = np.array([_try_parse(parse, text) for text in cells.distinct], dtype=object)
        unread = present & np.array([value is None for value in values], dtype=np.bool_)
        if 2 * counts[unread].sum() > counts[present].sum():
            return None
        if unread.any():
            row = int(np.flatnonzero(unread[cells.codes])[0])
            complaint = f"{cells.distinct[cells.codes[row]]!r} is not a {what}"
            raise self.cell_error(name, row, f"{complaint}; leave a missing value empty")
        return values


def missing(column: Column) -> NDArray[np.bool_]:
    """Return a mask of the missing entries of a column."""
    if column.dtype == object:
        return np.asarray(column == "", dtype=np.bool_)
    return np.isnat(column) if column.dtype.kind == "M" else np.isnan(column)


def _try_parse(parse: Callable[[str], object], cell: str) -> object:
    try:
        return parse(cell)
    except (ValueError, OverflowError):
        return None


def _number(cell: str) -> float:
    # Python reads "1_2" as 12.
    if "_" in cell:
        raise ValueError(cell)
    return float(cell)


def _date(cell: str) -> datetime:
    month = re.fullmatch(r"\d{4}-\d{2}", cell)
    moment = datetime.fromisoformat(f"{cell}-01" if month else cell)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _name(value: float | datetime | None) -> str:
    """Name a number or a date: ``7`` for 7.0, a date without its midnight."""
    if isinstance(value, datetime):
        return value.isoformat().removesuffix("T00:00:00")
    if value is None or np.isnan(value):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _nearest(name: str, names: Sequence[str]) -> str:
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f"did you mean {folded[close[0]]!r}?" if close else f"it has {', '.join(names)}"

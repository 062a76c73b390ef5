"""Columns of the user's own files: CSV, Parquet and npz.

A column is a one-dimensional array of one of three kinds, distinguished by its ``dtype``:

* numbers: ``float64``, missing is NaN;
* dates: ``datetime64[us]`` in UTC, missing is NaT;
* text: ``object`` holding ``str``, missing is ``""``.

Parquet and npz files have types. A CSV file has none, so the kind of a column is the first of numbers, dates
and text that at least half of its cells can be parsed as; missing cells do not count.
For a feature or target only the cells of the first periods decide, so that later rows cannot change what it
is. A cell that does not fit the kind of its column is an error with its row, never a guess. A column is
converted on first use, so a column that is not used can hold anything.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.cells import DateOrder, Parsed, read_dates, read_numbers
from chronofed.data.dataset import Codes

Column: TypeAlias = NDArray[Any]

# Features become float32.
_LARGEST = np.finfo(np.float32).max
# Beyond this, neighbouring integers are the same float64.
_EXACT = 2**53
_NO_TIME = "is neither a date such as 2009-03-01 nor a number"


@dataclass(frozen=True, slots=True)
class Categorical:
    """Text cells as codes; every distinct text is stored and parsed once."""

    distinct: Sequence[str]
    codes: NDArray[np.integer[Any]]  # (n,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as of an array."""
        return self.codes.shape

    def texts(self) -> Column:
        """Return the distinct texts as an array."""
        texts = np.empty(len(self.distinct), dtype=object)
        texts[:] = list(self.distinct)
        return texts

    def text(self) -> Column:
        """Return one text per row."""
        text: Column = self.texts()[self.codes]
        return text


@dataclass(frozen=True, slots=True)
class Moments:
    """A column of times.

    Attributes:
        values: Numbers or dates; dates with an offset are in UTC.
        zoned: True if dates have an offset.
        order: Order of day and month, if the dates do not begin with the year.
    """

    values: Column  # (n,)
    zoned: bool = False
    order: DateOrder = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one file.

    Attributes:
        path: The file, for messages.
        arrays: The columns by name; arrays of an npz file may have any number of axes.
        lines: Line of every row of a CSV file; in other files rows count from 1.
        untyped: True if text may be numbers or dates, as in a CSV file.
        zoned: Columns whose dates have a time zone, in files with types; the arrays hold UTC.
    """

    path: Path
    arrays: Mapping[str, NDArray[Any] | Categorical]
    lines: Sequence[int] | None = None
    untyped: bool = False
    zoned: frozenset[str] = frozenset()

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
        if any(held.distinct) and not (self.untyped and _some(read_numbers(held.distinct))):
            dates = self.untyped and _some(read_dates(held.distinct))
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
        return self.moments(name).values

    def moments(self, name: str, form: str = "", zone: Any = None) -> Moments:
        """Return a column as times.

        Args:
            name: The column.
            form: Format of dates, as of ``strptime``; by default the usual ways to write them.
            zone: Zone of dates without an offset where others have one; by default UTC.
        """
        held = self.coded(name) if form else self[name]
        if not isinstance(held, Categorical):
            return Moments(self._typed(name, held), name in self.zoned)
        counts = np.bincount(held.codes, minlength=len(held.distinct))
        numbers = None if form else self._fitting(name, held, counts, read_numbers(held.distinct))
        if numbers is not None:
            return Moments(self._bounded(name, numbers.values[held.codes]))
        dates = read_dates(held.distinct, form, zone)
        if dates.doubt:
            raise self._doubt(name, held, dates.doubt)
        strict = form and dates.unread.any()
        if strict or self._fitting(name, held, counts, dates, "date") is None:
            raise self._no_time(name, held, dates, form)
        return Moments(dates.values[held.codes], dates.zoned, dates.order)

    def _no_time(self, name: str, held: Categorical, dates: Parsed, form: str) -> DataError:
        row = int(np.flatnonzero(dates.unread[held.codes])[0])
        cell = repr(held.distinct[held.codes[row]])
        wanted = f"is not a date of the format {form!r}"
        return self.cell_error(name, row, f"{cell} {wanted if form else _NO_TIME}")

    def _doubt(self, name: str, held: Categorical, cell: str) -> DataError:
        row = int(np.flatnonzero(held.codes == list(held.distinct).index(cell))[0])
        choices = "date_format = '%d/%m/%Y' or '%m/%d/%Y'"
        complaint = f"{cell!r}: day or month first? Both fit all dates; set {choices}"
        return self.cell_error(name, row, complaint)

    def text(self, name: str) -> Column:
        """Return a column as text; names such as ``007`` and 64-bit integers keep all digits."""
        return self.coded(name).text()

    def coded(self, name: str) -> Categorical:
        """Return a column as text, by codes."""
        held = self[name]
        if isinstance(held, Categorical):
            return held
        exact = held if held.dtype.kind in "biu" else self._typed(name, held)
        distinct, codes = np.unique(self._flat(name, exact), return_inverse=True)
        if exact.dtype.kind == "f" and np.any(np.abs(distinct) > _EXACT):
            complaint = "holds numbers beyond 2^53, which floats cannot tell apart: save it as text"
            raise DataError(f"{self.path}: column {name!r} {complaint}")
        return Categorical([_name(value) for value in distinct.tolist()], codes)

    def labels(self, name: str, place: Codes, deciding: Codes) -> Categorical:
        """Return the classes of some rows, sorted by value: whole numbers or text.

        Args:
            name: The column.
            place: The rows, which have a value.
            deciding: Rows that decide what the column holds.
        """
        held = self[name]
        if isinstance(held, Categorical):
            votes = held.codes[deciding]
            values = self._distinct(name, held, votes) if self.untyped else held.texts()
            codes = held.codes[place]
        else:
            values, codes = np.unique(self._typed(name, held)[place], return_inverse=True)
        if values.dtype.kind == "M":
            raise DataError(f"{self.path}: target {name!r} holds dates, not classes")
        used, code = np.unique(codes, return_inverse=True)
        values = values[used]
        if values.dtype.kind == "f":
            self._check_whole(name, values, code, place)
        values, merged = np.unique(values, return_inverse=True)
        return Categorical([_name(each) for each in values.tolist()], merged[code])

    def _check_whole(self, name: str, values: Column, code: Codes, place: Codes) -> None:
        broken = np.flatnonzero((values % 1 != 0)[code])
        if len(broken):
            advice = "use whole numbers or text, or set data.task = 'regression'"
            complaint = f"{values[code[broken[0]]]} is not a class; {advice}"
            raise self.cell_error(name, int(place[broken[0]]), complaint)

    def extended(self, arrays: Mapping[str, NDArray[Any] | Categorical]) -> "Columns":
        """Return the same table with more columns."""
        return replace(self, arrays={**self.arrays, **arrays})

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
        column = self._distinct(name, cells, votes)[cells.codes]
        return self._bounded(name, column) if column.dtype.kind == "f" else column

    def _distinct(self, name: str, cells: Categorical, votes: NDArray[np.integer[Any]]) -> Column:
        """Return every distinct text as a number, date or text."""
        counts = np.bincount(votes, minlength=len(cells.distinct))
        numbers = self._fitting(name, cells, counts, read_numbers(cells.distinct))
        if numbers is not None:
            return numbers.values
        dates = self._fitting(name, cells, counts, read_dates(cells.distinct), "date")
        return cells.texts() if dates is None else dates.values

    def _fitting(
        self, name: str, cells: Categorical, counts: Codes, parsed: Parsed, what: str = "number"
    ) -> Parsed | None:
        """Return what was parsed; ``None`` if less than half of the cells counted fit."""
        present = np.fromiter((text != "" for text in cells.distinct), np.bool_, len(counts))
        unread = parsed.unread
        if 2 * counts[unread].sum() > counts[present].sum():
            return None
        if unread.any():
            row = int(np.flatnonzero(unread[cells.codes])[0])
            kind = f"{what} such as 2009-03-01" if what == "date" else what
            complaint = f"{cells.distinct[cells.codes[row]]!r} is not a {kind}"
            advice = "leave a missing value empty, or list its mark in missing"
            raise self.cell_error(name, row, f"{complaint}; {advice}")
        return parsed


def _some(parsed: Parsed) -> bool:
    """Tell if a text could be read."""
    read = ~(
        np.isnat(parsed.values) if parsed.values.dtype.kind == "M" else np.isnan(parsed.values)
    )
    return bool(read.any())


def missing(column: Column) -> NDArray[np.bool_]:
    """Return a mask of the missing entries of a column."""
    if column.dtype == object:
        return np.asarray(column == "", dtype=np.bool_)
    return np.isnat(column) if column.dtype.kind == "M" else np.isnan(column)


def _name(value: str | float | datetime | None) -> str:
    """Name a number or a date: ``7`` for 7.0, a date without its midnight."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat().removesuffix("T00:00:00")
    if value is None or np.isnan(value):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _nearest(name: str, names: Sequence[str]) -> str:
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f"did you mean {folded[close[0]]!r}?" if close else f"it has {', '.join(names)}"

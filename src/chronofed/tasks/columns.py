"""The user's own files as columns: CSV, Parquet and npz.

A column is a one-dimensional array of one of three kinds, told apart by its ``dtype``:

* numbers: ``float64``, missing is NaN;
* dates: ``datetime64[us]`` in UTC, missing is NaT;
* text: ``object`` holding ``str``, missing is ``""``.

Parquet and npz say what a column holds. A CSV file does not, so the kind is what at least half of
the cells that are not empty can be read as: numbers, else ISO 8601 dates, else text. A cell that
breaks the rule of its column is an error with its row, never a guess. A column is converted when it
is asked for, so one that nobody uses can hold anything.
"""

import csv
import difflib
import re
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronofed.errors import DataError, MissingExtraError
from chronofed.tasks.dataset import Codes

Column: TypeAlias = NDArray[Any]

_LARGEST = float(np.finfo(np.float32).max)  # features become float32
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


def read(path: Path) -> Columns:
    """Read a file by its ending: ``.csv``, ``.tsv``, ``.parquet`` or ``.npz``."""
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown ending {path.suffix!r}; use {', '.join(readers)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        return reader(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({_line(error)})") from None


def missing(column: Column) -> NDArray[np.bool_]:
    """Which entries of a column are missing."""
    if column.dtype == object:
        return np.asarray(column == "", dtype=np.bool_)
    return np.isnat(column) if column.dtype.kind == "M" else np.isnan(column)


def _read_csv(path: Path) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _from_csv(path, file)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason})") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error})") from None


class _Codes(dict[str, int]):
    """Gives every new text the next number, at the speed of a dictionary for those seen before."""

    def __missing__(self, cell: str) -> int:
        return self.setdefault(cell, len(self))


def _from_csv(path: Path, file: TextIO) -> Columns:
    reader = csv.reader(file, delimiter=_delimiter(file), strict=True)
    names = _header(path, next(reader, []))
    known = [_Codes() for _ in names]
    codes = [array("q") for _ in names]
    lines: list[int] = []
    rows = _rows(path, reader, len(names), lines)
    while chunk := list(islice(rows, _CHUNK)):
        for column, table, cells in zip(codes, known, zip(*chunk, strict=True), strict=True):
            column.extend(map(table.__getitem__, cells))
    labels = (
        Labels([_cleaned(cell) for cell in table], np.array(column, np.int64))
        for table, column in zip(known, codes, strict=True)
    )
    return Columns(path, dict(zip(names, labels, strict=True)), lines, untyped=True)


def _delimiter(file: TextIO) -> str:
    """The mark that splits the header into most names."""
    first = file.readline()
    file.seek(0)
    return max(",;\t|", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _rows(path: Path, reader: Any, width: int, lines: list[int]) -> Iterator[list[str]]:  # noqa: ANN401
    """All rows but blank lines; ``lines`` receives where each one ends."""
    for row in reader:
        if row and len(row) != width:
            complaint = f"{len(row)} cells where the header has {width}"
            raise DataError(f"{path}, row {reader.line_num}: {complaint}")
        if row:
            lines.append(reader.line_num)
            yield row


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if not names:
        raise DataError(f"{path}: no columns")
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} has no name")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: more than one column is called {twice[0]!r}")
    return names


def _cleaned(cell: str) -> str:
    stripped = cell.strip()
    return "" if stripped in ("nan", "NaN") else stripped


def _read_parquet(path: Path) -> Columns:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading Parquet") from None
    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a Parquet file ({_line(error)})") from None
    names = _header(path, table.column_names)
    held = (_from_arrow(column, pa) for column in table.columns)
    return Columns(path, dict(zip(names, held, strict=True)))


def _from_arrow(column: Any, pa: Any) -> NDArray[Any] | Labels:  # noqa: ANN401
    """One Parquet column; what is of no kind here becomes ``None``, refused where it is used."""
    is_a, kind = pa.types, column.type
    if is_a.is_dictionary(kind):
        return _from_arrow(column.cast(kind.value_type), pa)
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        coded = column.fill_null("").combine_chunks().dictionary_encode()
        distinct = [cell.strip() for cell in coded.dictionary.to_pylist()]
        return Labels(distinct, coded.indices.to_numpy().astype(np.int64))
    if is_a.is_timestamp(kind) or is_a.is_date(kind):
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
    elif is_a.is_boolean(kind) or is_a.is_decimal(kind):
        column = column.cast(pa.int8() if is_a.is_boolean(kind) else pa.float64())
    elif not (is_a.is_integer(kind) or is_a.is_floating(kind)):
        return np.full(len(column), None, dtype=object)
    return np.asarray(column.to_numpy())


def _read_npz(path: Path) -> Columns:
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path}: not an npz file") from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise DataError(f"{path}: a single array, not an npz file of named arrays")
    with file:
        return Columns(path, {name: _from_npz(path, file, name) for name in file.files})


def _from_npz(path: Path, file: Mapping[str, Any], name: str) -> NDArray[Any] | Labels:
    try:
        held: NDArray[Any] = file[name]
    except ValueError:
        complaint = "is pickled, and a pickle can run code: save it as numbers, text or dates"
        raise DataError(f"{path}: array {name!r} {complaint}") from None
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: array {name!r} is damaged ({_line(error)})") from None
    if held.dtype.kind == "U" and held.ndim == 1:
        distinct, codes = np.unique(held, return_inverse=True)
        return Labels([cell.strip() for cell in distinct.tolist()], codes)
    return held


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


def _line(error: Exception) -> str:
    """The first line of a foreign message."""
    return (str(error).splitlines() or [type(error).__name__])[0]

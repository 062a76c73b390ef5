"""Read large CSV files with pyarrow.

A file is read in blocks, all cells as text. A column stays text by codes as long as few texts differ. A
column of many different texts becomes numbers if every cell is one, so that ten million rows fit into memory;
names of clients and classes stay text. The result is that of :mod:`chronofed.data.csv_files`; a file that
pyarrow and the standard library could understand differently is left to the latter.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.data.cells import cleaned, read_numbers
from chronofed.data.columns import Categorical, Columns
from chronofed.data.csv_files import line_of, read_header

_BLOCK_BYTES = 2**23
# Texts of a column that are kept by codes, at most, if they are numbers; and if they are not.
_DISTINCT = 2**16
_TEXTS = 2**20


def has_arrow() -> bool:
    """Tell if pyarrow is installed."""
    try:
        import pyarrow.csv  # noqa: F401
    except ImportError:
        return False
    return True


def read_arrow_csv(path: Path, missing: frozenset[str], text: frozenset[str]) -> Columns | None:
    """Read a CSV file; ``None`` if only the standard library is sure to read it right.

    Args:
        path: The file.
        missing: Texts that stand for a missing value.
        text: Columns that stay text by codes, however many texts differ.
    """
    import pyarrow as pa

    try:
        names, delimiter = read_header(path)
        if not _plainly_quoted(path, delimiter):
            return None
        columns = _read_columns(path, names, delimiter, missing, text)
    # The other reader says what is wrong, and in which row.
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    # One by one, so that blocks are given back.
    held = {name: columns.pop(0).finish() for name in names}
    rows = held[names[0]].shape[0]
    return Columns(path, held, _Lines(path, rows, len(names)), untyped=True)


def _read_columns(
    path: Path, names: list[str], delimiter: str, missing: frozenset[str], text: frozenset[str]
) -> list["_TextColumn"]:
    """Read all blocks; once more if a column of numbers ends as one of text."""
    raw: set[int] = set()
    while True:
        columns = [_TextColumn(missing, name in text, k in raw) for k, name in enumerate(names)]
        for batch in _batches(path, len(names), delimiter):
            late = {k for k, cells in enumerate(batch.columns) if not columns[k].add(cells)}
            if late:
                raw |= late
                break
        else:
            return columns


def _batches(path: Path, width: int, delimiter: str) -> Iterator[Any]:
    """Yield blocks of rows, all cells as text."""
    import pyarrow as pa
    from pyarrow import csv

    names = [str(k) for k in range(width)]
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, null_values=[]
    )
    read = csv.ReadOptions(
        use_threads=False, block_size=_BLOCK_BYTES, column_names=names, skip_rows_after_names=1
    )
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with csv.open_csv(path, read, parse, convert) as reader:
        yield from reader


def _plainly_quoted(path: Path, delimiter: str) -> bool:
    """Tell if every quote opens a cell, closes it, or is doubled in it; readers differ about others."""
    ends = np.frombuffer(f'{delimiter}\r\n"'.encode(), np.uint8)
    inside, before = 0, ends[0]
    with path.open("rb") as file:
        start = file.read(3)
        file.seek(3 if start == b"\xef\xbb\xbf" else 0)
        block = file.read(_BLOCK_BYTES)
        while block:
            following = file.read(_BLOCK_BYTES)
            after = np.uint8(following[0]) if following else ends[0]
            around = np.frombuffer(block, np.uint8)
            quotes = np.flatnonzero(around == ord('"'))
            closing = (np.arange(len(quotes)) + inside) % 2 == 1
            left = np.concatenate([[before], around[:-1]])[quotes]
            right = np.concatenate([around[1:], [after]])[quotes]
            if not np.isin(np.where(closing, right, left), ends).all():
                return False
            inside, before, block = inside + len(quotes), around[-1], following
    return inside % 2 == 0


class _Growing:
    """An array that grows in place; joining many small ones would leave holes in memory."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._held: NDArray[Any] = np.empty(_DISTINCT, dtype)
        self._length = 0

    def extend(self, values: NDArray[Any]) -> None:
        """Append numbers."""
        end = self._length + len(values)
        if end > len(self._held):
            # Pages that nobody has written to take no memory.
            self._held.resize(max(end, 2 * len(self._held)), refcheck=False)
        self._held[self._length : end] = values
        self._length = end

    def finish(self) -> NDArray[Any]:
        """Return the array, and give back what is left."""
        self._held.resize(self._length, refcheck=False)
        return self._held


class _TextColumn:
    """A column that is read block by block: as codes, then as numbers or as many texts."""

    def __init__(self, missing: frozenset[str], text: bool, raw: bool) -> None:
        self._missing, self._text, self._raw = missing, text, raw
        self._position: dict[str, int] = {}
        self._codes = _Growing(np.int32)
        self._numbers: _Growing | None = None
        self._texts: list[Any] | None = None

    def add(self, cells: Any) -> bool:
        """Take the next cells; return False if they are text after numbers whose texts are gone."""
        if self._texts is not None:
            self._texts.append(cells)
        elif self._numbers is not None:
            numbers = _as_numbers(cells, self._missing)
            if numbers is None:
                return False
            self._numbers.extend(numbers)
        else:
            self._add_codes(cells)
        return True

    def finish(self) -> Categorical | NDArray[np.float64]:
        """Return the column."""
        if self._texts is not None:
            count = sum(map(len, self._texts))
            return Categorical(_Texts(self._texts, self._missing), np.arange(count, dtype=np.int32))
        if self._numbers is not None:
            return self._numbers.finish()
        distinct = [cleaned(cell, self._missing) for cell in self._position]
        return Categorical(distinct, self._codes.finish())

    def _add_codes(self, cells: Any) -> None:
        coded, position = cells.dictionary_encode(), self._position
        texts = coded.dictionary.to_pylist()
        places = (position.setdefault(cell, len(position)) for cell in texts)
        lookup = np.fromiter(places, np.int32, len(texts))
        self._codes.extend(lookup[coded.indices.to_numpy()])
        if len(position) > (_TEXTS if self._raw else _DISTINCT) and not self._text:
            self._leave_codes()

    def _leave_codes(self) -> None:
        """Keep numbers from now on if all texts so far are numbers; too many others as they are."""
        import pyarrow as pa

        distinct = pa.array(list(self._position), pa.string())
        values = None if self._raw else _as_numbers(distinct, self._missing)
        if values is not None:
            self._numbers = _Growing(np.float64)
            self._numbers.extend(values[self._codes.finish()])
        elif len(distinct) > _TEXTS:
            self._texts = [distinct.take(pa.array(self._codes.finish()))]
        else:
            self._raw = True
            return
        self._codes, self._position = _Growing(np.int32), {}


def _as_numbers(cells: Any, missing: frozenset[str]) -> NDArray[np.float64] | None:
    """Return texts as numbers; ``None`` if one is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = pc.utf8_trim_whitespace(cells)
    gaps = pc.is_in(plain, value_set=pa.array(["", *missing]))
    try:
        values = pc.if_else(gaps, None, plain).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        values = None
    if values is None or (np.isnan(values) != gaps.to_numpy(zero_copy_only=False)).any():
        # Python knows more ways to write a number.
        parsed = read_numbers([cleaned(cell, missing) for cell in cells.to_pylist()])
        return None if parsed.unread.any() else parsed.values
    return np.asarray(values, dtype=np.float64)


class _Texts(Sequence[str]):
    """Texts in pyarrow's memory, which takes a fifth of Python's."""

    def __init__(self, chunks: list[Any], missing: frozenset[str]) -> None:
        self._chunks, self._missing = chunks, missing
        self._ends = np.cumsum([len(chunk) for chunk in chunks])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            yield from (cleaned(cell, self._missing) for cell in chunk.to_pylist())

    def __getitem__(self, place: Any) -> Any:
        k = int(np.searchsorted(self._ends, place, side="right"))
        first = int(self._ends[k - 1]) if k else 0
        return cleaned(self._chunks[k][int(place) - first].as_py(), self._missing)


class _Lines(Sequence[int]):
    """The line of every row, looked up in the file when a message needs it."""

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self._path, self._rows, self._width = path, rows, width

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: Any) -> Any:
        return line_of(self._path, int(row), self._width)

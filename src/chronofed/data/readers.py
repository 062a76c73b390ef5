"""Read the user's own files: CSV, Parquet and npz."""

import csv
import io
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError, MissingExtraError
from chronofed.data.columns import Categorical, Columns
from chronofed.data.limits import check_bytes, check_columns
from chronofed.data.npz import first_line, read_npz

# Rows of a CSV file at a time, so that they stay in the CPU's cache.
_CHUNK = 2000
# Lines with quotes in a cell that is being written, at most.
_UNFINISHED = 100


def read(path: Path, growing: bool = False) -> Columns:
    """Read a file by its extension: ``.csv``, ``.tsv``, ``.parquet`` or ``.npz``.

    Args:
        path: The file.
        growing: True if a text file may still be written to. It is then read up to the last complete row, and
            has no columns before its header is complete. Other files are complete or damaged.
    """
    text = _read_growing if growing else _read_csv
    readers = {".csv": text, ".tsv": text, ".parquet": _read_parquet, ".npz": read_npz}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown extension {path.suffix!r}; use {', '.join(readers)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        return reader(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({first_line(error)})") from None
    except MemoryError:
        raise DataError(f"{path}: does not fit into memory") from None


def _read_csv(path: Path) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _from_csv(path, file)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason})") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error})") from None


def _read_growing(path: Path) -> Columns:
    # Cut before decoding: the last character may be incomplete.
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    for _ in range(_UNFINISHED):
        if not end:
            return Columns(path, {}, [], untyped=True)
        try:
            text = content[:end].decode("utf-8-sig")
            return _from_csv(path, io.StringIO(text, newline=""))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason})") from None
        except csv.Error as error:
            if "end of data" not in str(error):
                raise DataError(f"{path}: not a CSV file ({error})") from None
        # A cell of several lines is being written: go back before the line of its last quote.
        end = content.rfind(b"\n", 0, content.rfind(b'"', 0, end)) + 1
    raise DataError(f"{path}: not a CSV file (a quoted cell never ends)")


class _Codes(dict[str, int]):
    """Assign every new text the next number; a known text costs one dictionary lookup."""

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
        Categorical([_cleaned(cell) for cell in table], np.array(column, np.int64))
        for table, column in zip(known, codes, strict=True)
    )
    return Columns(path, dict(zip(names, labels, strict=True)), lines, untyped=True)


def _delimiter(file: TextIO) -> str:
    """Return the delimiter that splits the header into most names."""
    first = file.readline()
    file.seek(0)
    return max(",;\t|", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _rows(path: Path, reader: Any, width: int, lines: list[int]) -> Iterator[list[str]]:
    """Yield all rows but blank lines; append the line where each ends to ``lines``."""
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
    check_columns(path, len(names))
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} has no name")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: more than one column is named {twice[0]!r}")
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
        with pq.ParquetFile(path) as file:
            # A column of one value takes no room in the file.
            check_columns(path, file.metadata.num_columns)
            check_bytes(path, 8 * file.metadata.num_rows * file.metadata.num_columns)
        table = pq.read_table(path)
    except (pa.ArrowException, MemoryError) as error:
        raise DataError(f"{path}: not a Parquet file ({first_line(error)})") from None
    names = _header(path, table.column_names)
    held = (_from_arrow(column, pa) for column in table.columns)
    return Columns(path, dict(zip(names, held, strict=True)))


def _from_arrow(column: Any, pa: Any) -> NDArray[Any] | Categorical:
    """Convert a Parquet column; values of other types become ``None``, which is an error on use."""
    is_a, kind = pa.types, column.type
    if is_a.is_dictionary(kind):
        return _from_arrow(column.cast(kind.value_type), pa)
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        coded = column.fill_null("").combine_chunks().dictionary_encode()
        distinct = [cell.strip() for cell in coded.dictionary.to_pylist()]
        return Categorical(distinct, coded.indices.to_numpy().astype(np.int64))
    if is_a.is_timestamp(kind) or is_a.is_date(kind):
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
    elif is_a.is_boolean(kind) or is_a.is_decimal(kind):
        column = column.cast(pa.int8() if is_a.is_boolean(kind) else pa.float64())
    elif not (is_a.is_integer(kind) or is_a.is_floating(kind)):
        return np.full(len(column), None, dtype=object)
    return np.asarray(column.to_numpy())

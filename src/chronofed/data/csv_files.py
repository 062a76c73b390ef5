"""Read text files of cells, with the standard library alone; the reader that says what is wrong, and where."""

import csv
import io
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from chronofed.core.errors import DataError
from chronofed.data.cells import cleaned
from chronofed.data.columns import Categorical, Columns
from chronofed.data.limits import check_columns

# Rows at a time, so that they stay in the CPU's cache.
_CHUNK = 2000
# Lines with quotes in a cell that is being written, at most.
_UNFINISHED = 100


def read_csv(path: Path, missing: frozenset[str]) -> Columns:
    """Read a complete file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _from_csv(path, file, missing)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason})") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error})") from None


def read_growing(path: Path, missing: frozenset[str]) -> Columns:
    """Read a file that may still be written to, up to its last complete row."""
    # Cut before decoding: the last character may be incomplete.
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    for _ in range(_UNFINISHED):
        if not end:
            return Columns(path, {}, [], untyped=True)
        try:
            text = content[:end].decode("utf-8-sig")
            return _from_csv(path, io.StringIO(text, newline=""), missing)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason})") from None
        except csv.Error as error:
            if "end of data" not in str(error):
                raise DataError(f"{path}: not a CSV file ({error})") from None
        # A cell of several lines is being written: go back before the line of its last quote.
        end = content.rfind(b"\n", 0, content.rfind(b'"', 0, end)) + 1
    raise DataError(f"{path}: not a CSV file (a quoted cell never ends)")


def read_header(path: Path) -> tuple[list[str], str]:
    """Return the names of the columns, and the delimiter."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = _delimiter(file)
        return check_header(path, next(csv.reader(file, delimiter=delimiter), [])), delimiter


def line_of(path: Path, row: int, width: int) -> int:
    """Return the line where a row ends, both counted as a reader of messages counts them."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=_delimiter(file), strict=True)
        next(reader, [])
        lines: list[int] = []
        for _ in islice(_rows(path, reader, width, lines), row + 1):
            lines = lines[-1:]
        return int(reader.line_num)


def check_header(path: Path, cells: list[str]) -> list[str]:
    """Return the names of the columns.

    Raises:
        DataError: If there are none, too many, or one is empty or occurs twice.
    """
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


class _Codes(dict[str, int]):
    """Assign every new text the next number; a known text costs one dictionary lookup."""

    def __missing__(self, cell: str) -> int:
        return self.setdefault(cell, len(self))


def _from_csv(path: Path, file: TextIO, missing: frozenset[str]) -> Columns:
    reader = csv.reader(file, delimiter=_delimiter(file), strict=True)
    names = check_header(path, next(reader, []))
    known = [_Codes() for _ in names]
    codes = [array("q") for _ in names]
    lines = array("q")
    rows = _rows(path, reader, len(names), lines)
    while chunk := list(islice(rows, _CHUNK)):
        for column, table, cells in zip(codes, known, zip(*chunk, strict=True), strict=True):
            column.extend(map(table.__getitem__, cells))
    labels = (
        Categorical([cleaned(cell, missing) for cell in table], np.array(column, np.int64))
        for table, column in zip(known, codes, strict=True)
    )
    return Columns(path, dict(zip(names, labels, strict=True)), lines, untyped=True)


def _delimiter(file: TextIO) -> str:
    """Return the delimiter that splits the header into most names."""
    first = file.readline()
    file.seek(0)
    return max(",;\t|", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _rows(path: Path, reader: Any, width: int, lines: Any) -> Iterator[list[str]]:
    """Yield all rows but blank lines; append the line where each ends to ``lines``."""
    for row in reader:
        if row and len(row) != width:
            complaint = f"{len(row)} cells where the header has {width}"
            raise DataError(f"{path}, row {reader.line_num}: {complaint}")
        if row:
            lines.append(reader.line_num)
            yield row

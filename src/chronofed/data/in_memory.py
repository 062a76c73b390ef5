"""Rows that a program has in memory, as columns like those of a file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.cells import MISSING
from chronofed.data.columns import Categorical, Columns
from chronofed.data.readers import Reading, read

_GAPS = ("nan", "NaT", "<NA>")
MEMORY = Path("rows")
"""Name of rows in memory, in messages."""


def to_columns(
    rows: Any, absent: Sequence[str] = MISSING, text: Sequence[str] = (), query: str = ""
) -> Columns:
    """Return columns of a file, of a data frame, of a table of columns, or of a list of rows.

    Args:
        rows: The path of a CSV, Parquet or npz file; a mapping from names to columns; anything with
            ``to_dict``, such as a data frame of pandas; or a sequence of mappings, one for each row.
        absent: Texts that stand for a missing value.
        text: Columns of a file that stay text: names of clients.
        query: For the path of a database: one ``SELECT`` that returns the rows.

    Raises:
        DataError: If it is none of these.
    """
    if isinstance(rows, Columns):
        return rows
    if isinstance(rows, str | Path):
        return read(Path(rows), reading=Reading(frozenset(absent), frozenset(text), query))
    if hasattr(rows, "to_dict"):
        rows = {str(name): rows[name].tolist() for name in rows.columns}
    if isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):
        names = dict.fromkeys(name for row in rows for name in row)
        rows = {name: [row.get(name) for row in rows] for name in names}
    if not isinstance(rows, Mapping):
        kinds = "a file, a table of columns or a list of rows"
        raise DataError(f"cannot predict from a {type(rows).__name__}: expected {kinds}")
    return Columns(
        MEMORY, {str(name): _column(cells, absent) for name, cells in rows.items()}, None, True
    )


def parts(columns: Columns, count: int, size: int) -> Iterator[Columns]:
    """Split a table into parts of at most ``size`` of its ``count`` rows; an empty table is one part."""
    for start in range(0, max(count, 1), size):
        yield part(columns, start, min(start + size, count))


def part(columns: Columns, start: int, stop: int) -> Columns:
    """Return some rows of a table that follow each other."""
    arrays = {name: _part(held, start, stop) for name, held in columns.arrays.items()}
    lines = range(start + 1, stop + 1) if columns.lines is None else columns.lines[start:stop]
    return replace(columns, arrays=arrays, lines=lines)


def _part(held: NDArray[Any] | Categorical, start: int, stop: int) -> NDArray[Any] | Categorical:
    if not isinstance(held, Categorical):
        return held[start:stop]
    # Only the texts that are there, since every part parses its own.
    used, codes = np.unique(held.codes[start:stop], return_inverse=True)
    return Categorical([held.distinct[k] for k in used.tolist()], codes)


def _column(cells: Any, absent: Sequence[str]) -> NDArray[Any] | Categorical:
    """Return numbers and dates as they are; everything else as text, which is parsed on use."""
    array = np.asarray(cells)
    if array.dtype.kind in "biufM":
        return array
    values = array.tolist() if array.ndim == 1 else []
    known = [value for value in values if not _gap(value)]
    if known and all(isinstance(value, int | float) for value in known):
        return np.array([np.nan if _gap(value) else value for value in values], dtype=np.float64)
    texts = ["" if _gap(value) else str(value).strip() for value in values]
    texts = ["" if text in absent else text for text in texts]
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter(map(distinct.__getitem__, texts), np.int64, len(texts))
    return Categorical(list(distinct), codes)


def _gap(value: Any) -> bool:
    """Tell a missing value: ``None``, NaN, or pandas' NaT and NA, which are equal to nothing."""
    return value is None or (not isinstance(value, str) and str(value) in _GAPS)

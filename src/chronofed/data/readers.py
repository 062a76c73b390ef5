"""Read the user's own files: CSV, Parquet, npz, and queries to databases."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chronofed.core.errors import DataError
from chronofed.data.arrow_csv import has_arrow, read_arrow_csv
from chronofed.data.cells import MISSING
from chronofed.data.columns import Columns
from chronofed.data.csv_files import read_csv, read_growing
from chronofed.data.databases import DUCKDB, SQLITE, read_duckdb, read_sqlite
from chronofed.data.npz import first_line, read_npz
from chronofed.data.parquet import read_parquet

LARGE_BYTES = 2**24
"""A larger CSV file is read with pyarrow, if it is installed."""
_SLOW_BYTES = 2**28
_FILES = (".csv", ".tsv", ".parquet", ".npz")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """Ways to understand a file.

    Attributes:
        missing: Texts that stand for a missing value, beside the empty one.
        text: Columns that stay text, however many texts differ: names of clients.
        query: Query to a database.
        growing: True if a text file may still be written to. It is then read up to the last complete row, and
            has no columns before its header is complete. Other files are complete or damaged.
    """

    missing: frozenset[str] = frozenset(MISSING)
    text: frozenset[str] = frozenset()
    query: str = ""
    growing: bool = False


def read(path: Path, growing: bool = False, reading: Reading | None = None) -> Columns:
    """Read a file by its extension, or a folder of Parquet files.

    Args:
        path: The file: ``.csv``, ``.tsv``, ``.parquet``, ``.npz``, ``.sqlite`` or ``.duckdb``; or the folder.
        growing: True if a text file may still be written to.
        reading: How to understand it.
    """
    how = reading or Reading(growing=growing)
    reader = _reader(path, how)
    if not path.exists():
        raise DataError(f"{path}: no such file")
    try:
        return reader(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({first_line(error)})") from None
    except MemoryError:
        raise DataError(f"{path}: does not fit into memory") from None


def _reader(path: Path, how: Reading) -> Callable[[Path], Columns]:
    """Choose a reader.

    Raises:
        DataError: If there is none, or a query is missing or has no place.
    """
    ending = path.suffix.lower()
    if ending in (*SQLITE, *DUCKDB):
        if not how.query:
            raise DataError(f"{path}: a database needs a query, such as 'SELECT * FROM visits'")
        ask = read_sqlite if ending in SQLITE else read_duckdb
        return lambda path: ask(path, how.query, how.missing)
    if how.query:
        endings = ", ".join((*SQLITE, *DUCKDB))
        raise DataError(f"{path}: a query is for databases ({endings}); leave it out")
    if path.is_dir() or ending == ".parquet":
        return lambda path: read_parquet(path, how.missing)
    if ending not in _FILES:
        known = ", ".join((*_FILES, *SQLITE, *DUCKDB))
        raise DataError(f"{path}: unknown extension {path.suffix!r}; use {known}")
    return (
        (lambda path: read_npz(path, how.missing))
        if ending == ".npz"
        else (lambda path: _read_text(path, how))
    )


def _read_text(path: Path, how: Reading) -> Columns:
    """Read a CSV file, a large one with pyarrow where that is sure to give the same."""
    if how.growing:
        return read_growing(path, how.missing)
    size = path.stat().st_size
    if size > LARGE_BYTES and has_arrow():
        columns = read_arrow_csv(path, how.missing, how.text)
        if columns is not None:
            return columns
    elif size > _SLOW_BYTES:
        advice = "pip install 'chronofed[parquet]' to read it in a fraction of the time and memory"
        _LOG.warning("%s: %.1f GB without pyarrow; %s", path, size / 1e9, advice)
    return read_csv(path, how.missing)

"""Read the answer of one query: of a SQLite or a DuckDB file, which is opened read-only."""

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError, MissingExtraError
from chronofed.data.cells import cleaned
from chronofed.data.columns import Categorical, Columns
from chronofed.data.csv_files import check_header
from chronofed.data.npz import first_line

SQLITE = (".sqlite", ".sqlite3", ".db")
DUCKDB = (".duckdb",)
_BUSY_TIMEOUT_S = 30.0
"""Seconds to wait for a process that is writing to the database."""
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# Nothing but the file itself: no other file, no network, no extension, and one thread for one order.
_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
    "threads": "1",
}


def read_sqlite(path: Path, query: str, missing: frozenset[str], in_order: bool = True) -> Columns:
    """Return the answer of a ``SELECT``; without ``ORDER BY`` it is sorted by all columns, if wanted.

    Raises:
        DataError: If the query fails, is not one ``SELECT``, or returns columns with the same name.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)) as database:
            database.set_authorizer(_authorise)
            # Nothing is computed before rows are fetched.
            answer = database.execute(query)
            names = _names(path, [column[0] for column in answer.description or ()])
            rows = (database.execute(_sorted(query, len(names))) if in_order else answer).fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise DataError(f"{path}: the query failed: {_advised(error)}") from None
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    held = {name: _column(cells, missing) for name, cells in zip(names, columns, strict=True)}
    return Columns(path, held, untyped=True)


def read_duckdb(path: Path, query: str, missing: frozenset[str]) -> Columns:
    """Return the answer of a ``SELECT``; without ``ORDER BY`` it is sorted by all columns.

    Raises:
        DataError: If the query fails, or is not one ``SELECT``.
        MissingExtraError: If DuckDB is not installed.
    """
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtraError("duckdb", "duckdb", "reading DuckDB files") from None
    from chronofed.data.parquet import from_arrow

    try:
        with closing(duckdb.connect(str(path), read_only=True, config=_CLOSED)) as database:
            statements = database.extract_statements(query)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise DataError(f"{path}: the query must be one SELECT")
            names = _names(path, database.sql(query).columns)
            table = database.sql(_sorted(query, len(names))).to_arrow_table()
    except duckdb.Error as error:
        raise DataError(f"{path}: the query failed: {first_line(error)}") from None
    return from_arrow(path, table, missing)


def _authorise(action: int, _first: str | None, second: str | None, *_: object) -> int:
    """Let a query read, and nothing else."""
    loads = action == sqlite3.SQLITE_FUNCTION and second == "load_extension"
    return sqlite3.SQLITE_OK if action in _ALLOWED and not loads else sqlite3.SQLITE_DENY


def _advised(error: Exception) -> str:
    why = first_line(error)
    return f"{why}; it must be one SELECT" if "authorized" in why or "statement" in why else why


def _sorted(query: str, width: int) -> str:
    """Return a query whose answer has one order: its own, or that of its columns from left to right."""
    if re.search(r"\border\s+by\b", query, re.IGNORECASE):
        return _plain(query)
    places = ", ".join(map(str, range(1, width + 1)))
    return f"SELECT * FROM (\n{_plain(query)}\n) ORDER BY {places}"


def _plain(query: str) -> str:
    return query.strip().rstrip(";").rstrip()


def _names(path: Path, names: list[str]) -> list[str]:
    if not names or len(set(names)) < len(names):
        raise DataError(f"{path}: the query must return columns with different names")
    return check_header(path, names)


def _column(cells: Sequence[Any], missing: frozenset[str]) -> NDArray[Any] | Categorical:
    """Return numbers if one of them has a fraction, else text, which is parsed as numbers or dates on use."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if bytes in kinds:
        # Refused when the column is used.
        return np.full(len(cells), None, dtype=object)
    if float in kinds and kinds <= {int, float}:
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    texts = ["" if cell is None else str(cell) for cell in cells]
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter(map(distinct.__getitem__, texts), np.int64, len(texts))
    return Categorical([cleaned(text, missing) for text in distinct], codes)

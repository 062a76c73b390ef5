"""Kinds of sources: a file, a folder of files, or a query to a SQLite database."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.core.paths import expand
from chronofed.data.client_source.source import Source
from chronofed.data.columns import Categorical, Columns
from chronofed.data.readers import read

_ENDINGS = (".csv", ".tsv", ".parquet", ".npz")
_BUSY_TIMEOUT_S = 30.0
"""Seconds to wait for a process that is writing to the database."""


class TableFile(Source, tag="table-file", kw_only=True):
    """A CSV, TSV, Parquet or npz file.

    Rows may be appended to a CSV or TSV file at any time; an unfinished last line is ignored. Replace Parquet
    and npz files as a whole.
    """

    def tables(self) -> Sequence[Columns]:
        """Read the file."""
        return [read(expand(self.path), growing=True)]


class TableFolder(Source, tag="table-folder", kw_only=True):
    """A folder of CSV, TSV, Parquet and npz files; new files may be added at any time.

    Hidden files and other endings are ignored: write a Parquet or npz file under a name that begins with a dot,
    and rename it when it is complete.
    """

    def tables(self) -> Sequence[Columns]:
        """Read all files, in the order of their names."""
        folder = expand(self.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
        names = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
        return [read(path, growing=True) for path in names if not path.name.startswith(".")]


class Sqlite(Source, tag="sqlite", kw_only=True):
    """A SQLite database, opened read-only.

    Attributes:
        query: The query that returns the rows, such as ``SELECT * FROM visits``.
    """

    query: str

    def tables(self) -> Sequence[Columns]:
        """Run the query."""
        path = expand(self.path)
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)) as database:
                answer = database.execute(self.query)
                names = [column[0] for column in answer.description or ()]
                rows = answer.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise DataError(f"{path}: the query failed: {error}") from None
        if not names or len(set(names)) < len(names):
            raise DataError(f"{path}: the query must return columns with different names")
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        held = {name: _column(cells) for name, cells in zip(names, columns, strict=True)}
        return [Columns(path, held, untyped=True)]


def _column(cells: Sequence[Any]) -> NDArray[Any] | Categorical:
    """Return numbers if one of them has a fraction, else text, which is parsed as numbers or dates on use."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if bytes in kinds:
        # Refused when the column is used.
        return np.full(len(cells), None, dtype=object)
    if float in kinds and kinds <= {int, float}:
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    texts = ["" if cell is None else str(cell).strip() for cell in cells]
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter(map(distinct.__getitem__, texts), np.int64, len(texts))
    return Categorical(list(distinct), codes)

"""The places where a client's rows can be: a table, a folder of tables, a SQLite database."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.errors import DataError
from chronofed.sources.base import Source
from chronofed.tasks.columns import Columns, Labels
from chronofed.tasks.readers import read

_ENDINGS = (".csv", ".tsv", ".parquet", ".npz")
_PATIENCE = 30.0  # seconds that we wait for who is just writing


class TableSource(Source, tag="table", kw_only=True):
    """A CSV, TSV, Parquet or npz file.

    Rows may be appended to a CSV or TSV file at any time; it is read up to the last row whose line has ended.
    Files of the other kinds are replaced whole.
    """

    def tables(self) -> Sequence[Columns]:
        """The file as it is now."""
        return [read(Path(self.path).expanduser(), growing=True)]


class FolderSource(Source, tag="folder", kw_only=True):
    """A folder of such files, to which more are added.

    Names that begin with a dot, and other endings, are passed over: write a Parquet or npz file under such a
    name first, and rename it when it is whole.
    """

    def tables(self) -> Sequence[Columns]:
        """All files, by name."""
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
        names = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
        return [read(path, growing=True) for path in names if not path.name.startswith(".")]


class DatabaseSource(Source, tag="sqlite", kw_only=True):
    """A SQLite database, opened for reading only.

    Attributes:
        query: What gives the rows, such as ``SELECT * FROM visits``.
    """

    query: str

    def tables(self) -> Sequence[Columns]:
        """The answer to the query."""
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE)) as database:
                answer = database.execute(self.query)
                names = [column[0] for column in answer.description or ()]
                rows = answer.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise DataError(f"{path}: the query failed: {error}") from None
        if not names or len(set(names)) < len(names):
            raise DataError(f"{path}: the query must give columns, each with a name of its own")
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        held = {name: _column(cells) for name, cells in zip(names, columns, strict=True)}
        return [Columns(path, held, untyped=True)]


def _column(cells: Sequence[Any]) -> NDArray[Any] | Labels:
    """Numbers if one is broken, else text, of which numbers and dates are read where they are asked for."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if bytes in kinds:
        return np.full(len(cells), None, dtype=object)  # refused where it is used
    if float in kinds and kinds <= {int, float}:
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    texts = ["" if cell is None else str(cell).strip() for cell in cells]
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter(map(distinct.__getitem__, texts), np.int64, len(texts))
    return Labels(list(distinct), codes)

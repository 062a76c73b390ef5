"""Kinds of sources: a file, a folder of files, or a query to a SQLite database."""

from collections.abc import Sequence

from chronofed.core.errors import DataError
from chronofed.core.paths import expand
from chronofed.data.cells import MISSING
from chronofed.data.client_source.source import Source
from chronofed.data.columns import Columns
from chronofed.data.databases import read_sqlite
from chronofed.data.readers import read

_ENDINGS = (".csv", ".tsv", ".parquet", ".npz")


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
        return [read_sqlite(path, self.query, frozenset(MISSING), in_order=False)]

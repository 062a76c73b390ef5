"""The SQLite database of a client store: created atomically, one writer at a time, errors in one line."""

import fcntl
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

from chronofed.clients.store.codec import RecordError
from chronofed.core.atomic import flush_directory
from chronofed.core.errors import ChronofedError, RunError, StorageError, cannot_write

APPLICATION = 0x43464C56
"""Application id in SQLite's header: "CFLV" in ASCII."""
VERSION = 3
MAX_REASON_CHARACTERS = 200
"""Characters of SQLite's own message that an error quotes; it may contain names from the file."""
_BUSY_TIMEOUT_S = 30.0
"""Seconds that a reader waits for a writer's commit, and the other way round."""

# Years 1 to 9999, in microseconds since 1970.
_TIME = "BETWEEN -62135596800000000 AND 253402300799999999"
# Content comes last in its row, so that SQLite can read the columns before it without reading it. Types and
# ranges are checked by SQLite whenever a client store is opened. Phase 0 is what the server has accepted, phase
# 1 the outcome of the last order, which it may still refuse.
_SCHEMA = f"""
CREATE TABLE fact (name TEXT PRIMARY KEY, value ANY NOT NULL, CHECK (CASE name
    WHEN 'horizon' THEN typeof(value) = 'integer' AND value {_TIME}
    ELSE name IN ('seal', 'secret') AND typeof(value) = 'blob' AND length(value) = 16 END)
    ) WITHOUT ROWID, STRICT;
CREATE TABLE answer (number INTEGER PRIMARY KEY, name TEXT NOT NULL,
    at INTEGER NOT NULL CHECK (at {_TIME}), request BLOB NOT NULL, digest BLOB NOT NULL, content BLOB NOT NULL)
    STRICT;
CREATE TABLE state (number INTEGER PRIMARY KEY, digest BLOB NOT NULL, content BLOB NOT NULL) STRICT;
CREATE TABLE phase (phase INTEGER PRIMARY KEY CHECK (phase IN (0, 1)),
    round INTEGER NOT NULL CHECK (round >= -1), state INTEGER REFERENCES state) STRICT;
CREATE TABLE record (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, content BLOB NOT NULL) STRICT;
CREATE TABLE item (phase INTEGER NOT NULL CHECK (phase IN (0, 1)), place INTEGER NOT NULL,
    round INTEGER NOT NULL CHECK (round >= 0),
    client INTEGER NOT NULL CHECK (client >= 0), key INTEGER NOT NULL CHECK (key >= 0),
    size INTEGER NOT NULL CHECK (size >= 0), record INTEGER NOT NULL REFERENCES record,
    first INTEGER NOT NULL CHECK (first {_TIME}), last INTEGER NOT NULL CHECK (last {_TIME}),
    samples INTEGER NOT NULL CHECK (samples >= 0), classes INTEGER NOT NULL CHECK (classes >= 0),
    PRIMARY KEY (phase, place)) STRICT;
CREATE TABLE sample (record INTEGER NOT NULL REFERENCES record, row INTEGER NOT NULL,
    at INTEGER CHECK (at {_TIME}), PRIMARY KEY (record, row)) WITHOUT ROWID, STRICT;
CREATE TABLE forgotten (row INTEGER PRIMARY KEY) STRICT;
"""

_SETTINGS = (
    # For a new file. With pages of 4096 bytes, writing a model of 45 MB takes half as long again.
    "page_size = 16384",
    # At rest there is one file, and no deleted data remain beside it.
    "journal_mode = DELETE",
    # When a commit returns, the data and the directory entry are on disk.
    "synchronous = EXTRA",
    # Overwrite deleted data.
    "secure_delete = ON",
    # Never write the client's data to a folder for temporary files.
    "temp_store = MEMORY",
    "cell_size_check = ON",
    # A file must not bring functions of its own.
    "trusted_schema = OFF",
)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Exclude other writers; the operating system releases the lock when the process ends.

    Raises:
        RunError: If another process holds the lock.
    """
    with _open_lock(path.with_name(f"{path.name}.lock")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            msg = f"{path}: another process is using this client store; wait for it or stop it"
            raise RunError(msg) from None
        yield


def create(path: Path) -> None:
    """Create an empty client store under a temporary name, then rename it: the file is never half-written."""
    new = path.with_name(f".{path.name}.new")
    try:
        # A process that was killed may have left one. We hold the lock, so nobody else uses it.
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_EXCL, 0o600))
        with one_line_errors(path), closing(_connect(new)) as database:
            database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            database.execute("INSERT INTO fact VALUES ('secret', ?)", [secrets.token_bytes(16)])
            write_checksum(database)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")
        new.rename(path)
        flush_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing client store.

    Raises:
        RunError: If the file is missing, damaged, or not a client store.
    """
    if not path.is_file():
        raise RunError(f"{path}: no such file; the client store is created in the first round")
    with one_line_errors(path):
        database = _connect(path)
        try:
            with read_transaction(database):
                _check(path, database)
        except BaseException:
            database.close()
            raise
    return database


def _connect(path: Path) -> sqlite3.Connection:
    # A URI, because only a URI can forbid SQLite to create a missing file.
    uri = f"{path.absolute().as_uri()}?mode=rw"
    database = sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    for setting in _SETTINGS:
        database.execute(f"PRAGMA {setting}")
    return database


def _check(path: Path, database: sqlite3.Connection) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if not path.stat().st_size:
        raise damaged(path, "the file is empty")
    if application != APPLICATION:
        raise RunError(f"{path}: a SQLite file, but not a client store of chronofed")
    if version != VERSION:
        msg = f"{path}: written by another chronofed (format {version}; this one reads {VERSION})"
        raise RunError(msg)
    _check_content(path, database)


def _check_content(path: Path, database: sqlite3.Connection) -> None:
    # Before anything is read: a foreign table may be a view that never ends.
    if _tables(database) != _expected_tables():
        raise damaged(path, "its tables are not those of a client store")
    problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise damaged(path, problem)
    if database.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise damaged(path, "a record is missing")
    if database.execute("SELECT 1 FROM fact WHERE name = 'secret'").fetchone() is None:
        raise damaged(path, "its secret is missing")
    stored = database.execute("SELECT value FROM fact WHERE name = 'seal'").fetchone()
    if stored != (_checksum(database),):
        raise damaged(path, "checksum mismatch")


def _tables(database: sqlite3.Connection) -> list[tuple[str, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    return database.execute(query).fetchall()


@cache
def _expected_tables() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_SCHEMA)
        return _tables(database)


def replace_row(database: sqlite3.Connection, table: str, *values: object) -> None:
    """Replace the only row of a table.

    The new row is inserted before the old one is deleted, and the old one is not overwritten. This writes a
    quarter less to disk, because SQLite copies less to its journal. The rows are replies and models; VACUUM
    removes what is left of them in free pages.
    """
    (latest,) = database.execute(f"SELECT coalesce(max(number), 0) FROM {table}").fetchone()
    places = ", ".join("?" * len(values))
    database.execute("PRAGMA secure_delete = OFF")
    database.execute(f"INSERT INTO {table} VALUES ({latest + 1}, {places})", values)
    database.execute(f"DELETE FROM {table} WHERE number <= {latest}")
    database.execute("PRAGMA secure_delete = ON")


def write_checksum(database: sqlite3.Connection) -> None:
    """Store the checksum of all tables; the last step of every transaction."""
    database.execute("INSERT OR REPLACE INTO fact VALUES ('seal', ?)", [_checksum(database)])


def _checksum(database: sqlite3.Connection) -> bytes:
    """Return a digest of all small values; it covers the digests of contents, not the contents."""
    total = hashlib.blake2b(digest_size=16)
    for query in (
        "SELECT name, at, request, digest FROM answer",
        "SELECT p.phase, p.round, s.digest FROM phase p LEFT JOIN state s ON s.number = p.state ORDER BY phase",
        "SELECT k.*, r.digest FROM item k JOIN record r ON r.number = k.record ORDER BY phase, place",
        "SELECT * FROM sample ORDER BY record, row",
        "SELECT row FROM forgotten ORDER BY row",
        "SELECT * FROM fact WHERE name <> 'seal' ORDER BY name",
    ):
        for row in database.execute(query):
            total.update(repr(row).encode())
    return total.digest()


@contextmanager
def read_transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Let several queries see the same data: writers wait until the block ends."""
    database.execute("BEGIN")
    try:
        yield
    finally:
        # SQLite may have ended the transaction after an error.
        if database.in_transaction:
            database.execute("ROLLBACK")


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite, and of records in it, into one line that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error
    except (RecordError, UnicodeError) as error:
        # Python cannot decode SQLite's message if the name of a damaged table is in it.
        raise damaged(path, str(error)) from error


def _translated(path: Path, error: sqlite3.Error) -> ChronofedError:
    # The lowest byte is the primary error code, the rest is detail.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return RunError(f"{path}: another process is writing to this client store; try again")
    if code in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
    ):
        advice = "free some space or fix the permissions"
        return StorageError(f"cannot write {path}: {error}; {advice}")
    return damaged(path, str(error))


def damaged(path: Path, reason: str) -> RunError:
    """Return the error about a damaged file. It is never replaced: it may be the only copy."""
    reason = " ".join(reason.split())[:MAX_REASON_CHARACTERS]
    advice = "restore a copy, or move the file away to start with an empty client store"
    return RunError(f"{path}: client store is damaged: {reason}; {advice}")


def _open_lock(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise cannot_write(path, error) from error

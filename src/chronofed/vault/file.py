"""The file of a vault: made whole or not at all, one writer at a time, SQLite's errors in one line."""

import fcntl
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TextIO

from chronofed.errors import ChronofedError, RunError, StorageError, cannot_write
from chronofed.records.atomic import flush_directory

APPLICATION = 0x43464C56  # "CFLV", in SQLite's header
VERSION = 1
_PATIENCE = (
    30.0  # seconds that a reader waits for a writer who is just committing, and the other way round
)

# Content comes last in its row, so that what stands before it is read without it.
_SCHEMA = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE answer (number INTEGER PRIMARY KEY, name TEXT NOT NULL, at INTEGER NOT NULL,
    digest BLOB NOT NULL, content BLOB NOT NULL);
CREATE TABLE state (number INTEGER PRIMARY KEY, digest BLOB NOT NULL, content BLOB NOT NULL);
CREATE TABLE record (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, content BLOB NOT NULL);
CREATE TABLE keepsake (place INTEGER PRIMARY KEY, round INTEGER NOT NULL, client INTEGER NOT NULL,
    key INTEGER NOT NULL, size INTEGER NOT NULL, record INTEGER NOT NULL REFERENCES record,
    first INTEGER NOT NULL, last INTEGER NOT NULL, samples INTEGER NOT NULL, classes INTEGER NOT NULL);
CREATE TABLE sample (record INTEGER NOT NULL, row INTEGER NOT NULL, at INTEGER,
    PRIMARY KEY (record, row)) WITHOUT ROWID;
CREATE TABLE forgotten (row INTEGER PRIMARY KEY);
"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other writers off; the lock goes with the process, however it ends.

    Raises:
        RunError: If another process has it.
    """
    with _opened(path.with_name(f"{path.name}.lock")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            msg = f"{path}: another process is using this client's memory; wait for it or stop it"
            raise RunError(msg) from None
        yield


def create(path: Path) -> None:
    """Make an empty vault under another name first: a file of this name is whole, or was damaged."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)  # of a process that was killed; we hold the lock
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL, 0o600))
        with explained(path), closing(_connected(beside)) as file:
            file.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            file.execute("INSERT INTO fact VALUES ('secret', ?)", [secrets.token_bytes(16)])
            seal(file)
            file.execute(f"PRAGMA application_id = {APPLICATION}")
            file.execute(f"PRAGMA user_version = {VERSION}")
        beside.rename(path)
        flush_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing vault.

    Raises:
        RunError: If there is none, or it is damaged, or something else.
    """
    if not path.is_file():
        raise RunError(f"{path}: no such file; a client's memory is made in its first round")
    with explained(path):
        file = _connected(path)
        try:
            with unchanged(file):
                _check(path, file)
        except BaseException:
            file.close()
            raise
    return file


def _connected(path: Path) -> sqlite3.Connection:
    # A URI, because only that can say that a missing file must not be made.
    file = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_PATIENCE, isolation_level=None
    )
    for setting in (
        "page_size = 16384",  # of a new file: with 4096 a model of 45 MB takes half as long again
        "journal_mode = DELETE",  # at rest there is one file, and nothing deleted lives on beside it
        "synchronous = EXTRA",  # a commit is on disk, its directory entry too, when it returns
        "secure_delete = ON",  # what is deleted is overwritten
        "temp_store = MEMORY",  # data of the client never lie in a folder for temporary files
        "cell_size_check = ON",
    ):
        file.execute(f"PRAGMA {setting}")
    return file


def _check(path: Path, file: sqlite3.Connection) -> None:
    application = file.execute("PRAGMA application_id").fetchone()[0]
    version = file.execute("PRAGMA user_version").fetchone()[0]
    if not path.stat().st_size:
        raise damaged(path, "it is empty")
    if application != APPLICATION:
        raise RunError(f"{path}: a SQLite file, but not the memory of a chronofed client")
    if version > VERSION:
        msg = f"{path}: format {version} is of a later chronofed; this one knows up to {VERSION}"
        raise RunError(msg)
    complaint = file.execute("PRAGMA quick_check(1)").fetchone()[0]
    if complaint != "ok":
        raise damaged(path, " ".join(complaint.split()))
    if file.execute("SELECT value FROM fact WHERE name = 'seal'").fetchone() != (_sum(file),):
        raise damaged(path, "its parts do not belong together")


def replace(file: sqlite3.Connection, table: str, *values: object) -> None:
    """Give a table of one row another one.

    New comes before old, and old is not overwritten: a quarter less goes to disk, because less has to be copied
    to the journal first. These are replies and models; what is left of them in free pages goes with VACUUM.
    """
    (latest,) = file.execute(f"SELECT coalesce(max(number), 0) FROM {table}").fetchone()
    places = ", ".join("?" * len(values))
    file.execute("PRAGMA secure_delete = OFF")
    file.execute(f"INSERT INTO {table} VALUES ({latest + 1}, {places})", values)
    file.execute(f"DELETE FROM {table} WHERE number <= {latest}")
    file.execute("PRAGMA secure_delete = ON")


def seal(file: sqlite3.Connection) -> None:
    """Note the sum of everything; the last step of every transaction."""
    file.execute("INSERT OR REPLACE INTO fact VALUES ('seal', ?)", [_sum(file)])


def _sum(file: sqlite3.Connection) -> bytes:
    """A digest of all small values; contents have their own digests, which are among these."""
    total = hashlib.blake2b(digest_size=16)
    for query in (
        "SELECT name, at, digest FROM answer",
        "SELECT digest FROM state",
        "SELECT k.*, r.digest FROM keepsake k JOIN record r ON r.number = k.record ORDER BY place",
        "SELECT * FROM sample ORDER BY record, row",
        "SELECT row FROM forgotten ORDER BY row",
        "SELECT * FROM fact WHERE name <> 'seal' ORDER BY name",
    ):
        for row in file.execute(query):
            total.update(repr(row).encode())
    return total.digest()


@contextmanager
def unchanged(file: sqlite3.Connection) -> Iterator[None]:
    """Several queries that see the same: a writer waits until they are done."""
    file.execute("BEGIN")
    try:
        yield
    finally:
        if file.in_transaction:  # SQLite may have ended it after an error
            file.execute("ROLLBACK")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as one line that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: sqlite3.Error) -> ChronofedError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is detail
    if code == sqlite3.SQLITE_BUSY:
        return RunError(f"{path}: another process is writing to this client's memory; try again")
    if code in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
    ):
        advice = "free some space or mend the permissions"
        return StorageError(f"cannot write {path}: {error}; {advice}")
    return damaged(path, str(error))


def damaged(path: Path, reason: str) -> RunError:
    """It is never replaced: what it held may be dear."""
    advice = "put a copy of it back, or move it away to begin with an empty memory"
    return RunError(f"{path}: this client's memory is damaged ({reason}); {advice}")


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise cannot_write(path, error) from error

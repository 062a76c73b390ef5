"""A client's memory on its own disk: last reply, the backbone's state and what is kept of past data."""

import hashlib
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from chronofed.errors import RunError
from chronofed.protocol import Locker
from chronofed.sources import Held, moment, row_id, stamp
from chronofed.types import Record
from chronofed.vault import blobs
from chronofed.vault.about import Inspection, Removed, counts, inspection
from chronofed.vault.file import (
    connect,
    create,
    damaged,
    explained,
    locked,
    replace,
    seal,
    unchanged,
)
from chronofed.vault.shelf import Shelf


def now() -> datetime:
    """The present, which tests replace."""
    return datetime.now(UTC)


class Vault:
    """What one client keeps between rounds, in one SQLite file; a context manager.

    Keep it open from reading the locker to the commit: meanwhile no other process can open it, so that
    nothing that was forgotten in between is written back. A process that is killed at any instant leaves the
    last reply, state and memory as before a commit, or as after it.

    Args:
        path: The file; made if there is none.
        budget: Most bytes of what is kept of past data; the oldest data sets go first. The backbone's state
            and the last reply come on top and never go.
        max_age: Data older than this are forgotten when the vault is opened and at every commit, by the
            samples' own time stamps where they are known, else by when their data set was first seen.
    """

    def __init__(
        self, path: Path, budget: int | None = None, *, max_age: timedelta | None = None
    ) -> None:
        if budget is not None and budget < 0:
            raise ValueError(f"Vault.budget: {budget} is below 0")
        if max_age is not None and max_age <= timedelta(0):
            raise ValueError(f"Vault.max_age: {max_age} is not above 0")
        self.path = Path(path)
        self.budget = budget
        self.max_age = max_age
        self._open = ExitStack()
        self._connection: sqlite3.Connection | None = None
        self._known: dict[int, tuple[Record, bytes]] = {}  # by identity: records read, and digests

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(locked(self.path))
            if not self.path.exists():
                create(self.path)
            self._connection = connect(self.path)
            stack.callback(self._connection.close)
            if self.max_age is not None:
                with self._transaction() as file:
                    Shelf(file).drop_before(stamp(now() - self.max_age))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection = None
        self._known.clear()
        self._open.close()

    def reply(self, order: str) -> bytes | None:
        """The reply to ``order`` if it is the last one answered: an order is never carried out twice."""
        with explained(self.path):
            query = "SELECT digest, content FROM answer WHERE name = ?"
            found = self._file.execute(query, [order]).fetchone()
        return None if found is None else self._verified(*found)

    def locker(self) -> Locker | None:
        """What was kept; ``None`` before anything was."""
        with explained(self.path):
            state = self._file.execute("SELECT digest, content FROM state").fetchone()
            kept = Shelf(self._file).kept(self._record)
        return None if state is None else Locker(self._record(*state), kept)

    def commit(
        self, order: str, reply: bytes, locker: Locker | None, held: Held | None = None
    ) -> None:
        """Note that an order was carried out, all or nothing; only what changed is written.

        Args:
            order: Name of the order.
            reply: What is sent, and sent again if the same order comes again.
            locker: What to keep from now on; ``None`` for no change.
            held: The data that the order was carried out on, if they have time stamps: data can then be
                forgotten by their own time.

        Raises:
            StorageError: If it cannot be written; nothing has changed then.
        """
        present = stamp(now())
        with self._transaction() as file:
            replace(file, "answer", order, present, blobs.digest(reply), reply)
            if locker is not None:
                self._keep_state(locker.state)
                shelf = Shelf(file)
                shelf.put(
                    locker.kept, self._content, {} if held is None else held.stamps(), present
                )
                self._retain(shelf, present)

    @property
    def forgotten(self) -> frozenset[int]:
        """Rows that were forgotten on request, for ever (:meth:`~chronofed.sources.Held.without`)."""
        with explained(self.path):
            return frozenset(row for (row,) in self._file.execute("SELECT row FROM forgotten"))

    @property
    def horizon(self) -> datetime | None:
        """Data from before were forgotten on request, for ever."""
        with explained(self.path):
            found = self._fact("horizon")
        return None if found is None else moment(found)

    def alias(self, key: int) -> int:
        """A name for a data set that tells nobody else what is in it; the same key, the same alias.

        A key is a digest of the data. Who guesses the data could check the guess, so keys are not sent.
        """
        with explained(self.path):
            secret = self._fact("secret")
        content = key.to_bytes(8, "little")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=secret).digest()) >> 1

    def inspect(self) -> Inspection:
        """What is kept, in counts, sizes and dates."""
        with explained(self.path):
            return inspection(self.path, self._file)

    def forget(
        self,
        before: datetime | None = None,
        rows: Collection[int | str] | None = None,
        keys: Collection[int] | None = None,
    ) -> Removed:
        """Remove data for good, from the free pages of the file, too; the backbone's state stays.

        Args:
            before: Samples with an earlier time stamp; where time stamps are not known, data sets that were
                first seen earlier. What was made of several samples goes if one of them does.
            rows: Rows by name (:func:`~chronofed.sources.row_id`), or by number.
            keys: Data sets, as :meth:`inspect` names them.

        Returns:
            What was removed. Rows and times are noted, so that they are never kept again.
        """
        numbers = [row_id(row) if isinstance(row, str) else row for row in rows or ()]
        with self._transaction() as file:
            earlier, shelf = counts(file), Shelf(file)
            file.executemany("INSERT OR IGNORE INTO forgotten VALUES (?)", ([n] for n in numbers))
            shelf.drop_keys(keys or ())
            shelf.drop_forgotten()
            if before is not None:
                horizon = max(stamp(before), self._fact("horizon") or stamp(before))
                file.execute("INSERT OR REPLACE INTO fact VALUES ('horizon', ?)", [horizon])
                shelf.drop_before(horizon)
            left = counts(file)
        self._known.clear()
        with explained(self.path):
            self._file.execute("VACUUM")
        return Removed(earlier[0] - left[0], earlier[1] - left[1])

    @property
    def _file(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RunError(f"{self.path}: not open; use: with Vault(path) as vault")
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in the block or nothing, sealed."""
        with explained(self.path):
            file = self._file
            file.execute("BEGIN IMMEDIATE")
            try:
                yield file
                seal(file)
                file.execute("COMMIT")
            except BaseException:
                if file.in_transaction:  # SQLite may have rolled back by itself
                    file.execute("ROLLBACK")
                raise

    def _retain(self, shelf: Shelf, present: int) -> None:
        """Let go of what was forgotten before, is too old or too much."""
        shelf.drop_forgotten()
        horizon = self._fact("horizon")
        if horizon is not None:
            shelf.drop_before(horizon)
        if self.max_age is not None:
            shelf.drop_before(present - self.max_age // timedelta(microseconds=1))
        if self.budget is not None:
            shelf.drop_beyond(self.budget)

    def _keep_state(self, state: Record) -> None:
        content = blobs.encode(state)
        digest = blobs.digest(content)
        if self._file.execute("SELECT digest FROM state").fetchone() != (digest,):
            replace(self._file, "state", digest, content)

    def _content(self, record: Record) -> tuple[bytes, bytes | None]:
        """A record's digest, and its bytes unless it was read from here."""
        if id(record) in self._known:
            return self._known[id(record)][1], None
        content = blobs.encode(record)
        return blobs.digest(content), content

    def _record(self, digest: bytes, content: bytes) -> Record:
        try:
            record = blobs.decode(self._verified(digest, content))
        except ValueError as error:
            raise damaged(self.path, str(error)) from error
        self._known[id(record)] = record, digest
        return record

    def _verified(self, digest: bytes, content: bytes) -> bytes:
        if blobs.digest(content) != digest:
            raise damaged(self.path, "a content does not match its digest")
        return content

    def _fact(self, name: str) -> Any:  # noqa: ANN401 - a number or bytes
        found = self._file.execute("SELECT value FROM fact WHERE name = ?", [name]).fetchone()
        return None if found is None else found[0]


def inspect(path: Path) -> Inspection:
    """Look into a vault, even while a client uses it.

    Raises:
        RunError: If there is none, or it is damaged.
    """
    file = connect(path)
    try:
        with explained(path), unchanged(file):
            return inspection(path, file)
    finally:
        file.close()

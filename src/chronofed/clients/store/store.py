"""ClientStore: the last reply, the backbone's state and the memory items of one client, on its own disk."""

import hashlib
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import torch

from chronofed.clients.deletion import made_of
from chronofed.clients.state import ClientState, join_records, split_records
from chronofed.clients.store import codec
from chronofed.clients.store.database import (
    connect,
    create,
    lock,
    one_line_errors,
    read_transaction,
    replace_row,
    write_checksum,
)
from chronofed.clients.store.inspection import Inspection, Removed, counts, inspection
from chronofed.clients.store.items import ItemTable
from chronofed.clients.store.phases import ACCEPTED, NEVER, WAITING, PhaseTable
from chronofed.core.errors import RunError
from chronofed.core.types import Record
from chronofed.data.client_source import ClientData, from_microseconds, row_id, to_microseconds


def now() -> datetime:
    """Return the present time; tests replace this function."""
    return datetime.now(UTC)


class ClientStore:
    """The state of one client between rounds, in one SQLite file; a context manager.

    Keep it open from reading the client state to the commit. Meanwhile no other process can open it, so data
    that are forgotten in between are not written back. A process that is killed at any instant leaves the file
    as before a commit or as after it.

    Args:
        path: The file; created if it does not exist.
        limit_bytes: Maximum bytes of past data; the oldest data sets are removed first. The states of
            backbone and optimiser and the last reply come on top and are never removed.
        max_age: Maximum age of past data. Older data are removed when the client store is opened and at every
            commit. Age is that of the samples' time stamps; without time stamps, the time since the data set
            was first seen.
    """

    def __init__(
        self, path: Path, limit_bytes: int | None = None, *, max_age: timedelta | None = None
    ) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"ClientStore.limit_bytes: {limit_bytes} is below 0")
        if max_age is not None and max_age <= timedelta(0):
            raise ValueError(f"ClientStore.max_age: {max_age} is not above 0")
        self.path = Path(path)
        self.limit_bytes = limit_bytes
        self.max_age = max_age
        self._open = ExitStack()
        self._connection: sqlite3.Connection | None = None
        # Records that were read, with their digests, by identity: they need not be encoded again.
        self._known: dict[int, tuple[Record, bytes]] = {}
        # The phase that the present order works from, once the server has said what it accepted.
        self._base: int | None = None
        self._settled = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(lock(self.path))
            if not self.path.exists():
                create(self.path)
            self._connection = connect(self.path)
            stack.callback(self._connection.close)
            if self.max_age is not None:
                with self._transaction() as database:
                    ItemTable(database).drop_before(to_microseconds(now() - self.max_age))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection = None
        self._settled = False
        self._known.clear()
        self._open.close()

    def reply(self, order: str, request: bytes = b"") -> bytes | None:
        """Return the reply to ``order`` if it was the last one answered: an order is never served twice.

        Args:
            order: Name of the order.
            request: Digest of the order: a server that was restored may send another one of the same name.
        """
        with one_line_errors(self.path):
            query = "SELECT digest, content FROM answer WHERE name = ? AND request = ?"
            found = self._database.execute(query, [order, request]).fetchone()
            return None if found is None else codec.verified(*found)

    def settle(self, accepted: int) -> int:
        """Choose the state to work from, which the next commit makes final.

        Args:
            accepted: Round of this client's last reply that the server has accepted; -1 for none.

        Returns:
            The round of the state that is worked from; -1 for none. If it is less than ``accepted``, this
            client store is older than the server (a backup, or lost); if it is more, the server is.
        """
        with one_line_errors(self.path):
            phases = PhaseTable(self._database)
            self._base, self._settled = phases.of_order(accepted), True
            return NEVER if self._base is None else phases.rounds()[self._base]

    def client_state(self) -> ClientState | None:
        """Return the client state that :meth:`settle` chose, by default the last; ``None`` if there is none."""
        with one_line_errors(self.path):
            phases = PhaseTable(self._database)
            phase = self._base if self._settled else phases.latest()
            if phase == WAITING and phases.state(WAITING) is None:
                # The last order changed nothing.
                phase = ACCEPTED
            state = None if phase is None else phases.state(phase)
            if phase is None or state is None:
                return None
            items = ItemTable(self._database).read(phase, self._decode)
            return split_records(self._decode(*state), items)

    def commit(
        self,
        order: str,
        reply: bytes,
        client_state: ClientState | None,
        data: ClientData | None = None,
        *,
        round_: int | None = None,
        request: bytes = b"",
    ) -> None:
        """Store the reply to an order and the new client state in one transaction; write only what changed.

        Args:
            order: Name of the order.
            reply: The reply, which is sent again if the same order comes again.
            round_: Round of the order, if the server has yet to accept the reply (:meth:`settle`). By default
                the new state is valid at once.
            request: Digest of the order.
            client_state: The new client state; ``None`` for no change.
            data: The data that the client trained on, if they have time stamps: they can then be forgotten by
                their own time.

        Raises:
            StorageError: If it cannot be written; nothing has changed then.
        """
        present = to_microseconds(now())
        with self._transaction() as database:
            replace_row(database, "answer", order, present, request, codec.digest(reply), reply)
            phases = PhaseTable(database)
            if round_ is not None:
                phases.settle(self._base if self._settled else phases.latest())
            elif client_state is not None:
                phases.settle(ACCEPTED)
            phase, number = (ACCEPTED, NEVER) if round_ is None else (WAITING, round_)
            if client_state is not None:
                phases.write(phase, number, join_records(client_state))
                items = ItemTable(database)
                times = {} if data is None else data.times_by_row()
                items.write(phase, client_state.items, self._encode, times, present)
                self._drop_expired(items, present)
            elif round_ is not None:
                phases.write(phase, number, None)
        self._settled = False

    @property
    def forgotten(self) -> frozenset[int]:
        """Rows that were forgotten on request.

        They are never used again (:meth:`~chronofed.data.client_source.ClientData.without`).
        """
        with one_line_errors(self.path):
            return frozenset(row for (row,) in self._database.execute("SELECT row FROM forgotten"))

    @property
    def forgotten_before(self) -> datetime | None:
        """Time before which all data were forgotten on request; they are never used again."""
        with one_line_errors(self.path):
            found = self._fact("horizon")
        return None if found is None else from_microseconds(found)

    def alias(self, key: int) -> int:
        """Return a key for a data set that is safe to send; equal keys have equal aliases.

        The key itself is a digest of the data, so anyone who guesses the data could verify the guess. The alias
        depends on a secret in this client store.
        """
        with one_line_errors(self.path):
            secret = self._fact("secret")
        content = key.to_bytes(8, "little")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=secret).digest()) >> 1

    def inspect(self) -> Inspection:
        """Return counts, sizes and dates of the stored data."""
        with one_line_errors(self.path):
            return inspection(self.path, self._database)

    def forget(
        self,
        before: datetime | None = None,
        rows: Collection[int | str] | None = None,
        keys: Collection[int] | None = None,
    ) -> Removed:
        """Remove data permanently, also from the file's free pages.

        The backbone's state stays, unless its ``sources`` name a forgotten row; with ``before`` or ``keys`` it
        goes if it has any sources, because nobody knows how old they are. Rows and time are recorded, so that
        these data are never stored again.

        Args:
            before: Remove samples with an earlier time stamp; without time stamps, data sets that were first
                seen earlier. A record that was computed from several samples goes if one of them does.
            rows: Remove rows by name (:func:`~chronofed.data.client_source.row_id`) or by number.
            keys: Remove data sets, by the keys that :meth:`inspect` shows.

        Returns:
            The number of data sets and samples removed.
        """
        numbers = [row_id(row) if isinstance(row, str) else row for row in rows or ()]
        insert = "INSERT OR IGNORE INTO forgotten VALUES (?)"
        with self._transaction() as database:
            earlier, items = counts(database), ItemTable(database)
            database.executemany(insert, ([number] for number in numbers))
            items.drop_keys(keys or ())
            items.drop_forgotten()
            if before is not None:
                time = to_microseconds(before)
                time = max(time, self._fact("horizon") or time)
                database.execute("INSERT OR REPLACE INTO fact VALUES ('horizon', ?)", [time])
                items.drop_before(time)
            self._forget_state(everything=before is not None or bool(keys))
            left = counts(database)
        self._known.clear()
        with one_line_errors(self.path):
            self._database.execute("VACUUM")
        return Removed(earlier[0] - left[0], earlier[1] - left[1])

    @property
    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RunError(
                f"{self.path}: not open; use: with ClientStore(path) as client_store: ..."
            )
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction that ends with a new checksum."""
        with one_line_errors(self.path):
            database = self._database
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                write_checksum(database)
                database.execute("COMMIT")
            except BaseException:
                # SQLite may have rolled back by itself.
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def _drop_expired(self, items: ItemTable, present: int) -> None:
        """Remove data that were forgotten earlier, are too old, or exceed the limit."""
        items.drop_forgotten()
        forgotten_before = self._fact("horizon")
        if forgotten_before is not None:
            items.drop_before(forgotten_before)
        if self.max_age is not None:
            items.drop_before(present - self.max_age // timedelta(microseconds=1))
        if self.limit_bytes is not None:
            items.drop_beyond(self.limit_bytes)

    def _forget_state(self, *, everything: bool) -> None:
        """Remove the backbone's state if it was computed from forgotten rows."""
        phases = PhaseTable(self._database)
        rows = torch.tensor(sorted(self.forgotten), dtype=torch.int64)
        for phase in phases.rounds():
            found = phases.state(phase)
            state = {} if found is None else codec.decode(codec.verified(*found))
            if "sources" in state and (everything or made_of(state, rows)):
                phases.replace_state(phase, {})

    def _encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """Return a record's digest, and its bytes unless it was read from this client store."""
        if id(record) in self._known:
            return self._known[id(record)][1], None
        content = codec.encode(record)
        return codec.digest(content), content

    def _decode(self, digest: bytes, content: bytes) -> Record:
        record = codec.decode(codec.verified(digest, content))
        self._known[id(record)] = record, digest
        return record

    def _fact(self, name: str) -> Any:
        found = self._database.execute("SELECT value FROM fact WHERE name = ?", [name]).fetchone()
        return None if found is None else found[0]


def inspect(path: Path) -> Inspection:
    """Inspect a client store, even while a client uses it.

    Raises:
        RunError: If it is missing or damaged.
    """
    database = connect(path)
    try:
        with one_line_errors(path), read_transaction(database):
            return inspection(path, database)
    finally:
        database.close()

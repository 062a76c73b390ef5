"""Memory items in a client store: equal records are stored once, and single samples can be removed."""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from chronofed.clients.deletion import without_rows
from chronofed.clients.store import codec
from chronofed.core.types import Record
from chronofed.methods.memories import MemoryItem
from chronofed.methods.memories.base import SEVERAL

Decode: TypeAlias = Callable[[bytes, bytes], Record]
"""Makes a record of its digest and its content."""
Encode: TypeAlias = Callable[[Record], tuple[bytes, bytes | None]]
"""Returns the digest of a record and its content; ``None`` for content that is known to be stored."""

_HAS_TIMES = "SELECT 1 FROM sample s WHERE s.record = item.record AND s.at IS NOT NULL"


@dataclass(frozen=True, slots=True)
class ItemTable:
    """The memory items of an open client store; change them inside a transaction only.

    Attributes:
        database: Connection to the client store.
    """

    database: sqlite3.Connection

    def read(self, phase: int, decode: Decode) -> tuple[MemoryItem, ...]:
        """Read all items of a phase, in order; equal records are read once."""
        records: dict[int, Record] = {}
        found = []
        query = "SELECT round, client, key, size, record FROM item WHERE phase = ? ORDER BY place"
        for round_, client, key, size, number in self.database.execute(query, [phase]).fetchall():
            if number not in records:
                records[number] = decode(*self._stored(number))
            found.append(MemoryItem(round_, client, key, size, records[number]))
        return tuple(found)

    def write(
        self,
        phase: int,
        items: tuple[MemoryItem, ...],
        encode: Encode,
        times: Mapping[int, int],
        now: int,
    ) -> None:
        """Replace all items of a phase; a record that is stored already is not written again.

        Args:
            phase: The phase.
            items: The new items.
            encode: Encodes a record.
            times: Times of rows, in microseconds since 1970, as far as they are known.
            now: The present time, in microseconds since 1970.
        """
        times = {**self._times(), **times}
        earlier = {
            (client, key, record): (first, last)
            for client, key, first, last, record in self._dates()
        }
        first_seen: dict[tuple[int, int], int] = {}
        for (client, key, _), (first, _) in earlier.items():
            first_seen[client, key] = min(first, first_seen.get((client, key), first))
        numbers = [self._number(item.record, encode, times) for item in items]
        self.database.execute("DELETE FROM item WHERE phase = ?", [phase])
        for place, (item, number) in enumerate(zip(items, numbers, strict=True)):
            first = first_seen.get((item.client, item.key), now)
            _, last = earlier.get((item.client, item.key, number), (first, now))
            values = [
                phase,
                place,
                item.round,
                item.client,
                item.key,
                item.size,
                number,
                first,
                last,
            ]
            values += codec.count_samples(item.record)
            self.database.execute("INSERT INTO item VALUES (?,?,?,?,?,?,?,?,?,?,?)", values)
        self._remove_unused()

    def drop_keys(self, keys: Collection[int]) -> None:
        """Remove data sets, and what was computed from several of them together."""
        doomed = {*keys, SEVERAL} if keys else ()
        self.database.executemany("DELETE FROM item WHERE key = ?", ([key] for key in doomed))
        self._remove_unused()

    def drop_forgotten(self) -> None:
        """Remove the rows that were forgotten on request."""
        self._drop_rows("SELECT record, row FROM sample WHERE row IN (SELECT row FROM forgotten)")

    def drop_before(self, time: int) -> None:
        """Remove older samples; where samples have no time stamps, remove data sets first seen earlier."""
        self._drop_rows(f"SELECT record, row FROM sample WHERE at < {time:d}")
        self.database.execute(
            f"DELETE FROM item WHERE first < ? AND NOT EXISTS ({_HAS_TIMES})", [time]
        )
        self._remove_unused()

    def drop_beyond(self, limit_bytes: int) -> None:
        """Remove the oldest data sets of each phase until the rest of it fits into the limit."""
        for phase in (0, 1):
            self._drop_beyond(phase, limit_bytes)
        self._remove_unused()

    def _drop_beyond(self, phase: int, limit_bytes: int) -> None:
        query = (
            "SELECT place, record, length(content) FROM item JOIN record ON number = record "
            "WHERE phase = ? ORDER BY round DESC, place DESC"
        )
        sizes: dict[int, int] = {}
        for place, record, size in self.database.execute(query, [phase]).fetchall():
            if sum(sizes.values()) + (0 if record in sizes else size) <= limit_bytes:
                sizes[record] = size
            else:
                # Nothing older stays, either, even if it would fit.
                limit_bytes = 0
                delete = "DELETE FROM item WHERE phase = ? AND place = ?"
                self.database.execute(delete, [phase, place])

    def _drop_rows(self, query: str) -> None:
        affected: dict[int, list[int]] = {}
        for record, row in self.database.execute(query):
            affected.setdefault(record, []).append(row)
        times = self._times() if affected else {}
        for number, rows in affected.items():
            record = codec.decode(codec.verified(*self._stored(number)))
            left = without_rows(MemoryItem(0, 0, 0, 0, record), torch.tensor(rows))
            if left is None:
                self.database.execute("DELETE FROM item WHERE record = ?", [number])
            else:
                self._replace(number, left.record, times)
        self._remove_unused()

    def _replace(self, number: int, record: Record, times: Mapping[int, int]) -> None:
        new = self._number(record, _encode, times)
        query = "UPDATE item SET record = ?, samples = ?, classes = ? WHERE record = ?"
        self.database.execute(query, [new, *codec.count_samples(record), number])

    def _number(self, record: Record, encode: Encode, times: Mapping[int, int]) -> int:
        """Return the number under which a record is stored; store it if it is new."""
        digest, content = encode(record)
        find = "SELECT number FROM record WHERE digest = ?"
        found = self.database.execute(find, [digest]).fetchone()
        if found is not None:
            return int(found[0])
        values = [digest, codec.encode(record) if content is None else content]
        insert = "INSERT INTO record (digest, content) VALUES (?, ?) RETURNING number"
        number = int(self.database.execute(insert, values).fetchone()[0])
        rows = ([number, row, times.get(row)] for row in codec.rows_of(record))
        self.database.executemany("INSERT INTO sample VALUES (?, ?, ?)", rows)
        return number

    def _stored(self, number: int) -> tuple[bytes, bytes]:
        query = "SELECT digest, content FROM record WHERE number = ?"
        digest, content = self.database.execute(query, [number]).fetchone()
        return digest, content

    def _times(self) -> dict[int, int]:
        """Return the times of all stored samples, as far as they are known."""
        return dict(self.database.execute("SELECT row, at FROM sample WHERE at IS NOT NULL"))

    def _dates(self) -> list[tuple[int, int, int, int, int]]:
        return self.database.execute("SELECT client, key, first, last, record FROM item").fetchall()

    def _remove_unused(self) -> None:
        """Remove records that no item refers to."""
        self.database.execute("DELETE FROM record WHERE number NOT IN (SELECT record FROM item)")
        self.database.execute("DELETE FROM sample WHERE record NOT IN (SELECT record FROM item)")


def _encode(record: Record) -> tuple[bytes, bytes]:
    content = codec.encode(record)
    return codec.digest(content), content

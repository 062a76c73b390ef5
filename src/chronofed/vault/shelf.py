"""Keepsakes in the tables of a vault: stored once by content, and taken out again sample by sample."""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from chronofed.deletion import without_rows
from chronofed.memories import Keepsake
from chronofed.types import Record
from chronofed.vault import blobs

Read = Callable[[bytes, bytes], Record]  # of a digest and content
Content = Callable[[Record], tuple[bytes, bytes | None]]  # digest, and bytes unless they are stored

_DATED = "SELECT 1 FROM sample s WHERE s.record = keepsake.record AND s.at IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Shelf:
    """The keepsakes of an open vault; whoever changes them does so in a transaction.

    Attributes:
        file: The vault.
    """

    file: sqlite3.Connection

    def kept(self, read: Read) -> tuple[Keepsake, ...]:
        """All of them, in order; records that are the same are read once."""
        records: dict[int, Record] = {}
        found = []
        query = "SELECT round, client, key, size, record FROM keepsake ORDER BY place"
        for round_, client, key, size, number in self.file.execute(query).fetchall():
            if number not in records:
                records[number] = read(*self._stored(number))
            found.append(Keepsake(round_, client, key, size, records[number]))
        return tuple(found)

    def put(
        self,
        kept: tuple[Keepsake, ...],
        content: Content,
        stamps: Mapping[int, int],
        present: int,
    ) -> None:
        """Replace all keepsakes; a record that is stored already is not written again."""
        stamps = {**self._stamps(), **stamps}
        earlier = {
            (client, key, record): (first, last)
            for client, key, first, last, record in self._dates()
        }
        first_seen: dict[tuple[int, int], int] = {}
        for (client, key, _), (first, _) in earlier.items():
            first_seen[client, key] = min(first, first_seen.get((client, key), first))
        numbers = [self._number(k.record, content, stamps) for k in kept]
        self.file.execute("DELETE FROM keepsake")
        for place, (k, number) in enumerate(zip(kept, numbers, strict=True)):
            first = first_seen.get((k.client, k.key), present)
            _, last = earlier.get((k.client, k.key, number), (first, present))
            about = [k.round, k.client, k.key, k.size]
            values = [place, *about, number, first, last, *blobs.census(k.record)]
            self.file.execute("INSERT INTO keepsake VALUES (?,?,?,?,?,?,?,?,?,?)", values)
        self._sweep()

    def drop_keys(self, keys: Collection[int]) -> None:
        """Without some data sets."""
        self.file.executemany("DELETE FROM keepsake WHERE key = ?", ([key] for key in keys))
        self._sweep()

    def drop_forgotten(self) -> None:
        """Without the rows that must not be kept."""
        self._drop_rows("SELECT record, row FROM sample WHERE row IN (SELECT row FROM forgotten)")

    def drop_before(self, stamp: int) -> None:
        """Without older samples; without older data sets where samples have no time stamps."""
        self._drop_rows(f"SELECT record, row FROM sample WHERE at < {stamp:d}")
        self.file.execute(
            f"DELETE FROM keepsake WHERE first < ? AND NOT EXISTS ({_DATED})", [stamp]
        )
        self._sweep()

    def drop_beyond(self, budget: int) -> None:
        """Without the oldest data sets, until the rest takes at most so many bytes."""
        query = (
            "SELECT place, record, length(content) FROM keepsake JOIN record ON number = record "
            "ORDER BY round DESC, place DESC"
        )
        sizes: dict[int, int] = {}
        for place, record, size in self.file.execute(query).fetchall():
            if sum(sizes.values()) + (0 if record in sizes else size) <= budget:
                sizes[record] = size
            else:
                budget = 0  # nothing older stays, either
                self.file.execute("DELETE FROM keepsake WHERE place = ?", [place])
        self._sweep()

    def _drop_rows(self, query: str) -> None:
        doomed: dict[int, list[int]] = {}
        for record, row in self.file.execute(query):
            doomed.setdefault(record, []).append(row)
        stamps = self._stamps() if doomed else {}
        for number, rows in doomed.items():
            record = blobs.decode(self._stored(number)[1])
            left = without_rows(Keepsake(0, 0, 0, 0, record), torch.tensor(rows))
            if left is None:
                self.file.execute("DELETE FROM keepsake WHERE record = ?", [number])
            else:
                self._replace(number, left.record, stamps)
        self._sweep()

    def _replace(self, number: int, record: Record, stamps: Mapping[int, int]) -> None:
        new = self._number(record, _encoded, stamps)
        query = "UPDATE keepsake SET record = ?, samples = ?, classes = ? WHERE record = ?"
        self.file.execute(query, [new, *blobs.census(record), number])

    def _number(self, record: Record, content: Content, stamps: Mapping[int, int]) -> int:
        """Where a record is stored, from now on if it was not before."""
        digest, stored = content(record)
        find = "SELECT number FROM record WHERE digest = ?"
        found = self.file.execute(find, [digest]).fetchone()
        if found is not None:
            return int(found[0])
        values = [digest, blobs.encode(record) if stored is None else stored]
        insert = "INSERT INTO record (digest, content) VALUES (?, ?) RETURNING number"
        number = int(self.file.execute(insert, values).fetchone()[0])
        rows = ([number, row, stamps.get(row)] for row in blobs.rows_of(record))
        self.file.executemany("INSERT INTO sample VALUES (?, ?, ?)", rows)
        return number

    def _stored(self, number: int) -> tuple[bytes, bytes]:
        query = "SELECT digest, content FROM record WHERE number = ?"
        digest, content = self.file.execute(query, [number]).fetchone()
        return digest, content

    def _stamps(self) -> dict[int, int]:
        """Times of all samples that are kept, where they are known."""
        return dict(self.file.execute("SELECT row, at FROM sample WHERE at IS NOT NULL"))

    def _dates(self) -> list[tuple[int, int, int, int, int]]:
        return self.file.execute("SELECT client, key, first, last, record FROM keepsake").fetchall()

    def _sweep(self) -> None:
        """Remove records that no keepsake refers to."""
        self.file.execute("DELETE FROM record WHERE number NOT IN (SELECT record FROM keepsake)")
        self.file.execute("DELETE FROM sample WHERE record NOT IN (SELECT record FROM keepsake)")


def _encoded(record: Record) -> tuple[bytes, bytes]:
    content = blobs.encode(record)
    return blobs.digest(content), content

"""Inspection of a client store: counts, sizes and dates, never a sample."""

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from chronofed.data.client_source import from_microseconds


@dataclass(frozen=True, slots=True)
class DataSet:
    """Stored samples of one data set.

    Attributes:
        key: Identifies the data set in this client store.
        round: Last round that trained on it.
        size: Number of samples that it had.
        samples: Number of samples that are stored, real or generated.
        classes: Number of classes among them.
        bytes: Their size.
        first_seen: Time of the first commit.
        last_seen: Time of the last commit that changed the stored samples.
        oldest: Time stamp of the oldest stored sample; ``None`` if there are no time stamps.
        newest: Time stamp of the newest stored sample.
    """

    key: int
    round: int
    size: int
    samples: int
    classes: int
    bytes: int
    first_seen: datetime
    last_seen: datetime
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """Content of a client store.

    Attributes:
        path: The file.
        bytes: Its size.
        order: Name of the last order answered; ``None`` before the first.
        answered: Time of that answer.
        reply_bytes: Size of the reply.
        state_bytes: Size of the backbone's state, such as controls or a personal model.
        data_sets: Stored data sets, oldest first.
        forgotten_rows: Number of rows that were forgotten on request and are never stored again.
        forgotten_before: Data from before this time were forgotten on request and are never stored again.
    """

    path: Path
    bytes: int
    order: str | None
    answered: datetime | None
    reply_bytes: int
    state_bytes: int
    data_sets: tuple[DataSet, ...]
    forgotten_rows: int
    forgotten_before: datetime | None

    @property
    def samples(self) -> int:
        """Number of stored samples of all data sets."""
        return sum(each.samples for each in self.data_sets)


@dataclass(frozen=True, slots=True)
class Removed:
    """Data that :meth:`ClientStore.forget` removed.

    Attributes:
        data_sets: Number of data sets of which nothing is left.
        samples: Number of samples, from these and other data sets.
    """

    data_sets: int
    samples: int


_DATA_SETS = """
SELECT k.key, k.round, k.size, k.samples, k.classes, length(r.content), k.first, k.last,
       (SELECT min(at) FROM sample s WHERE s.record = k.record),
       (SELECT max(at) FROM sample s WHERE s.record = k.record)
FROM item k JOIN record r ON r.number = k.record
WHERE k.phase = (SELECT max(phase) FROM phase WHERE state IS NOT NULL) ORDER BY k.place
"""
_STATE = """
SELECT length(s.content) FROM state s JOIN phase p ON p.state = s.number ORDER BY p.phase DESC
"""
_COUNTS = """
SELECT count(*), total(samples) FROM item
WHERE phase = (SELECT max(phase) FROM phase WHERE state IS NOT NULL)
"""


def inspection(path: Path, database: sqlite3.Connection) -> Inspection:
    """Inspect an open client store; reads counts and sizes only."""
    order, answered, reply = _row(database, "SELECT name, at, length(content) FROM answer", 3)
    (state,) = _row(database, _STATE, 1)
    (rows,) = _row(database, "SELECT count(*) FROM forgotten", 1)
    (before,) = _row(database, "SELECT value FROM fact WHERE name = 'horizon'", 1)
    kept = tuple(DataSet(*each[:6], *map(_time, each[6:])) for each in database.execute(_DATA_SETS))
    size = path.stat().st_size
    return Inspection(
        path, size, order, _time(answered), reply or 0, state or 0, kept, rows, _time(before)
    )


def counts(database: sqlite3.Connection) -> tuple[int, int]:
    """Return the numbers of stored data sets and samples."""
    sets, samples = _row(database, _COUNTS, 2)
    return int(sets), int(samples)


def _row(database: sqlite3.Connection, query: str, width: int) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = database.execute(query).fetchone()
    return (None,) * width if found is None else found


def _time(microseconds: int | None) -> Any:
    return None if microseconds is None else from_microseconds(microseconds)

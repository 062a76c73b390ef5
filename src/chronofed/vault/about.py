"""What a vault tells of itself: counts, sizes and dates, never a sample."""

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from chronofed.sources import moment


@dataclass(frozen=True, slots=True)
class DataSet:
    """What is kept of one data set.

    Attributes:
        key: Its name in this vault.
        round: When it was seen last.
        size: Samples that it had.
        samples: Samples that are kept of it, real or made.
        classes: How many classes these are of.
        bytes: What they take.
        first_seen: When it was first committed.
        last_seen: When what is kept of it last changed.
        oldest: Time stamp of its oldest sample, where time stamps are known.
        newest: Time stamp of its newest sample.
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
    """What a vault holds.

    Attributes:
        path: The file.
        bytes: Its size.
        order: The last order answered; ``None`` before the first.
        answered: When that was.
        reply_bytes: Size of the reply to it.
        state_bytes: Size of what the backbone keeps, such as controls or a personal model.
        data_sets: What is kept of each data set, oldest first.
        forgotten_rows: Rows that were forgotten on request, and are never kept again.
        forgotten_before: Data from before this time were forgotten on request, and are never kept again.
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
        """Samples that are kept in all."""
        return sum(each.samples for each in self.data_sets)


@dataclass(frozen=True, slots=True)
class Removed:
    """What forgetting took away.

    Attributes:
        data_sets: Data sets of which nothing is left.
        samples: Samples, in these and in others.
    """

    data_sets: int
    samples: int


_DATA_SETS = """
SELECT k.key, k.round, k.size, k.samples, k.classes, length(r.content), k.first, k.last,
       (SELECT min(at) FROM sample s WHERE s.record = k.record),
       (SELECT max(at) FROM sample s WHERE s.record = k.record)
FROM keepsake k JOIN record r ON r.number = k.record ORDER BY k.place
"""


def inspection(path: Path, file: sqlite3.Connection) -> Inspection:
    """Look at an open vault; nothing that was kept is read but counts and sizes."""
    order, answered, reply = _row(file, "SELECT name, at, length(content) FROM answer", 3)
    (state,) = _row(file, "SELECT length(content) FROM state", 1)
    (rows,) = _row(file, "SELECT count(*) FROM forgotten", 1)
    (before,) = _row(file, "SELECT value FROM fact WHERE name = 'horizon'", 1)
    kept = tuple(DataSet(*each[:6], *map(_moment, each[6:])) for each in file.execute(_DATA_SETS))
    size = path.stat().st_size
    return Inspection(
        path, size, order, _moment(answered), reply or 0, state or 0, kept, rows, _moment(before)
    )


def counts(file: sqlite3.Connection) -> tuple[int, int]:
    """Data sets and samples that are kept."""
    sets, samples = _row(file, "SELECT count(*), total(samples) FROM keepsake", 2)
    return int(sets), int(samples)


def _row(file: sqlite3.Connection, query: str, width: int) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = file.execute(query).fetchone()
    return (None,) * width if found is None else found


def _moment(stamp: int | None) -> Any:  # noqa: ANN401 - absent only where it may be
    return None if stamp is None else moment(stamp)

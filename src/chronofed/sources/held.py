"""What a client holds in a round: samples, the names of their rows, and a key for the whole."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.types import Samples

Numbers = NDArray[np.int64]

_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Held:
    """The current data of a client.

    Attributes:
        samples: The samples, oldest first; ``samples.rows`` names the row of each (:func:`row_id`).
        times: Microseconds since 1970 of each, in UTC; ``None`` where there are no time stamps.
        digests: A digest of every sample with its class, time and row.
        notes: What was left out, a line each.
    """

    samples: Samples
    times: Numbers | None  # (n,)
    digests: Numbers  # (n,)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def key(self) -> int:
        """Which data set it is: the same rows with the same content have the same key, whenever they are read.

        It is a digest of the data. Do not send it: who guesses the data could check the guess. Send
        :meth:`chronofed.vault.Vault.alias` of it.
        """
        return _number(self.digests.tobytes())

    @property
    def rows(self) -> Numbers:
        """The names of the rows, ``(n,)``."""
        assert self.samples.rows is not None
        rows: Numbers = self.samples.rows.numpy()
        return rows

    def stamps(self) -> dict[int, int]:
        """The time of every row; empty where there are no time stamps."""
        return (
            {}
            if self.times is None
            else dict(zip(self.rows.tolist(), self.times.tolist(), strict=True))
        )

    def without(self, rows: Collection[int] = (), before: datetime | None = None) -> "Held":
        """Without rows that were forgotten, by number or by time: another data set, with another key."""
        stay = ~np.isin(self.rows, np.fromiter(rows, np.int64, len(rows)))
        if before is not None and self.times is not None:
            stay &= self.times >= stamp(before)
        if stay.all():
            return self
        times = None if self.times is None else self.times[stay]
        return Held(self.samples[torch.from_numpy(stay)], times, self.digests[stay], self.notes)


def row_id(name: str) -> int:
    """The number of a row that the user calls ``name``, the same everywhere: 63 bits of a digest.

    >>> row_id("17") == row_id("17") != row_id("017")
    True
    """
    return _number(name.encode())


def stamp(when: datetime) -> int:
    """Microseconds since 1970; a time without a zone is taken as UTC."""
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (aware - _ORIGIN) // timedelta(microseconds=1)


def moment(microseconds: int) -> datetime:
    """The time that :func:`stamp` gave a number."""
    return _ORIGIN + timedelta(microseconds=microseconds)


def digest_rows(*parts: NDArray[np.generic]) -> Numbers:
    """A number for every row of some arrays with the same number of rows: 63 bits of a digest."""
    arrays = [np.ascontiguousarray(part) for part in parts]
    views = [a.reshape(len(a), -1).view(np.uint8) if len(a) else a for a in arrays]
    rows = (_number(*(view[k].data for view in views)) for k in range(len(arrays[0])))
    return np.fromiter(rows, np.int64, len(arrays[0]))


def _number(*parts: bytes | memoryview) -> int:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(part)
    return int.from_bytes(total.digest()) >> 1

"""The data of a client in one round: samples, the identifiers of their rows, and a key for the whole."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.types import Samples

Numbers = NDArray[np.int64]

_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ClientData:
    """The current data of a client.

    Attributes:
        samples: The samples, oldest first; ``samples.rows`` identifies the row of each (:func:`row_id`).
        times: Time of each in microseconds since 1970, in UTC; ``None`` if there are no time stamps.
        digests: Digest of each sample with its class, time and row.
        notes: Lines about rows that were left out.
    """

    samples: Samples
    times: Numbers | None  # (n,)
    digests: Numbers  # (n,)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def key(self) -> int:
        """Key of the data set: equal rows have the same key, whenever they are read.

        The key is a digest of the data. Do not send it: anyone who guesses the data could verify the guess.
        Send its :meth:`~chronofed.clients.store.ClientStore.alias` instead.
        """
        return _number(self.digests.tobytes())

    @property
    def rows(self) -> Numbers:
        """Identifiers of the rows, ``(n,)``."""
        assert self.samples.rows is not None
        rows: Numbers = self.samples.rows.numpy()
        return rows

    def times_by_row(self) -> dict[int, int]:
        """Return the time of every row; empty if there are no time stamps."""
        if self.times is None:
            return {}
        return dict(zip(self.rows.tolist(), self.times.tolist(), strict=True))

    def without(self, rows: Collection[int] = (), before: datetime | None = None) -> "ClientData":
        """Remove rows by identifier or by time; the result is another data set, with another key."""
        stay = ~np.isin(self.rows, np.fromiter(rows, np.int64, len(rows)))
        if before is not None and self.times is not None:
            stay &= self.times >= to_microseconds(before)
        if stay.all():
            return self
        times = None if self.times is None else self.times[stay]
        return ClientData(
            self.samples[torch.from_numpy(stay)], times, self.digests[stay], self.notes
        )


def row_id(name: str) -> int:
    """Return the identifier of the row that the user calls ``name``: 63 bits of a digest, the same everywhere.

    >>> row_id("17") == row_id("17") != row_id("017")
    True
    """
    return _number(name.encode())


def to_microseconds(when: datetime) -> int:
    """Return microseconds since 1970; a time without a zone is taken as UTC."""
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (aware - _ORIGIN) // timedelta(microseconds=1)


def from_microseconds(microseconds: int) -> datetime:
    """Return the time of a number from :func:`to_microseconds`."""
    return _ORIGIN + timedelta(microseconds=microseconds)


def digest_rows(*parts: NDArray[np.generic]) -> Numbers:
    """Return 63 bits of a digest for every row of some arrays with the same number of rows."""
    arrays = [np.ascontiguousarray(part) for part in parts]
    views = [a.reshape(len(a), -1).view(np.uint8) if len(a) else a for a in arrays]
    rows = (_number(*(view[k].data for view in views)) for k in range(len(arrays[0])))
    return np.fromiter(rows, np.int64, len(arrays[0]))


def _number(*parts: bytes | memoryview) -> int:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(part)
    return int.from_bytes(total.digest()) >> 1

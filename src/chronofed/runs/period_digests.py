"""Digests of a table by period: rows may come in later periods, but those of earlier ones must not change."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch

from chronofed.core.safetensors_io import numbers
from chronofed.core.types import Samples
from chronofed.data.dataset import Codes, Dataset
from chronofed.runs.digests import digest

NAME = "periods.json"


@dataclass(frozen=True, slots=True)
class PeriodDigests:
    """The content of ``periods.json``.

    Attributes:
        periods: The digest of the rows of every period, by name, in time order.
        rows: Number of rows of every period.
        clients: Names of the clients in the order of their numbers.
        preparation: Digest of how columns became features and classes.
    """

    periods: dict[str, str]
    rows: tuple[int, ...]
    clients: tuple[str, ...]
    preparation: str

    def digest(self) -> str:
        """Hash all of it."""
        return digest(json.dumps(asdict(self)).encode())

    def to_json(self) -> bytes:
        """Write it as JSON, with a digest of its own."""
        return json.dumps(asdict(self) | {"digest": self.digest()}, indent=1).encode() + b"\n"

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "PeriodDigests":
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: If it is damaged.
        """
        expected = table.pop("digest", None)
        found = msgspec.convert(table, cls)
        if found.digest() != expected:
            raise ValueError("it does not match its own digest")
        return found

    def changed(self, now: "PeriodDigests") -> str:
        """Say in words what differs in the periods known here from those of longer data; empty if nothing does.

        The data may go on: with later periods, and with clients that appear in these for the first time.
        """
        if self.preparation != now.preparation:
            return "the preparation of its columns"
        new = [*now.periods, *[""] * len(self.periods)]
        for name, other in zip(self.periods, new, strict=False):
            if name != other:
                return f"period {other if other and other not in self.periods else name}"
            if self.periods[name] != now.periods[name]:
                return f"period {name}"
        return "" if now.clients[: len(self.clients)] == self.clients else "the names of clients"


def digest_periods(data: Dataset) -> PeriodDigests | None:
    """Hash the rows of every period; ``None`` for data without periods.

    Args:
        data: The data as loaded, before samples are chosen to evaluate on.
    """
    origin = data.origin
    if origin is None:
        return None
    count = len(origin.periods)
    hashes = [hashlib.blake2b(digest_size=16) for _ in range(count)]
    rows = np.zeros(count, dtype=np.int64)
    for samples, client, period in _purposes(data):
        order = np.argsort(period, kind="stable")
        edges = np.searchsorted(period[order], np.arange(count + 1))
        for k, (start, stop) in enumerate(pairwise(edges.tolist())):
            for part in _parts(samples, client, order[start:stop]):
                hashes[k].update(part)
        rows += np.diff(edges)
    found = dict(zip(origin.periods, (each.hexdigest() for each in hashes), strict=True))
    preparation = data.preparation.to_json() if data.preparation else b""
    return PeriodDigests(found, tuple(rows.tolist()), origin.clients, digest(preparation))


def in_time_order(data: Dataset, periods: int) -> bool:
    """Tell if the rows of the first periods come before all others, so that their positions stay."""
    late = (period >= periods for _, _, period in _purposes(data))
    return all((late_rows[1:] >= late_rows[:-1]).all() for late_rows in late)


def _purposes(data: Dataset) -> Iterator[tuple[Samples, Codes, Codes]]:
    """Yield the samples of every purpose with their clients and periods."""
    origin = data.origin
    if origin is None:
        return
    yield data.train, origin.train_client, origin.train_period
    yield data.test, origin.test_client, origin.test_period
    if data.validation is not None:
        yield data.validation, origin.validation_client, origin.validation_period


def _parts(samples: Samples, client: Codes, rows: Codes) -> Iterator[bytes | memoryview]:
    """Yield the content of some rows, each part after its type and shape."""
    places = torch.from_numpy(rows)
    for tensor in (samples.x[places], samples.y[places], torch.from_numpy(client[rows])):
        yield f"{tensor.dtype}{tuple(tensor.shape)}".encode()
        yield numbers(tensor)

"""Sources: from columns that grow to the samples of a round."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.config import Kind, Positive
from chronofed.core.errors import DataError
from chronofed.core.types import Samples
from chronofed.data.client_source.client_data import (
    ClientData,
    Numbers,
    digest_rows,
    row_id,
    to_microseconds,
)
from chronofed.data.client_source.current import Current, Everything, Present
from chronofed.data.columns import Column, Columns, missing
from chronofed.data.encoding import encode_features, encode_labels
from chronofed.data.preparation import Feature, Finite, Target
from chronofed.data.target import scaled_numbers

_LATEST_SECONDS = 1e11
"""Largest time stamp taken as seconds, in the year 5138; present times in milliseconds are beyond it."""


class Source(Kind, kw_only=True):
    """A client's own rows: their place, columns and classes.

    Attributes:
        path: The file or folder; a relative path starts at the folder of the client's settings.
        target: Column to predict.
        classes: All classes, in the order that server and clients agreed on. Without any, the target is a
            number, and ``mean`` and ``deviation`` must be given.
        mean: Mean of a target that is a number, as server and clients agreed on; it is subtracted.
        deviation: Deviation of the target, likewise; it is then divided by this.
        time: Column of time stamps: dates, or seconds since 1970. Rows with a time in the future are used when
            that time has come; a row that arrives late counts by its time stamp. Empty if there is none: rows
            are then taken to be in the order of time.
        id: Column with a unique name for every row, by which it can be forgotten. Empty if there is none: a
            digest of the row's content then identifies it.
        features: Columns to predict from; by default all other columns, as numbers without scaling, or the
            array ``x`` of an npz file.
        current: Rule for the rows that a round trains on.
    """

    path: str
    classes: tuple[str, ...] = ()
    mean: Finite | None = None
    deviation: Positive | None = None
    target: str = "y"
    time: str = "time"
    id: str = ""
    features: tuple[Feature, ...] = ()
    current: Current = Everything()

    def __post_init__(self) -> None:
        super().__post_init__()
        where = type(self).__name__
        scaled = self.mean is not None and self.deviation is not None
        if not scaled and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            msg = f"{where}.classes: expected at least two different ones, not {list(self.classes)}"
            raise ValueError(f"{msg}; for a number give its mean and deviation")
        if self.classes and (self.mean is not None or self.deviation is not None):
            msg = f"{where}.mean and deviation are of a number, and the target has classes"
            raise ValueError(msg)
        if self.current.needs_times and not self.time:
            msg = f"{where}.current: needs time stamps; name their column as time"
            raise ValueError(msg)
        if self.target in (feature.name for feature in self.features):
            msg = f"{where}.features: {self.target!r} is the target and must not predict itself"
            raise ValueError(msg)

    @property
    def scaling(self) -> Target | None:
        """The scale of a target that is a number; ``None`` if it has classes."""
        if self.mean is None or self.deviation is None:
            return None
        return Target(self.target, self.mean, self.deviation)

    @abstractmethod
    def tables(self) -> Sequence[Columns]:
        """Read all rows that are there now."""

    def read(self, round: int, at: datetime | None = None) -> ClientData:
        """Read the current data; without current rows the result is empty.

        Args:
            round: Number of the round.
            at: The present time; by default now.

        Raises:
            DataError: If the rows cannot be read, or do not match features and classes.
        """
        instant = to_microseconds(datetime.now(UTC) if at is None else at)
        # A file that is being written may not have a header yet.
        tables = [table for table in self.tables() if table.arrays]
        notes: list[str] = []
        own = msgspec.structs.replace(self, features=self._features(tables))
        rows = own._known(tables, instant, notes)
        present = Present(round, np.datetime64(instant, "us"))
        return own._data(tables, rows.only(self.current.pick(rows.times, present)), tuple(notes))

    def all_features(self) -> tuple[Feature, ...]:
        """Return the features that are set; by default those of the rows that are there now."""
        return self._features([table for table in self.tables() if table.arrays])

    def _known(self, tables: Sequence[Columns], instant: int, notes: list[str]) -> "_Rows":
        """Return the rows with a target and a time that is not in the future, sorted by time."""
        parts = [self._part(number, table) for number, table in enumerate(tables)]
        rows = _Rows.joined([part for part, _ in parts])
        target = np.concatenate([lost for _, lost in parts]) if parts else np.zeros(0, np.bool_)
        undated = missing(rows.times) & ~target
        future = rows.times > np.datetime64(instant, "us")
        for lost, why in ((target, "no target"), (undated, "no time"), (future, "in the future")):
            if lost.any():
                notes.append(f"{lost.sum()} rows left out: {why}")
        left = rows.only(~(target | undated | future))
        return left.only(np.argsort(left.times, kind="stable")) if self.time else left

    def _part(self, number: int, table: Columns) -> tuple["_Rows", NDArray[np.bool_]]:
        keys = [key for key in (self.target, self.time, self.id) if key]
        count = table.rows([*keys, *(feature.name for feature in self.features)])
        times = np.full(count, 0, "datetime64[us]")
        if self.time:
            times = _dates(table, self.time)
        rows = _Rows(np.full(count, number), np.arange(count), times)
        return rows, missing(table.text(self.target))

    def _data(self, tables: Sequence[Columns], rows: "_Rows", notes: tuple[str, ...]) -> ClientData:
        """Decode rows into samples, in an order that depends on their content only."""
        parts = [
            self._decoded(table, rows.place[rows.table == n]) for n, table in enumerate(tables)
        ]
        parts = [part for part in parts if len(part[0])] or parts[:1]
        if not parts:
            empty = Samples(torch.zeros(0), *torch.zeros(2, 0, dtype=torch.int64))
            return ClientData(empty, None, np.zeros(0, np.int64), notes)
        shapes = {(part[0].shape[1:], part[0].dtype) for part in parts}
        if len(shapes) > 1:
            raise DataError(f"{self.path}: arrays of different shapes or types in its files")
        # Restore the order of time: the parts are grouped by table.
        order = np.argsort(np.argsort(rows.table, kind="stable"), kind="stable")
        x, y, names = (np.concatenate(columns)[order] for columns in zip(*parts, strict=True))
        times = rows.times.astype(np.int64)
        digests = digest_rows(x, y, times, names)
        ids = names if self.id else digests
        pick = np.lexsort((digests, times)) if self.time else np.arange(len(y))
        if self.id:
            pick = self._unique(pick, ids, digests)
        samples = Samples(*(torch.from_numpy(array[pick]) for array in (x, y, ids)))
        return ClientData(samples, times[pick] if self.time else None, digests[pick], notes)

    def _unique(self, pick: Numbers, ids: Numbers, digests: Numbers) -> Numbers:
        """Drop duplicate rows; refuse different rows with the same identifier."""
        _, first = np.unique(ids[pick], return_index=True)
        pairs = np.unique(np.stack([ids[pick], digests[pick]]), axis=1)
        if pairs.shape[1] > len(first):
            msg = f"{self.path}: column {self.id!r} has the same name for different rows"
            raise DataError(msg)
        return pick[np.sort(first)]

    def _decoded(
        self, table: Columns, place: Numbers
    ) -> tuple[NDArray[Any], NDArray[Any], Numbers]:
        """Return features, classes or numbers, and identifiers of some rows."""
        x = encode_features(table, self.features, place)
        y: NDArray[Any]
        if self.scaling is None:
            y = encode_labels(table, self.target, place, self.classes, "class")
        else:
            y = scaled_numbers(table, self.scaling, place)
        return x, y, self._names(table, place)

    def _names(self, table: Columns, place: Numbers) -> Numbers:
        if not self.id:
            return np.zeros(len(place), np.int64)
        names = table.text(self.id)[place]
        if missing(names).any():
            first = int(place[missing(names)][0])
            raise table.cell_error(self.id, first, "empty; every row needs a name")
        return np.fromiter(map(row_id, names.tolist()), np.int64, len(names))

    def _features(self, tables: Sequence[Columns]) -> tuple[Feature, ...]:
        """Return the features that are set; by default the columns of the first table, which all must share."""
        if self.features or not tables:
            return self.features
        first, *others = tables
        names = self._free(first)
        if not names:
            raise DataError(f"{first.path}: no columns to predict {self.target!r} from")
        for other in others:
            if set(self._free(other)) != set(names):
                problem = f"not the same columns as {first.path.name}"
                raise DataError(f"{other.path}: {problem}; list the columns to use as features")
        return tuple(map(Feature, names))

    def _free(self, table: Columns) -> list[str]:
        if table.path.suffix.lower() == ".npz" and "x" in table.arrays:
            return ["x"]
        return [name for name in table.arrays if name not in (self.target, self.time, self.id)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Positions and times of rows."""

    table: Numbers  # (n,)
    place: Numbers  # (n,) in its table
    times: Column  # (n,) datetime64[us]

    @classmethod
    def joined(cls, parts: Sequence["_Rows"]) -> "_Rows":
        # There are no parts in a folder without files.
        none = np.zeros(0, np.int64)
        return cls(
            np.concatenate([none, *(part.table for part in parts)]),
            np.concatenate([none, *(part.place for part in parts)]),
            np.concatenate([none.view("datetime64[us]"), *(part.times for part in parts)]),
        )

    def only(self, pick: NDArray[Any]) -> "_Rows":
        return _Rows(self.table[pick], self.place[pick], self.times[pick])


def _dates(table: Columns, name: str) -> Column:
    times = table.times(name)
    if times.dtype.kind == "M":
        return times
    late = np.flatnonzero(times > _LATEST_SECONDS)
    if len(late):
        value = f"{times[late[0]]:.15g}"
        problem = f"{value} is too large for seconds since 1970; use dates or seconds"
        raise table.cell_error(name, int(late[0]), problem)
    known = ~missing(times)
    dates = np.full(len(times), "NaT", "datetime64[us]")
    dates[known] = np.round(times[known] * 1e6).astype(np.int64).view("datetime64[us]")
    return dates

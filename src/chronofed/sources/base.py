"""From columns that grow to the samples of a round.

What a model sees of a row must not depend on which other rows are there: server and clients have to agree on
it. So classes, categories, means and deviations are settings, and are never taken from the data.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.config import Config, Kind, Positive
from chronofed.errors import DataError
from chronofed.sources.current import Current, Everything, Present
from chronofed.sources.held import Held, Numbers, digest_rows, row_id, stamp
from chronofed.tasks.columns import Column, Columns, missing
from chronofed.types import Samples

_LATEST_SECONDS = 1e11  # of a time stamp: the year 5138; milliseconds are beyond it


class Feature(Config):
    """A column, and how it becomes numbers.

    Attributes:
        name: The column.
        mean: What a number is counted from; a gap becomes 0.
        deviation: What a number is divided by.
        categories: For text: one 0/1 column for each of these, and all 0 for a gap.
        gaps: Whether there is a further 0/1 column that marks gaps.
    """

    name: str
    mean: float = 0.0
    deviation: Positive = 1.0
    categories: tuple[str, ...] = ()
    gaps: bool = False


class Source(Kind, kw_only=True):
    """Where a client's own rows are.

    Attributes:
        path: The file or folder; a relative path counts from the folder of the client's settings.
        target: The column to be predicted.
        classes: All classes, in the order that server and clients agreed on.
        time: The column with time stamps: dates, or seconds since 1970. Rows from the future wait until their
            time has come, and a row that arrives late counts by its time stamp. Empty for none: the order
            of the rows is that of time then.
        id: The column with a name of every row, by which it can be forgotten. Empty for none: a row is then
            named by a digest of its content.
        features: Columns to predict from; by default all others, as plain numbers, in an npz file the array
            ``x``.
        current: Which rows a round trains on.
    """

    path: str
    classes: tuple[str, ...]
    target: str = "y"
    time: str = "time"
    id: str = ""
    features: tuple[Feature, ...] = ()
    current: Current = Everything()

    def __post_init__(self) -> None:
        super().__post_init__()
        where = type(self).__name__
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            msg = f"{where}.classes: expected at least two different ones, not {list(self.classes)}"
            raise ValueError(msg)
        if self.current.dated and not self.time:
            msg = f"{where}.current: needs time stamps: name their column as time"
            raise ValueError(msg)
        if self.target in (feature.name for feature in self.features):
            msg = f"{where}.features: {self.target!r} is the target and must not predict itself"
            raise ValueError(msg)

    @abstractmethod
    def tables(self) -> Sequence[Columns]:
        """All rows that are there now."""

    def now(self, round: int, at: datetime | None = None) -> Held:
        """The current data; none if nothing is current.

        Args:
            round: The round that they are for.
            at: The time; by default the present.

        Raises:
            DataError: If they cannot be read, or do not fit what was agreed.
        """
        instant = stamp(datetime.now(UTC) if at is None else at)
        tables = [table for table in self.tables() if table.held]  # a header may be yet to come
        notes: list[str] = []
        own = msgspec.structs.replace(self, features=self._features(tables))
        rows = own._known(tables, instant, notes)
        present = Present(round, np.datetime64(instant, "us"))
        return own._held(tables, rows.only(self.current.pick(rows.times, present)), tuple(notes))

    def _known(self, tables: Sequence[Columns], instant: int, notes: list[str]) -> "_Rows":
        """All rows that have a target and a time that is not in the future, in time order."""
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

    def _held(self, tables: Sequence[Columns], rows: "_Rows", notes: tuple[str, ...]) -> Held:
        """Samples in an order that depends on nothing but their content."""
        parts = [
            self._decoded(table, rows.place[rows.table == n]) for n, table in enumerate(tables)
        ]
        parts = [part for part in parts if len(part[0])] or parts[:1]
        if not parts:
            empty = Samples(torch.zeros(0), *torch.zeros(2, 0, dtype=torch.int64))
            return Held(empty, None, np.zeros(0, np.int64), notes)
        shapes = {(part[0].shape[1:], part[0].dtype) for part in parts}
        if len(shapes) > 1:
            raise DataError(f"{self.path}: arrays of different shapes or types in its files")
        # Back from table by table to the order of time.
        order = np.argsort(np.argsort(rows.table, kind="stable"), kind="stable")
        x, y, names = (np.concatenate(columns)[order] for columns in zip(*parts, strict=True))
        stamps = rows.times.astype(np.int64)
        digests = digest_rows(x, y, stamps, names)
        ids = names if self.id else digests
        pick = np.lexsort((digests, stamps)) if self.time else np.arange(len(y))
        if self.id:
            pick = self._once(pick, ids, digests)
        samples = Samples(*(torch.from_numpy(array[pick]) for array in (x, y, ids)))
        return Held(samples, stamps[pick] if self.time else None, digests[pick], notes)

    def _once(self, pick: Numbers, ids: Numbers, digests: Numbers) -> Numbers:
        """A row that was delivered twice counts once; two rows must not have one name."""
        _, first = np.unique(ids[pick], return_index=True)
        pairs = np.unique(np.stack([ids[pick], digests[pick]]), axis=1)
        if pairs.shape[1] > len(first):
            msg = f"{self.path}: column {self.id!r} gives different current rows the same name"
            raise DataError(msg)
        return pick[np.sort(first)]

    def _decoded(self, table: Columns, place: Numbers) -> tuple[NDArray[Any], Numbers, Numbers]:
        """Features, classes and names of some rows."""
        blocks = [_encoded(table, feature, place) for feature in self.features]
        if len(blocks) > 1 and any(block.ndim > 2 for block in blocks):
            raise DataError(f"{table.path}: an array of several axes can only be the one feature")
        x = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-1)
        y = _coded(table, self.target, place, self.classes, "class")
        return x, y, self._names(table, place)

    def _names(self, table: Columns, place: Numbers) -> Numbers:
        if not self.id:
            return np.zeros(len(place), np.int64)
        names = table.text(self.id)[place]
        if missing(names).any():
            first = int(place[missing(names)][0])
            raise table.refusal(self.id, first, "empty, where the name of the row is expected")
        return np.fromiter(map(row_id, names.tolist()), np.int64, len(names))

    def _features(self, tables: Sequence[Columns]) -> tuple[Feature, ...]:
        """Those that were set, else all columns of the first table, which all others must have, too."""
        if self.features or not tables:
            return self.features
        first, *others = tables
        names = self._free(first)
        if not names:
            raise DataError(f"{first.path}: no columns to predict {self.target!r} from")
        for other in others:
            if set(self._free(other)) != set(names):
                complaint = f"not the same columns as {first.path.name}"
                raise DataError(f"{other.path}: {complaint}; list those to use as features")
        return tuple(map(Feature, names))

    def _free(self, table: Columns) -> list[str]:
        if table.path.suffix.lower() == ".npz" and "x" in table.held:
            return ["x"]
        return [name for name in table.held if name not in (self.target, self.time, self.id)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where rows are, and when they were."""

    table: Numbers  # (n,)
    place: Numbers  # (n,) in its table
    times: Column  # (n,) datetime64[us]

    @classmethod
    def joined(cls, parts: Sequence["_Rows"]) -> "_Rows":
        none = np.zeros(0, np.int64)  # for a folder without files
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
        complaint = (
            f"{times[late[0]]:.15g} is too large for seconds since 1970; use dates or seconds"
        )
        raise table.refusal(name, int(late[0]), complaint)
    known = ~missing(times)
    dates = np.full(len(times), "NaT", "datetime64[us]")
    dates[known] = np.round(times[known] * 1e6).astype(np.int64).view("datetime64[us]")
    return dates


def _encoded(table: Columns, feature: Feature, place: Numbers) -> NDArray[Any]:
    """One feature of some rows, (n, k) or (n, ..., channels)."""
    if feature.categories:
        return _one_hot(table, feature, place)
    deep = len(table[feature.name].shape) > 1
    values = (table.tensor if deep else table.values)(feature.name)[place]
    if values.dtype.kind not in "biuf":
        kind, advice = (
            ("dates", "leave it out")
            if values.dtype.kind == "M"
            else ("text", "list its categories")
        )
        raise DataError(f"{table.path}: feature {feature.name!r} holds {kind}; {advice}")
    plain = (feature.mean, feature.deviation, feature.gaps) == (0.0, 1.0, False)
    if deep and plain and values.dtype == np.uint8:
        return values  # images, which stay as they are stored
    values = (values if deep else values[:, None]).astype(np.float64)
    gaps = np.isnan(values)
    scaled = np.where(gaps, 0.0, (values - feature.mean) / feature.deviation)
    blocks = [scaled, gaps] if feature.gaps else [scaled]
    return np.concatenate(blocks, axis=-1, dtype=np.float32)


def _one_hot(table: Columns, feature: Feature, place: Numbers) -> NDArray[np.float32]:
    width = len(feature.categories)
    codes = _coded(table, feature.name, place, (*feature.categories, ""), "category")
    block = np.eye(width + 1, width + 1, dtype=np.float32)[codes]
    return block if feature.gaps else block[:, :width]


def _coded(table: Columns, name: str, place: Numbers, known: Sequence[str], what: str) -> Numbers:
    """The position of every cell among what was agreed on."""
    position = {cell: code for code, cell in enumerate(known)}
    cells = table.text(name)[place]
    codes = np.fromiter((position.get(cell, -1) for cell in cells), np.int64, len(cells))
    if (codes < 0).any():
        first = int(np.flatnonzero(codes < 0)[0])
        agreed = ", ".join(cell for cell in known if cell)
        complaint = f"{cells[first]!r} is not a {what} that was agreed on: {agreed}"
        raise table.refusal(name, int(place[first]), complaint)
    return codes

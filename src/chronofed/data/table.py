"""The user's own data: rows that belong to a client and to a period of time.

A row is used if its target, client and time are known. Its period is

* a calendar period of its date: ``day``, ``week`` (ISO 8601), ``month``, ``quarter`` or ``year``;
* a window of dates, ``10 days``, counted from the first date;
* a window of a numeric time, ``50``: from 0 to below 50, from 50 to below 100, ...;
* a window of the client's own rows in time order, ``50 rows``.

Except for the last, period ``k`` is the same time for all clients, and a client without rows in it was not
available. Times without any rows are not periods.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.config import Count, Fraction
from chronofed.core.errors import DataError
from chronofed.core.seeds import numpy_generator
from chronofed.core.types import Samples
from chronofed.data.columns import Column, Columns, missing
from chronofed.data.dataset import Codes, Dataset, DataSettings, Origin
from chronofed.data.periods import Period, rank_within
from chronofed.data.readers import read

Mask = NDArray[np.bool_]

# A text column with more categories holds identifiers or prose.
_CATEGORIES = 100


class Table(DataSettings, tag="table"):
    """A CSV, Parquet or npz file with a client column and a time column.

    Attributes:
        path: The file; a relative path starts at the folder given to :meth:`load`.
        target: Column to predict: integers or text, one class each.
        client: Column with the client of a row.
        time: Column with the time of a row; empty for the order of the rows in the file.
        features: Columns to predict from; by default all others, in an npz file the array ``x``.
        period: Rule that splits time, e.g. ``month``, ``10 days``, ``50`` or ``50 rows``.
        holdout: Share of the rows of every client and period that is kept for testing.
        standardise: True to scale numbers to mean 0 and standard deviation 1 over the training rows; in arrays
            of more axes, for each entry of the last axis.
        min_rows: Smallest number of rows of a client in a period; smaller groups are left out.
    """

    path: str
    target: str = "y"
    client: str = "client"
    time: str = "time"
    features: tuple[str, ...] = ()
    period: str = "month"
    holdout: Fraction = 0.2
    standardise: bool = True
    min_rows: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        unit = Period.parse(self.period).unit
        if not self.time and unit not in ("rows", "units"):
            msg = f"Table.period: {self.period!r} needs a time column; without one use '50 rows'"
            raise ValueError(msg)
        if self.target in self.features:
            msg = f"Table.features: {self.target!r} is the target and cannot be a feature"
            raise ValueError(msg)

    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the file; ``seed`` only chooses the test rows."""
        columns = read((folder or Path()) / Path(self.path).expanduser())
        notes: list[str] = []
        rows = self._rows(columns, notes)
        y, classes = _classes(columns, self.target, rows.place)
        test = held_out(rows.client, rows.period, self.holdout, seed)
        if self.holdout and not test.any():
            notes.append(f"no test rows: {self.holdout:g} of every client-period is less than one")
        x = self._features(columns, rows.place, ~test, notes)
        train, tested = (
            Samples(torch.from_numpy(x[pick]), torch.from_numpy(y[pick])) for pick in (~test, test)
        )
        return Dataset(columns.path.stem, train, tested, classes, rows.origin(test), tuple(notes))

    def _rows(self, columns: Columns, notes: list[str]) -> "_Rows":
        """Return the rows that are used, in time order, with their clients and periods."""
        place, who, when = self._known(columns, notes)
        names = sorted(set(who.tolist()), key=_natural)
        client = _coded(who, names)
        order = np.lexsort((client, when))
        place, client, when = place[order], client[order], when[order]
        period = Period.parse(self.period)
        number = period.numbers(when, client)
        large = _large_groups(client, number, self.min_rows, notes)
        if not large.any():
            reasons = "; ".join(notes) or "the file has none"
            raise DataError(f"{columns.path}: no rows left: {reasons}")
        used, client = np.unique(client[large], return_inverse=True)
        numbers, code = np.unique(number[large], return_inverse=True)
        periods = tuple(period.name(each) for each in numbers.tolist())
        return _Rows(place[large], client, code, tuple(names[k] for k in used), periods)

    def _known(self, columns: Columns, notes: list[str]) -> tuple[Codes, Column, Column]:
        """Return position in the file, client and time of the rows with target, client and time."""
        keys = [self.target, self.client, *([self.time] if self.time else [])]
        count = columns.rows([*keys, *self._feature_names(columns)])
        who = columns.text(self.client)
        when = columns.times(self.time) if self.time else np.arange(count)
        Period.parse(self.period).check(when, self.time)
        kept = np.ones(count, dtype=np.bool_)
        # Not strict: without a time column there is one key less, and nothing is missing.
        for key, column in zip(keys, (columns.values(self.target), who, when), strict=False):
            lost = kept & missing(column)
            kept &= ~lost
            if lost.any():
                notes.append(f"{lost.sum()} rows left out: no {key}")
        place = np.flatnonzero(kept)
        return place, who[place], when[place]

    def _feature_names(self, columns: Columns) -> tuple[str, ...]:
        if self.features:
            return self.features
        if columns.path.suffix.lower() == ".npz" and "x" in columns.arrays:
            return ("x",)
        keys = (self.target, self.client, self.time)
        names = tuple(name for name in columns.arrays if name not in keys)
        if not names:
            raise DataError(f"{columns.path}: no columns to predict {self.target!r} from")
        return names

    def _features(
        self, columns: Columns, place: Codes, train: Mask, notes: list[str]
    ) -> NDArray[Any]:
        """Return all features of the given rows, (n, d) or (n, ..., channels)."""
        raw = {name: _raw(columns, name, place) for name in self._feature_names(columns)}
        deep = [name for name, values in raw.items() if values.ndim > 2]
        if deep and len(raw) > 1:
            complaint = f"has {raw[deep[0]].ndim} axes and must be the only feature"
            raise DataError(f"{columns.path}: array {deep[0]!r} {complaint}")
        if deep and not self.standardise and raw[deep[0]].dtype == np.uint8:
            # Images stay as they are stored; the model scales bytes.
            return raw[deep[0]]
        gaps = sum(int(missing(values).sum()) for values in raw.values())
        if gaps:
            notes.append(f"{gaps} missing values filled in and marked by 0/1 columns")
        blocks = [
            _one_hot(columns, name, values)
            if values.dtype == object
            else prepared(values, train, self.standardise)
            for name, values in raw.items()
        ]
        return np.concatenate(blocks, axis=-1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that are used, in time order, by their position in the file."""

    place: Codes  # (n,)
    client: Codes  # (n,)
    period: Codes  # (n,)
    clients: tuple[str, ...]
    periods: tuple[str, ...]

    def origin(self, test: Mask) -> Origin:
        """Return client and period of the rows, separately for training and test."""
        codes = (self.client[~test], self.period[~test], self.client[test], self.period[test])
        return Origin(self.clients, self.periods, *codes)


def held_out(client: Codes, period: Codes, share: float, seed: int) -> Mask:
    """Choose test rows: this share of every client and period, but never all of its rows.

    Rows come in time order. Random numbers are drawn by period and then by client, so the choice depends
    neither on the order of the file (except among rows of one client at the same time) nor on periods that
    are added later.
    """
    group = period * (client.max(initial=0) + 1) + client
    draws = np.empty(len(group))
    draws[np.argsort(group, kind="stable")] = numpy_generator(seed, "holdout").random(len(group))
    order = np.argsort(draws)
    rank, size = rank_within(group[order])
    # The small number is for rounding: in floats 0.29 * 50 is less than 14.5.
    quota = np.floor(share * size + 0.5 + 1e-9)
    test = np.empty(len(group), dtype=np.bool_)
    test[order] = rank < np.minimum(quota, size - 1)
    return test


def prepared(values: NDArray[Any], train: Mask, standardise: bool) -> NDArray[np.float32]:
    """Fill the gaps of numbers (n, ..., channels); append a 0/1 channel for each channel with gaps.

    A gap becomes the mean of the training rows. If standardised, a channel that is constant there becomes 0.
    """
    axes = tuple(range(values.ndim - 1))
    gaps = np.isnan(values)
    sample, seen = values[train].astype(np.float64), ~gaps[train]
    count = np.maximum(seen.sum(axis=axes), 1)
    mean = sample.sum(axis=axes, where=seen) / count
    filled = np.where(gaps, mean, values)
    if standardise:
        deviation = np.sqrt(np.square(sample - mean).sum(axis=axes, where=seen) / count)
        low = sample.min(axis=axes, where=seen, initial=np.inf)
        varied = (low < sample.max(axis=axes, where=seen, initial=-np.inf)) & (deviation > 0)
        scale = np.where(varied, deviation, 1)
        filled = np.where(varied, (filled - mean) / scale, 0)
    marks = gaps[..., gaps.any(axis=axes)]
    return np.concatenate([filled, marks], axis=-1, dtype=np.float32)


def _raw(columns: Columns, name: str, place: Codes) -> NDArray[Any]:
    """Return one feature of the given rows: text (n,) or numbers (n, ..., channels)."""
    if len(columns[name].shape) > 1:
        return columns.tensor(name)[place]
    column = columns.values(name)[place]
    if column.dtype.kind == "M":
        advice = "name it as client or time, or list the features without it"
        raise DataError(f"{columns.path}: column {name!r} holds dates, not features; {advice}")
    return column if column.dtype == object else column[:, None]


def _one_hot(columns: Columns, name: str, cells: Column) -> NDArray[np.float32]:
    """Encode text: a 0/1 column per category in sorted order, and one for missing cells if there are any."""
    categories = sorted(set(cells.tolist()) - {""})
    if len(categories) > _CATEGORIES:
        complaint = f"has {len(categories)} different texts, more than {_CATEGORIES} categories"
        raise DataError(f"{columns.path}: column {name!r} {complaint}; list features without it")
    width = len(categories) + int(missing(cells).any())
    one_hot = np.eye(len(categories) + 1, width, dtype=np.float32)
    return one_hot[_coded(cells, [*categories, ""])]


def _classes(columns: Columns, name: str, place: Codes) -> tuple[Codes, tuple[str, ...]]:
    """Return the class of every row, and the names of the classes in order."""
    target = columns.values(name)[place]
    if target.dtype.kind == "M":
        raise DataError(f"{columns.path}: target {name!r} holds dates, not classes")
    broken = np.flatnonzero(target % 1 if target.dtype.kind == "f" else [])
    if len(broken):
        complaint = f"{target[broken[0]]} is not a class; use whole numbers or text"
        raise columns.cell_error(name, int(place[broken[0]]), complaint)
    distinct = sorted(set(target.tolist()))
    names = tuple(each if isinstance(each, str) else str(int(each)) for each in distinct)
    if len(names) == 1:
        raise DataError(f"{columns.path}: target {name!r} has only one class, {names[0]!r}")
    return _coded(target, distinct), names


def _large_groups(client: Codes, number: Column, least: int, notes: list[str]) -> Mask:
    """Return a mask of the rows whose client has at least this number of rows in their period."""
    _, period = np.unique(number, return_inverse=True)
    rank, size = rank_within(period * (client.max(initial=0) + 1) + client)
    small = size < least
    if small.any():
        groups = np.count_nonzero(small & (rank == 0))
        notes.append(f"{small.sum()} rows left out: {groups} client-periods below {least} rows")
    return ~small


def _coded(cells: Column, order: Iterable[object]) -> Codes:
    """Return the position of every cell in ``order``."""
    position = {value: place for place, value in enumerate(order)}
    return np.fromiter(map(position.__getitem__, cells.tolist()), np.int64, len(cells))


def _natural(name: str) -> tuple[int, Decimal, list[str | int], str]:
    """Return a sort key: numbers by value, before text; in text, ``s2`` comes before ``s10``."""
    if re.fullmatch(r"-?\d+(\.\d+)?", name, re.ASCII):
        return 0, Decimal(name), [], name
    parts = re.split(r"(\d+)", name, flags=re.ASCII)
    return 1, Decimal(0), [int(p) if k % 2 else p for k, p in enumerate(parts)], name

"""The user's own data: rows that belong to a client and to a period of time.

A row is used if its target, client and time are known. Its period is

* a calendar period of its date: ``day``, ``week`` (ISO 8601), ``month``, ``quarter`` or ``year``;
* a window of dates, ``10 days``, counted from the first date;
* a window of a numeric time, ``50``: from 0 to below 50, from 50 to below 100, ...;
* a window of the client's own rows in time order, ``50 rows``.

Except for the last, period ``k`` is the same time for all clients, and a client without rows in it was not
available. Times without any rows are not periods.

Nothing that a row becomes depends on later periods: scaling and categories are fitted on the first periods
(:mod:`chronofed.data.preparation`), clients and classes are numbered in the order in which they appear.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.config import Count, Fraction, Natural
from chronofed.core.errors import DataError
from chronofed.core.paths import expand
from chronofed.core.types import Samples
from chronofed.data.columns import Column, Columns, missing
from chronofed.data.dataset import Codes, Dataset, DataSettings, Origin
from chronofed.data.encoding import Tally, encode_features, known_codes
from chronofed.data.fitting import by_first_appearance, fit_features
from chronofed.data.holdout import TEST_SHARE, Holdout, Mask, Rule, Split
from chronofed.data.periods import Period, rank_within
from chronofed.data.preparation import Preparation
from chronofed.data.readers import read
from chronofed.data.target import TargetColumn, TaskChoice

FIT_ROWS = 100
"""Training rows that the first periods should have to fit scaling and categories on."""


class Table(DataSettings, tag="table"):
    """A CSV, Parquet or npz file with a client column and a time column.

    Attributes:
        path: The file; a relative path starts at the folder given to :meth:`load`.
        target: Column to predict: integers or text, one class each; or numbers (``task``).
        client: Column with the client of a row.
        time: Column with the time of a row; empty for the order of the rows in the file.
        features: Columns to predict from; by default all others, in an npz file the array ``x``.
        period: Rule that splits time, e.g. ``month``, ``10 days``, ``50`` or ``50 rows``.
        test: Share of the rows of every client and period that is kept for testing. By default 0 where a
            model is evaluated on the next period (``evaluate.protocol``), otherwise 0.2.
        holdout: How rows are held out: ``blocks`` of rows that follow each other in time, so that neighbours,
            such as overlapping windows, are not split between training and test; single ``random`` rows; or the
            ``latest``: the last periods of all clients, as many as hold the share of all rows.
        holdout_gap: Rows of the client to leave out on either side of a block, in its own order of time. For
            windows that overlap, the number of later windows that a window shares measurements with. So many
            rows at the start of a period are not evaluated on as the next period either.
        standardise: True to scale numbers to mean 0 and standard deviation 1; in arrays of more axes, for
            each entry of the last axis.
        fit_periods: Number of first periods on whose training rows scaling, categories and the rule for missing
            values are fitted; they are then applied unchanged to all later rows. By default as many as hold 100
            training rows.
        classes: All classes in order. By default those of the file, in the order in which they appear; give
            them if classes may come that the file does not have yet.
        min_rows: Smallest number of rows of a client in a period; smaller groups are left out.
        task: ``classification``: the target has classes. ``regression``: it has numbers, which are scaled by
            mean and deviation of the rows that everything is fitted on. ``auto``: these rows decide: text, and
            at most 20 different whole numbers, are classes, and numbers with a fraction are numbers.
    """

    path: str
    target: str = "y"
    client: str = "client"
    time: str = "time"
    features: tuple[str, ...] = ()
    period: str = "month"
    test: Fraction | None = None
    holdout: Rule = "blocks"
    holdout_gap: Natural = 0
    standardise: bool = True
    fit_periods: Count | None = None
    classes: tuple[str, ...] = ()
    min_rows: Count = 1
    task: TaskChoice = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        unit = Period.parse(self.period).unit
        if not self.time and unit not in ("rows", "units"):
            msg = f"Table.period: {self.period!r} needs a time column; without one use '50 rows'"
            raise ValueError(msg)
        if self.target in self.features:
            msg = f"Table.features: {self.target!r} is the target and cannot be a feature"
            raise ValueError(msg)
        if self.holdout_gap and self.holdout == "random":
            msg = "Table.holdout_gap: random rows have no gap around them; use holdout = 'blocks'"
            raise ValueError(msg)
        if self.classes and not 1 < len(self.classes) == len(set(self.classes)):
            msg = f"Table.classes: expected at least two different ones, not {list(self.classes)}"
            raise ValueError(msg)
        if self.classes and self.task == "regression":
            msg = "Table.classes: a regression predicts numbers and has no classes; leave them out"
            raise ValueError(msg)

    @property
    def timed(self) -> bool:
        """True if there is a time column."""
        return bool(self.time)

    def holding_out(self, test: float) -> "Table":
        """Return the settings with this share of test rows, unless they have one."""
        return self if self.test is not None else msgspec.structs.replace(self, test=test)

    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the file; ``seed`` only chooses the rows that are held out."""
        columns = read((folder or Path()) / expand(self.path))
        notes: list[str] = []
        rows = self._rows(columns, notes)
        split = self._split(rows, seed, notes)
        preparation, y = self._fit(columns, rows, split.train, notes)
        tally: Tally = Counter()
        x = encode_features(columns, preparation.features, rows.place, tally)
        notes += _told(tally)
        train, validation, test = (
            Samples(torch.from_numpy(x[pick]), torch.from_numpy(y[pick]))
            for pick in (split.train, split.validation, split.test)
        )
        name, classes, origin = (
            columns.path.stem,
            preparation.classes,
            rows.origin(split, self.holdout_gap),
        )
        return Dataset(name, train, test, classes, origin, tuple(notes), validation, preparation)

    def _split(self, rows: "_Rows", seed: int, notes: list[str]) -> Split:
        """Choose the purpose of every row."""
        test = TEST_SHARE if self.test is None else self.test
        rule = Holdout(test, self.validation, self.holdout, self.holdout_gap)
        split = rule.split(rows.client, rows.period, seed)
        for name, share, held in (
            ("test", test, split.test),
            ("validation", self.validation, split.validation),
        ):
            if share and not held.any():
                whole = "the only period" if self.holdout == "latest" else "every client-period"
                notes.append(f"no {name} rows: {share:g} of {whole} is less than one")
        unused = np.count_nonzero(~(split.train | split.validation | split.test))
        if unused:
            notes.append(f"{unused} rows left out: next to rows that are held out (holdout_gap)")
        return split

    def _fit(
        self, columns: Columns, rows: "_Rows", train: Mask, notes: list[str]
    ) -> tuple[Preparation, Codes | NDArray[np.float32]]:
        """Fit the preparation on the first periods; return it with the class or number of every row."""
        periods = self._fitted_periods(rows.period[train], len(rows.periods))
        fitted = rows.place[train & (rows.period < periods)]
        if len(fitted) < FIT_ROWS:
            some = f"{len(fitted)} training rows in {rows.names_until(periods)}"
            notes.append(f"scaling and categories are fitted on {some} only: see fit_periods")
        if not len(fitted):
            raise DataError(f"{columns.path}: {notes[-1]}")
        names = self._feature_names(columns)
        features = fit_features(columns, names, fitted, self.standardise)
        flat = [feature.name for feature in features if feature.deviation == 0]
        if flat:
            where = rows.names_until(periods)
            notes.append(f"columns with a single value in {where} are always 0: {', '.join(flat)}")
        column = TargetColumn(columns, self.target, fitted)
        if column.is_regression("classification" if self.classes else self.task):
            numbers, target = column.scaled(rows.place)
            fit = (rows.periods[:periods], len(fitted))
            return Preparation(features, (), *fit, target), numbers
        # Of the periods that are fitted on together, none is earlier.
        since = np.maximum(rows.period - (periods - 1), 0)
        y, classes = self._classes(columns, rows.place, fitted, since)
        return Preparation(features, classes, rows.periods[:periods], len(fitted)), y

    def _fitted_periods(self, period: Codes, periods: int) -> int:
        """Return the number of first periods to fit on, given the period of every training row."""
        if self.fit_periods is not None:
            return min(self.fit_periods, periods)
        total = np.cumsum(np.bincount(period, minlength=periods))
        return min(int(np.searchsorted(total, FIT_ROWS)) + 1, periods)

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
        numbers, code = np.unique(number[large], return_inverse=True)
        periods = tuple(period.name(each) for each in numbers.tolist())
        # By their first period, so that clients who join later do not change the numbers of others.
        first = by_first_appearance(client[large], code)
        clients = tuple(names[k] for k in first)
        return _Rows(place[large], _coded(client[large], first), code, clients, periods)

    def _known(self, columns: Columns, notes: list[str]) -> tuple[Codes, Column, Column]:
        """Return position in the file, client and time of the rows with target, client and time."""
        keys = [self.target, self.client, *([self.time] if self.time else [])]
        count = columns.rows([*keys, *self._feature_names(columns)])
        who = columns.text(self.client)
        when = columns.times(self.time) if self.time else np.arange(count)
        Period.parse(self.period).check(when, self.time)
        kept = np.ones(count, dtype=np.bool_)
        # Not strict: without a time column there is one key less, and nothing is missing.
        gaps = (columns.missing(self.target), missing(who), missing(when))
        for key, gap in zip(keys, gaps, strict=False):
            lost = kept & gap
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

    def _classes(
        self, columns: Columns, place: Codes, fitted: Codes, since: Codes
    ) -> tuple[Codes, tuple[str, ...]]:
        """Return the class of every row, and the names of the classes in order."""
        target = columns.values(self.target, fitted)[place]
        if target.dtype.kind == "M":
            raise DataError(f"{columns.path}: target {self.target!r} holds dates, not classes")
        broken = np.flatnonzero(target % 1 if target.dtype.kind == "f" else [])
        if len(broken):
            advice = "use whole numbers or text, or set data.task = 'regression'"
            complaint = f"{target[broken[0]]} is not a class; {advice}"
            raise columns.cell_error(self.target, int(place[broken[0]]), complaint)
        # All rows count, not only those for training, so that all seeds have the same order.
        found = by_first_appearance(target, since)
        names = tuple(each if isinstance(each, str) else str(int(each)) for each in found)
        if not self.classes and len(names) == 1:
            complaint = f"target {self.target!r} has only one class, {names[0]!r}"
            raise DataError(f"{columns.path}: {complaint}")
        cells = np.array(names, dtype=object)[_coded(target, found)]
        known = self.classes or names
        return known_codes(columns, self.target, place, cells, known, "class"), known


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that are used, in time order, by their position in the file."""

    place: Codes  # (n,)
    client: Codes  # (n,)
    period: Codes  # (n,)
    clients: tuple[str, ...]
    periods: tuple[str, ...]

    def origin(self, split: Split, gap: int) -> Origin:
        """Return client and period of the rows by purpose."""
        masks = (split.train, split.test, split.validation)
        train, test, validation = ((self.client[mask], self.period[mask]) for mask in masks)
        return Origin(self.clients, self.periods, *train, *test, *validation, gap)

    def names_until(self, count: int) -> str:
        """Name the first periods in a few words."""
        first, last = self.periods[0], self.periods[count - 1]
        return first if count == 1 else f"{first} to {last}"


def _told(tally: Tally) -> list[str]:
    """Return a line for everything that was filled in."""
    lines = {
        "marked": "missing values filled in and marked by 0/1 columns",
        "unmarked": "missing values filled in, in columns that had none at first: not marked",
        "other": "unknown categories, which were not there at first: counted as 'other'",
    }
    return [f"{tally[key]} {words}" for key, words in lines.items() if tally[key]]


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

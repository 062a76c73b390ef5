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

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import torch
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from chronofed.core.config import Count, Fraction, Integer, Natural, Positive
from chronofed.core.errors import DataError
from chronofed.core.paths import expand
from chronofed.core.types import Samples
from chronofed.data.cells import MISSING, format_problem
from chronofed.data.classes import OTHER, ClassRule
from chronofed.data.columns import Columns
from chronofed.data.dataset import Codes, Dataset, DataSettings
from chronofed.data.drifting import drift_notes, measure_scales
from chronofed.data.encoding import Tally, encode_parts
from chronofed.data.fitting import fit_features
from chronofed.data.holdout import TEST_SHARE, Holdout, Mask, Rule, Split
from chronofed.data.joined import join
from chronofed.data.lags import lag_name
from chronofed.data.periods import Period
from chronofed.data.preparation import Preparation, Settled
from chronofed.data.readers import Reading, read
from chronofed.data.rows import RowRule, Rows
from chronofed.data.target import TargetColumn, TaskChoice, scaled_numbers
from chronofed.data.zones import find_zone

FIT_ROWS = 100
"""Training rows that the first periods should have to fit scaling and categories on."""


class Table(DataSettings, tag="table"):
    """A CSV, Parquet or npz file, or a query to a database, with a client column and a time column.

    Attributes:
        path: The file, or a folder of Parquet files; a relative path starts at the folder given to
            :meth:`load`.
        more: Further files with the same columns, whose rows are added to those of the file.
        target: Column to predict: integers or text, one class each; or numbers (``task``).
        client: Column with the client of a row; empty if all rows belong to one client, ``all``.
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
        classes: All classes in order. By default those of the periods that are fitted on, sorted.
        min_rows: Smallest number of rows of a client in a period; smaller groups are left out.
        growing: True if rows are still being added to the last period: it is left out until a later one begins.
        task: ``classification``: the target has classes. ``regression``: it has numbers, which are scaled by
            mean and deviation of the rows that everything is fitted on. ``auto``: these rows decide: text, and
            at most 20 different whole numbers, are classes, and numbers with a fraction are numbers.
        other_class: True to add a class named ``other``, which takes all classes that are not listed, or not
            there in the periods that are fitted on; without it they are an error.
        missing: Texts that stand for a missing value, beside the empty cell.
        date_format: Format of the dates in the time column, as of Python's ``strptime``, e.g. ``%d/%m/%Y``; by
            default the usual ways to write dates.
        time_zone: Place whose calendar splits time, e.g. ``Australia/Sydney``, for dates with an offset from
            UTC. Dates without an offset are in this zone already.
        lags: Earlier values to add as features: 1 is the value of the client's row before the one that is
            predicted, in its own order of time.
        lag_columns: Columns whose earlier values are added; by default the target.
        horizon: Number of the client's rows between the row whose features are known and the row that is
            predicted, to whose time the sample belongs.
        query: For a database: one ``SELECT`` that returns the rows.
    """

    path: str
    target: str = "y"
    client: str = "client"
    time: str = "time"
    features: tuple[str, ...] = ()
    period: str | Positive = "month"
    test: Fraction | None = None
    holdout: Rule = "blocks"
    holdout_gap: Natural = 0
    standardise: bool = True
    fit_periods: Count | None = None
    classes: tuple[str | Integer, ...] = ()
    min_rows: Count = 1
    more: tuple[str, ...] = ()
    growing: bool = False
    task: TaskChoice = "auto"
    other_class: bool = False
    missing: tuple[str, ...] = MISSING
    date_format: str = ""
    time_zone: str = ""
    lags: tuple[Count, ...] = ()
    lag_columns: tuple[str, ...] = ()
    horizon: Natural = 0
    query: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Numbers mean the same as their texts, and both are the same settings.
        if not isinstance(self.period, str):
            force_setattr(self, "period", f"{self.period:.15g}")
        force_setattr(self, "classes", tuple(str(each) for each in self.classes))
        for setting, problem in (*self._problems(), *self._forecast_problems()):
            raise ValueError(f"Table.{setting}: {problem}")

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that are wrong, and why."""
        unit = Period.parse(self.period).unit
        if not self.time and unit not in ("rows", "units"):
            yield "period", f"{self.period!r} needs a time column; without one use '50 rows'"
        if self.target in self.features:
            yield "features", f"{self.target!r} is the target and cannot be a feature"
        if self.holdout_gap and self.holdout == "random":
            yield (
                "holdout_gap",
                "random rows have no gap around them; use holdout = 'blocks'",
            )
        if self.growing and unit == "rows":
            yield (
                "growing",
                "windows of rows end at different times; use min_rows for full windows",
            )
        if self.classes and not 1 < len(self.classes) == len(set(self.classes)):
            yield (
                "classes",
                f"expected at least two different ones, not {list(self.classes)}",
            )
        yield from self._class_problems()

    def _class_problems(self) -> Iterator[tuple[str, str]]:
        if self.other_class and OTHER in self.classes:
            yield "other_class", f"adds a class {OTHER!r}, which classes lists already"
        if self.task == "regression" and (self.classes or self.other_class):
            setting = "classes" if self.classes else "other_class"
            yield setting, "a regression predicts numbers and has no classes; leave them out"

    def _forecast_problems(self) -> Iterator[tuple[str, str]]:
        """Yield the settings of time and forecasts that are wrong, and why."""
        early = [lag for lag in self.lags if lag < self.horizon]
        if early:
            yield (
                "lags",
                f"{early[0]} is not known {self.horizon} rows ahead (horizon); lags count from the row that "
                f"is predicted: use {self.horizon} or more",
            )
        if len(set(self.lags)) < len(self.lags):
            yield "lags", f"expected different ones, not {list(self.lags)}"
        if self.lag_columns and not self.lags:
            yield "lag_columns", "needs lags, such as lags = [1, 2]"
        if self.query and not self.time and "order by" not in " ".join(self.query.lower().split()):
            yield "query", "without a time column, the order of rows is the time: add ORDER BY"
        yield from self._date_problems()

    def _date_problems(self) -> Iterator[tuple[str, str]]:
        if self.time_zone:
            try:
                find_zone(self.time_zone)
            except ValueError as error:
                yield "time_zone", str(error)
        if self.date_format and (problem := format_problem(self.date_format)):
            yield "date_format", problem

    def read(self, folder: Path | None) -> Columns:
        """Read the file, and those that came later."""
        text = frozenset([self.client] if self.client else [])
        how = Reading(frozenset(self.missing), text, self.query)
        files = [(folder or Path()) / expand(name) for name in (self.path, *self.more)]
        return join([read(file, reading=how) for file in files])

    @property
    def timed(self) -> bool:
        """True if there is a time column."""
        return bool(self.time)

    def holding_out(self, test: float) -> "Table":
        """Return the settings with this share of test rows, unless they have one."""
        return self if self.test is not None else msgspec.structs.replace(self, test=test)

    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the file; ``seed`` only chooses the rows that are held out."""
        return self.load_settled(folder, seed, Settled())

    def load_settled(self, folder: Path | None, seed: int, settled: Settled) -> Dataset:
        """Read the file with what earlier training has settled."""
        notes: list[str] = []
        columns, rows = self.choose_rows(self.read(folder), notes)
        rows = rows.only(settled.periods, columns.path)
        split = self._split(rows, seed, notes)
        if settled.preparation is None:
            preparation, y = self._fit(columns, rows, split.train, notes)
        else:
            preparation = settled.preparation
            y = self._prepared_targets(columns, rows, preparation)
        tally: Tally = Counter()
        picks = (split.train, split.validation, split.test)
        parts = [rows.source[pick] for pick in picks]
        blocks = encode_parts(columns, preparation.features, parts, tally)
        notes += _told(tally)
        scales = measure_scales(
            columns, preparation, parts[0], rows.period[split.train], rows.periods
        )
        notes += drift_notes(scales)
        train, validation, test = (
            Samples(torch.from_numpy(x), torch.from_numpy(y[pick]))
            for x, pick in zip(blocks, picks, strict=True)
        )
        name, classes, origin = (
            columns.path.stem,
            preparation.classes,
            rows.origin(split, self.holdout_gap),
        )
        return Dataset(
            name, train, test, classes, origin, tuple(notes), validation, preparation, scales
        )

    def choose_rows(self, columns: Columns, notes: list[str]) -> tuple[Columns, Rows]:
        """Return the table with columns for lags, and its rows in time order."""
        keys = [key for key in (self.target, self.client, self.time) if key]
        columns.rows([*keys, *self._plain_features(columns)])
        rule = RowRule(
            self.target,
            self.client,
            self.time,
            Period.parse(self.period),
            self.date_format,
            find_zone(self.time_zone) if self.time_zone else None,
            self.lags,
            self.lagged,
            self.horizon,
            self.min_rows,
            self.growing,
        )
        return rule.choose(columns, notes)

    def _split(self, rows: Rows, seed: int, notes: list[str]) -> Split:
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
        self, columns: Columns, rows: Rows, train: Mask, notes: list[str]
    ) -> tuple[Preparation, Codes | NDArray[np.float32]]:
        """Fit the preparation on the first periods; return it with the class or number of every row."""
        periods = self._fitted_periods(rows.period[train], len(rows.periods))
        fitted = rows.source[train & (rows.period < periods)]
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
        deciding = rows.place[train & (rows.period < periods)]
        column = TargetColumn(columns, self.target, deciding)
        if column.is_regression("classification" if self.classes else self.task):
            numbers, target = column.scaled(rows.place)
            fit = (rows.periods[:periods], len(fitted))
            return Preparation(features, (), *fit, target), numbers
        rule = ClassRule(self.target, tuple(map(str, self.classes)), self.other_class)
        y, classes = rule.fit(columns, rows, deciding, periods)
        return Preparation(features, classes, rows.periods[:periods], len(fitted)), y

    def _prepared_targets(
        self, columns: Columns, rows: Rows, preparation: Preparation
    ) -> Codes | NDArray[np.float32]:
        """Return the class or number of every row by a preparation that is fixed; refuse others."""
        complaint = preparation.other_features(self._feature_names(columns))
        if complaint:
            raise DataError(f"{columns.path}: {complaint}")
        if preparation.target is not None:
            return scaled_numbers(columns, preparation.target, rows.place)
        known, listed = preparation.classes, tuple(map(str, self.classes))
        named = known[:-1] if self.other_class and known[-1:] == (OTHER,) else known
        if listed and listed != named:
            complaint = f"data.classes are not those of the model: {', '.join(known)}"
            raise DataError(f"{columns.path}: {complaint}")
        periods = max(len(preparation.periods), 1)
        try:
            rule = ClassRule(self.target, named, self.other_class)
            return rule.fit(columns, rows, rows.place[rows.period < periods], periods)[0]
        except DataError as error:
            advice = "a trained model cannot learn another: start a new run with it in data.classes"
            raise DataError(f"{error}; {advice}") from None

    def _fitted_periods(self, period: Codes, periods: int) -> int:
        """Return the number of first periods to fit on, given the period of every training row."""
        if self.fit_periods is not None:
            return min(self.fit_periods, periods)
        total = np.cumsum(np.bincount(period, minlength=periods))
        return min(int(np.searchsorted(total, FIT_ROWS)) + 1, periods)

    @property
    def lagged(self) -> tuple[str, ...]:
        """Columns whose earlier values are added, if there are lags."""
        return self.lag_columns or (self.target,)

    def _feature_names(self, columns: Columns) -> tuple[str, ...]:
        lags = (lag_name(name, lag) for name in self.lagged for lag in self.lags)
        names = (*self._plain_features(columns), *lags)
        if not names:
            raise DataError(f"{columns.path}: no columns to predict {self.target!r} from")
        return names

    def _plain_features(self, columns: Columns) -> tuple[str, ...]:
        """Return the features that are columns of the file."""
        if self.features:
            return self.features
        if columns.path.suffix.lower() == ".npz" and "x" in columns.arrays:
            return ("x",)
        lags = {lag_name(name, lag) for name in self.lagged for lag in self.lags}
        keys = {self.target, self.client, self.time, *lags}
        return tuple(name for name in columns.arrays if name not in keys)


def _told(tally: Tally) -> list[str]:
    """Return a line for everything that was filled in."""
    lines = {
        "marked": "missing values filled in and marked by 0/1 columns",
        "unmarked": "missing values filled in, in columns that had none at first: not marked",
        "other": "unknown categories, which were not there at first: counted as 'other'",
    }
    return [f"{tally[key]} {words}" for key, words in lines.items() if tally[key]]

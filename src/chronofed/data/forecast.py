"""Rows to predict from earlier rows: each finds its history in the same table, as in training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chronofed.core.config import Config, Count, Natural
from chronofed.core.errors import DataError
from chronofed.data.cells import format_problem
from chronofed.data.columns import Categorical, Columns
from chronofed.data.dataset import Codes
from chronofed.data.in_memory import part
from chronofed.data.lags import lag_name
from chronofed.data.periods import Period
from chronofed.data.rows import RowRule
from chronofed.data.zones import find_zone


@dataclass(frozen=True, slots=True)
class Inputs:
    """Features of the rows of a table that can be predicted.

    Attributes:
        columns: The features, a row for each of them.
        place: Position of each in the table, ascending.
        count: Rows of the table.
    """

    columns: Columns
    place: Codes  # (n,)
    count: int

    def parts(self, size: int) -> Iterator["Inputs"]:
        """Split by rows of the table, at most ``size`` in a part; an empty table is one part."""
        for start in range(0, max(self.count, 1), size):
            stop = min(start + size, self.count)
            first, last = np.searchsorted(self.place, (start, stop)).tolist()
            columns = part(self.columns, first, last)
            yield Inputs(columns, self.place[first:last] - start, stop - start)

    def spread(self, values: Tensor) -> Tensor:
        """Return a value for each row of the table: NaN, or 0 of whole numbers, where none can be predicted."""
        if len(self.place) == self.count:
            return values
        gap = float("nan") if values.is_floating_point() else 0
        spread = values.new_full((self.count, *values.shape[1:]), gap)
        spread[self.place] = values
        return spread


class Forecast(Config):
    """The earlier rows that a model predicts from (:mod:`chronofed.data.lags`).

    Attributes:
        lags: Earlier values, counted in rows before the one that is predicted.
        lag_columns: Columns of these values.
        horizon: Rows between the row whose features are used and the row that is predicted.
        date_format: Format of dates in the time column; empty for the usual ways to write them.
        time_zone: Zone of dates without an offset, where others have one.
    """

    lags: tuple[Count, ...] = ()
    lag_columns: tuple[str, ...] = ()
    horizon: Natural = 0
    date_format: str = ""
    time_zone: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(lag < self.horizon for lag in self.lags):
            raise ValueError(f"Forecast.lags: expected {self.horizon} (horizon) or more")
        if self.date_format and (problem := format_problem(self.date_format)):
            raise ValueError(f"Forecast.date_format: {problem}")
        if self.time_zone:
            find_zone(self.time_zone)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features that are earlier values."""
        return tuple(lag_name(name, lag) for name in self.lag_columns for lag in self.lags)

    def inputs(
        self,
        columns: Columns,
        features: Sequence[str],
        client: str,
        time: str,
        also: Sequence[str] = (),
    ) -> Inputs:
        """Find the features of every row.

        Args:
            columns: The table: history, and rows to predict.
            features: Names of the features, those of earlier values included.
            client: Column with the client; empty if all rows belong to one.
            time: Column with the time; empty for the order of the rows.
            also: Other columns that must be there.

        Raises:
            DataError: If a column is missing.
        """
        keys = [key for key in (client, time) if key]
        self._check(columns, [*self.lag_columns, *keys])
        plain = [name for name in features if name not in self.names]
        count = columns.rows([*plain, *self.lag_columns, *keys, *also])
        table, source = self._rule(client, time).sources(columns, count)
        place = np.flatnonzero(source >= 0)
        if self.horizon:
            table = _taken(table, [*features, *keys], source[place])
        return Inputs(table, place, count)

    def _check(self, columns: Columns, needed: Sequence[str]) -> None:
        absent = [name for name in needed if name not in columns.arrays]
        if absent:
            listed = ", ".join(dict.fromkeys(needed))
            advice = f"the model predicts from earlier rows, found by {listed}"
            raise DataError(f"{columns.path}: no column {absent[0]!r}; {advice}")

    def _rule(self, client: str, time: str) -> RowRule:
        """Return the rule of training; periods do not matter here."""
        zone = find_zone(self.time_zone) if self.time_zone else None
        earlier = (self.lags, self.lag_columns, self.horizon)
        return RowRule("", client, time, Period("rows"), self.date_format, zone, *earlier)


def _taken(columns: Columns, names: Sequence[str], place: Codes) -> Columns:
    """Return some columns of some rows, which keep their numbers in messages."""

    def take(held: NDArray[Any] | Categorical) -> NDArray[Any] | Categorical:
        if isinstance(held, Categorical):
            return Categorical(held.distinct, held.codes[place])
        return held[place]

    lines = (place + 1).tolist()
    if columns.lines is not None:
        lines = [columns.lines[row] for row in place.tolist()]
    return replace(columns, arrays={name: take(columns[name]) for name in names}, lines=lines)

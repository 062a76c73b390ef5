"""The rows of a table that are used, in time order, with their clients and periods."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from chronofed.core.errors import DataError
from chronofed.data.cells import ORDERS
from chronofed.data.columns import Categorical, Column, Columns, missing
from chronofed.data.dataset import Codes, Origin
from chronofed.data.fitting import by_first_appearance
from chronofed.data.holdout import Mask, Split
from chronofed.data.lags import earlier, with_lags
from chronofed.data.periods import Period, rank_within
from chronofed.data.zones import local_times

EVERYBODY = "all"
"""Name of the only client of a table without a client column."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are used, in time order.

    Attributes:
        place: Position in the file of the row that is predicted.
        source: Position in the file of the row whose features are used; an earlier one if there is a horizon.
        client: Client of each.
        period: Period of each.
        clients: Names of the clients.
        periods: Names of the periods.
    """

    place: Codes  # (n,)
    source: Codes  # (n,)
    client: Codes  # (n,)
    period: Codes  # (n,)
    clients: tuple[str, ...]
    periods: tuple[str, ...]

    def only(self, names: tuple[str, ...], path: Path) -> "Rows":
        """Return the rows of some periods; of all if none is named."""
        if not names:
            return self
        wanted = np.isin(self.periods, names)
        kept = wanted[self.period]
        if not kept.any():
            raise DataError(f"{path}: no rows of {names[0]} or of any later period that is known")
        clients, client = np.unique(self.client[kept], return_inverse=True)
        return Rows(
            self.place[kept],
            self.source[kept],
            client,
            (np.cumsum(wanted) - 1)[self.period[kept]],
            tuple(self.clients[k] for k in clients),
            tuple(name for name, known in zip(self.periods, wanted, strict=True) if known),
        )

    def origin(self, split: Split, gap: int) -> Origin:
        """Return client and period of the rows by purpose."""
        masks = (split.train, split.test, split.validation)
        train, test, validation = ((self.client[mask], self.period[mask]) for mask in masks)
        return Origin(self.clients, self.periods, *train, *test, *validation, gap)

    def names_until(self, count: int) -> str:
        """Name the first periods in a few words."""
        first, last = self.periods[0], self.periods[count - 1]
        return first if count == 1 else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class RowRule:
    """A rule that chooses and orders rows.

    Attributes:
        target: Column to predict.
        client: Column with the client; empty if all rows belong to one.
        time: Column with the time; empty for the order of the rows.
        period: Rule that splits time.
        date_format: Format of dates; empty for the usual ways to write them.
        zone: Zone whose calendar splits time.
        lags: Earlier values to add, counted in rows before the one that is predicted.
        lag_columns: Columns of these values.
        horizon: Rows between the features and the target.
        min_rows: Smallest number of rows of a client in a period.
        growing: True to leave out the last period, to which rows are still added.
    """

    target: str
    client: str
    time: str
    period: Period
    date_format: str = ""
    zone: ZoneInfo | None = None
    lags: tuple[int, ...] = ()
    lag_columns: tuple[str, ...] = ()
    horizon: int = 0
    min_rows: int = 1
    growing: bool = False

    def choose(self, columns: Columns, notes: list[str]) -> tuple[Columns, Rows]:
        """Return the table, with columns for lags, and its rows."""
        count = columns.rows([key for key in (self.target, self.client, self.time) if key])
        names, client = self._clients(columns, count)
        when, local = self._times(columns, count, notes)
        known = self._known(columns, client, when, notes)
        columns, order, source = self._ordered(columns, client, when)
        kept = known[order]
        self._note_starts(kept & (source < 0), notes)
        kept &= source >= 0
        order, source = order[kept], source[kept]
        return columns, self._split(
            columns, names, (order, source, client[order]), local[order], notes
        )

    def sources(self, columns: Columns, count: int) -> tuple[Columns, Codes]:
        """Return the table, with columns for lags, and the row whose features are used for each of its rows.

        Args:
            columns: The table, whose target may be missing.
            count: Its rows.

        Returns:
            The table, and positions in the file: -1 if the client has no row so far before, or if client or
            time is missing; without a horizon, every row's own.
        """
        client = self._clients(columns, count)[1]
        when = self._times(columns, count, [])[0]
        columns, order, source = self._ordered(columns, client, when)
        if not self.horizon:
            return columns, np.arange(count)
        found = np.full(count, -1, dtype=np.int64)
        found[order] = source
        return columns, found

    def _ordered(
        self, columns: Columns, client: Codes, when: Column
    ) -> tuple[Columns, Codes, Codes]:
        """Return the table with lags, its rows with client and time in time order, and their sources."""
        order = np.lexsort((client, when))
        # Rows without a target still count as a client's rows before others.
        order = order[(client >= 0)[order] & ~missing(when)[order]]
        source = order
        if self.horizon:
            before = earlier(client[order], self.horizon)
            source = np.where(before < 0, -1, order[before])
        if self.lags:
            shifts = {lag: lag - self.horizon for lag in self.lags}
            columns = with_lags(columns, self.lag_columns, shifts, order, client[order])
        return columns, order, source

    def _split(
        self,
        columns: Columns,
        names: Sequence[str],
        rows: tuple[Codes, Codes, Codes],
        local: Column,
        notes: list[str],
    ) -> Rows:
        """Split rows, which are place, source and client, into periods."""
        place, source, client = rows
        number = self.period.numbers(local, client)
        if self.growing:
            # In time order, so the last row is in the last period.
            begun = ~np.isin(number, number[-1:])
            place, source, client, number = (
                each[begun] for each in (place, source, client, number)
            )
            notes.append(f"{np.count_nonzero(~begun)} rows left out: their period is still growing")
        large = _large_groups(client, number, self.min_rows, notes)
        if not large.any():
            reasons = "; ".join(notes) or "the file has none"
            raise DataError(f"{columns.path}: no rows left: {reasons}")
        numbers, code = np.unique(number[large], return_inverse=True)
        periods = tuple(self.period.name(each) for each in numbers.tolist())
        # By their first period, so that clients who join later do not change the numbers of others.
        first = by_first_appearance(client[large], code)
        position = np.full(len(names), -1, dtype=np.int64)
        position[first] = np.arange(len(first))
        clients = tuple(names[k] for k in first)
        return Rows(place[large], source[large], position[client[large]], code, clients, periods)

    def _clients(self, columns: Columns, count: int) -> tuple[Sequence[str], Codes]:
        """Return the names of the clients as people sort them, and the client of every row; -1 if missing."""
        if not self.client:
            return (EVERYBODY,), np.zeros(count, dtype=np.int64)
        held: Categorical = columns.coded(self.client)
        texts = list(held.distinct)
        names = sorted(set(texts) - {""}, key=_natural)
        position = {name: code for code, name in enumerate(names)}
        lookup = np.array([position.get(text, -1) for text in texts], dtype=np.int64)
        return names, lookup[held.codes]

    def _times(self, columns: Columns, count: int, notes: list[str]) -> tuple[Column, Column]:
        """Return the time of every row to sort by, and its clock, which periods are cut by."""
        if not self.time:
            when = np.arange(count)
            self.period.check(when, self.time)
            return when, when
        found = columns.moments(self.time, self.date_format, self.zone)
        self.period.check(found.values, self.time)
        if found.order:
            order = ORDERS[found.order]
            notes.append(f"dates in {self.time} are read as {order}, the only order that fits all")
        if not found.zoned:
            return found.values, found.values
        if self.zone is None:
            advice = "set time_zone to cut them by the clock of a place"
            notes.append(f"dates in {self.time} have offsets: periods are those of UTC; {advice}")
            return found.values, found.values
        return found.values, local_times(found.values, self.zone)

    def _known(self, columns: Columns, client: Codes, when: Column, notes: list[str]) -> Mask:
        """Return a mask of the rows with target, client and time."""
        kept = np.ones(len(client), dtype=np.bool_)
        gaps = (columns.missing(self.target), client < 0, missing(when))
        for key, gap in zip((self.target, self.client, self.time), gaps, strict=True):
            lost = kept & gap
            kept &= ~lost
            if lost.any():
                notes.append(f"{lost.sum()} rows left out: no {key}")
        return kept

    def _note_starts(self, lost: Mask, notes: list[str]) -> None:
        if lost.any():
            why = f"their client has no row {self.horizon} rows before (horizon)"
            notes.append(f"{lost.sum()} rows left out: {why}")


def _large_groups(client: Codes, number: Column, least: int, notes: list[str]) -> Mask:
    """Return a mask of the rows whose client has at least this number of rows in their period."""
    if least <= 1:
        return np.ones(len(client), dtype=np.bool_)
    _, period = np.unique(number, return_inverse=True)
    rank, size = rank_within(period * (client.max(initial=0) + 1) + client)
    small = size < least
    if small.any():
        groups = np.count_nonzero(small & (rank == 0))
        notes.append(f"{small.sum()} rows left out: {groups} client-periods below {least} rows")
    return ~small


def _natural(name: str) -> tuple[int, Decimal, list[str | int], str]:
    """Return a sort key: numbers by value, before text; in text, ``s2`` comes before ``s10``."""
    if re.fullmatch(r"-?\d+(\.\d+)?", name, re.ASCII):
        return 0, Decimal(name), [], name
    parts = re.split(r"(\d+)", name, flags=re.ASCII)
    return 1, Decimal(0), [int(p) if k % 2 else p for k, p in enumerate(parts)], name

"""Look at a table: its columns, and settings that suit it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from chronofed.core.errors import DataError
from chronofed.data.columns import Columns
from chronofed.data.dataset import Dataset
from chronofed.data.periods import Period
from chronofed.data.proposal.period_choice import propose_period
from chronofed.data.proposal.profiles import Profile, profile
from chronofed.data.proposal.roles import (
    Guess,
    guess_client,
    guess_target,
    guess_time,
    may_be_target,
)
from chronofed.data.table import FIT_ROWS, Table

REGRESSION = "task" in Table.__struct_fields__
"""True if a table can have numbers to predict."""
LEAST_GROWING = 3
"""Periods of a table up to which the last one is not left out as growing."""
_GIVEN = "given"
_DAY_FIRST = "%d/%m/%Y"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Choices of the user; ``None`` where there is none."""

    client: str | None = None
    time: str | None = None
    target: str | None = None
    period: str | None = None
    query: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """A table, and settings that suit it.

    Attributes:
        table: The settings, which were tried.
        profiles: All columns, by name.
        reasons: Reason for every choice, by setting.
        left_out: Reason for every column that is no feature, by name.
        data: The data set that the settings give.
    """

    table: Table
    profiles: dict[str, Profile]
    reasons: dict[str, str]
    left_out: dict[str, str]
    data: Dataset

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        return self.profiles[self.table.target].rows

    @property
    def task(self) -> str:
        """``classification`` or ``regression``."""
        return "classification" if self.data.classes else "regression"


def look_at(path: Path, wishes: Wishes) -> Findings:
    """Read a table and choose settings for it.

    Raises:
        DataError: If it cannot be read, or no settings would run.
    """
    columns = Table(str(path), query=wishes.query).read(None)
    profiles = {name: profile(columns, name) for name in columns.arrays}
    if not any(each.rows for each in profiles.values()):
        raise DataError(f"{path}: no rows")
    guesses = _guess(columns, wishes, profiles)
    table, reasons = _settings(path, wishes, guesses, columns, profiles)
    table = _fitted(columns, table, reasons)
    left_out = _left_out(columns, table, profiles)
    names = (name for name in profiles if name not in left_out)
    keys = (table.client, table.time, table.target)
    features = tuple(name for name in names if name not in keys)
    return _tried(path, table, features, profiles, reasons, left_out)


def _guess(columns: Columns, wishes: Wishes, profiles: dict[str, Profile]) -> dict[str, Guess]:
    """Choose time, client and target, in this order, each among the columns that are left."""
    found: dict[str, Guess] = {}
    wished = {"time": wishes.time, "client": wishes.client, "target": wishes.target}
    given = {key: name for key, name in wished.items() if name is not None}
    for name in filter(None, given.values()):
        # An unknown name is an error that names the nearest.
        columns[name]
    for key in wished:
        if key in given:
            found[key] = Guess(given[key], _GIVEN)
            continue
        taken = {*given.values(), *(guess.value for guess in found.values())}
        left = [each for name, each in profiles.items() if name not in taken]
        if key == "target":
            target = guess_target(left, REGRESSION)
            if target is None:
                raise DataError(f"{columns.path}: no column can be the target; choose --target")
            found[key] = target
        else:
            found[key] = guess_time(left) if key == "time" else guess_client(left)
    return found


def _settings(
    path: Path,
    wishes: Wishes,
    guesses: dict[str, Guess],
    columns: Columns,
    profiles: dict[str, Profile],
) -> tuple[Table, dict[str, str]]:
    """Return the settings but for the features, and the reasons."""
    names = {key: guess.value for key, guess in guesses.items()}
    reasons = {key: guess.why for key, guess in guesses.items()}
    target = profiles[names["target"]]
    if not may_be_target(target, REGRESSION):
        reason = target.unused or f"{target.distinct} different values of {target.kind}"
        raise DataError(f"{path}: {target.name!r} cannot be the target ({reason})")
    form = _date_format(columns, names["time"])
    if form:
        reasons["date_format"] = "day or month first? Both fit; this is day first: check it"
    classes = tuple(sorted((name for name, _ in target.shares), key=_class_order))
    free = Table(
        str(path),
        names["target"],
        names["client"],
        names["time"],
        period="1 rows",
        classes=classes,
        date_format=form,
        query=wishes.query,
    )
    period = Guess(wishes.period, _GIVEN) if wishes.period else _period(columns, free)
    reasons["period"] = period.why
    task = {"task": "classification" if classes else "regression"} if REGRESSION else {}
    return msgspec.structs.replace(free, period=period.value, **task), reasons


def _period(columns: Columns, table: Table) -> Guess:
    """Propose a period for the rows that have a time and a client."""
    _, rows = table.choose_rows(columns, [])
    when = np.arange(columns.rows([table.target]), dtype=np.float64)
    if table.time:
        when = columns.moments(table.time, table.date_format).values
    return propose_period(when[rows.place], rows.client)


def _fitted(columns: Columns, table: Table, reasons: dict[str, str]) -> Table:
    """Fit scaling on as many first periods as half of the clients appear in, but on a third at most."""
    _, rows = table.choose_rows(columns, [])
    first = np.full(len(rows.clients), len(rows.periods))
    np.minimum.at(first, rows.client, rows.period)
    half = int(np.sort(first)[(len(first) - 1) // 2]) + 1
    enough = int(np.searchsorted(np.cumsum(np.bincount(rows.period)), 2 * FIT_ROWS)) + 1
    periods = min(max(half, enough), max(1, len(rows.periods) // 3))
    share = np.count_nonzero(first < periods)
    reasons["fit_periods"] = f"scaling and categories: {share} of {len(first)} clients have begun"
    # A table that is complete loses its last period; one that grows could not be extended otherwise.
    growing = Period.parse(str(table.period)).unit != "rows" and len(rows.periods) > LEAST_GROWING
    last = f"{rows.periods[-1]} may get more rows, so it waits for the next; false: it is complete"
    reasons["growing"] = last
    return msgspec.structs.replace(table, fit_periods=periods, growing=growing)


def _date_format(columns: Columns, time: str) -> str:
    """Return a format for dates whose day and month nothing tells apart; empty if there is no doubt."""
    if not time:
        return ""
    try:
        columns.moments(time)
    except DataError as error:
        found = re.search(r": '([\d/. :-]+)': day or month first", str(error))
        if found is None:
            raise
        date, _, clock = found[1].partition(" ")
        form = _DAY_FIRST.replace("/", next(mark for mark in "/-." if mark in date))
        return form + {0: "", 1: " %H:%M", 2: " %H:%M:%S"}[clock.count(":")]
    return ""


def _left_out(columns: Columns, table: Table, profiles: dict[str, Profile]) -> dict[str, str]:
    keys = {table.client, table.time, table.target}
    if columns.path.suffix.lower() == ".npz" and "x" in profiles:
        # The array is then the only feature.
        return {name: "beside the array x" for name in profiles if name not in {*keys, "x"}}
    return {name: p.unused for name, p in profiles.items() if name not in keys and p.unused}


def _tried(
    path: Path,
    table: Table,
    features: Iterable[str],
    profiles: dict[str, Profile],
    reasons: dict[str, str],
    left_out: dict[str, str],
) -> Findings:
    """Load the data; leave out a column that turns out to be no feature, and try again."""
    left = list(features)
    while left:
        table = msgspec.structs.replace(table, features=tuple(left))
        try:
            return Findings(table, profiles, reasons, left_out, table.load(None, 0))
        except DataError as error:
            named = [name for name in left if f"column {name!r}" in str(error)]
            if not named:
                raise
            left_out[named[0]] = str(error).partition(f"column {named[0]!r}")[2].strip(" :")
            left.remove(named[0])
    raise DataError(f"{path}: no columns to predict {table.target!r} from")


def _class_order(name: str) -> tuple[int, float, str]:
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def check_period(text: str | None) -> None:
    """Refuse a period that is none.

    Raises:
        ValueError: With the choices.
    """
    if text is not None:
        Period.parse(text)

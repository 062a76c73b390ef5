"""Cutting time into periods: by the calendar, by windows of time, or by windows of a client's rows."""

import re
from dataclasses import dataclass

import numpy as np

from chronofed.errors import SpecError
from chronofed.tasks.columns import Column
from chronofed.tasks.dataset import Codes

_CALENDAR = {"day": "D", "week": "D", "month": "M", "quarter": "M", "year": "Y"}


@dataclass(frozen=True, slots=True)
class Period:
    """How time is cut; every period has a number, and numbers are in time order."""

    unit: str  # of the calendar, or "days", "rows", "units"
    length: float = 1

    @classmethod
    def parse(cls, text: str) -> "Period":
        """Read ``month``, ``10 days``, ``50 rows`` or ``50``.

        >>> Period.parse("50 rows")
        Period(unit='rows', length=50.0)
        """
        if text in _CALENDAR:
            return cls(text)
        window = re.fullmatch(r"(\d{1,9}) (row|day)s?|(\d{1,15}(?:\.\d{1,9})?)", text, re.ASCII)
        length = float(window[1] or window[3]) if window else 0
        if window is None or not length:
            choices = f"{', '.join(_CALENDAR)}, or a window such as '10 days', '50 rows' or '50'"
            raise ValueError(f"Table.period: {text!r} is not a period; use {choices}")
        return cls(f"{window[2]}s" if window[2] else "units", length)

    def check(self, time: Column, name: str | None) -> None:
        """Refuse a period that does not fit the kind of time."""
        dates = time.dtype.kind == "M"
        if dates and self.unit == "units":
            advice = f"dates: say '{self.length:g} days', '{self.length:g} rows' or 'month'"
        elif not dates and self.unit not in ("units", "rows"):
            advice = "numbers: say a window of them such as '50', or '50 rows'"
        else:
            return
        raise SpecError(f"Table.period does not fit column {name!r}, which holds {advice}")

    def numbers(self, time: Column, client: Codes) -> Column:
        """The number of every row's period: where the period starts; rows are in time order."""
        if self.unit == "rows":
            rank = rank_within(client)[0]
            return rank - rank % int(self.length)
        if self.unit == "units":
            return _windows(time.astype(np.float64), self.length)
        unit = _CALENDAR.get(self.unit, "D")
        number: Codes = time.astype(f"datetime64[{unit}]").astype(np.int64)
        if self.unit == "days":
            return number - (number - number[:1]) % int(self.length)
        if self.unit == "week":
            return number - (number + 3) % 7  # its Monday: day 0, 1970-01-01, was a Thursday
        return number - number % 3 if self.unit == "quarter" else number

    def name(self, number: float) -> str:
        """What the period with this number is called, e.g. ``2009-03`` or ``rows 0-49``."""
        if self.unit == "units":
            return f"[{number:.15g}, {number + self.length:.15g})"
        first, last = int(number), int(number + self.length) - 1
        if self.unit == "rows":
            return f"rows {first}-{last}"
        date = np.int64(first).astype(f"datetime64[{_CALENDAR.get(self.unit, 'D')}]")
        if self.unit == "days":
            return f"{date} to {date + (last - first)}"
        if self.unit == "quarter":
            return f"{date.astype('datetime64[Y]')}-Q{first % 12 // 3 + 1}"
        if self.unit == "week":
            year, week, _ = date.item().isocalendar()
            return f"{year}-W{week:02}"
        return str(date)


def rank_within(groups: Codes) -> tuple[Codes, Codes]:
    """Every row's rank among the rows of its group, and how many those are."""
    order = np.argsort(groups, kind="stable")
    _, first, size = np.unique(groups[order], return_index=True, return_counts=True)
    rank, sizes = np.empty_like(groups), np.empty_like(groups)
    rank[order] = np.arange(len(groups)) - np.repeat(first, size)
    sizes[order] = np.repeat(size, size)
    return rank, sizes


def _windows(time: Column, length: float) -> Column:
    """The start of the window that every time is in; 0.3 is the start of one of length 0.1."""
    quotient = time / length
    nearest = np.round(quotient)
    meant = np.abs(quotient - nearest) <= 4 * np.finfo(np.float64).eps * np.abs(quotient)
    return np.where(meant, nearest, np.floor(quotient)) * length + 0.0  # no -0.0

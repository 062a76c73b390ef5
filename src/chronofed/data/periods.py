"""Split time into periods: by the calendar, by windows of time, or by windows of a client's rows."""

import re
from dataclasses import dataclass

import numpy as np

from chronofed.core.errors import SpecError
from chronofed.data.columns import Column
from chronofed.data.dataset import Codes

_CALENDAR = {"day": "D", "week": "D", "month": "M", "quarter": "M", "year": "Y"}


@dataclass(frozen=True, slots=True)
class Period:
    """A rule that splits time into periods, which have numbers in time order.

    Attributes:
        unit: A unit of the calendar, or ``days``, ``rows``, ``units``.
        length: Length of a window in this unit.
    """

    unit: str
    length: float = 1

    @classmethod
    def parse(cls, text: str | float) -> "Period":
        """Read ``month``, ``10 days``, ``50 rows`` or ``50``, which may be a number.

        >>> Period.parse("50 rows")
        Period(unit='rows', length=50.0)
        """
        text = text if isinstance(text, str) else f"{text:.15g}"
        if text in _CALENDAR:
            return cls(text)
        window = re.fullmatch(r"(\d{1,9}) (row|day)s?|(\d{1,15}(?:\.\d{1,9})?)", text, re.ASCII)
        length = float(window[1] or window[3]) if window else 0
        if window is None or not length:
            choices = f"{', '.join(_CALENDAR)}, or a window such as '10 days', '50 rows' or '50'"
            raise ValueError(f"Table.period: {text!r} is not a period; use {choices}")
        return cls(f"{window[2]}s" if window[2] else "units", length)

    def check(self, time: Column, name: str | None) -> None:
        """Refuse a period that does not fit the type of the time column."""
        dates = time.dtype.kind == "M"
        if dates and self.unit == "units":
            advice = f"dates: use '{self.length:g} days', '{self.length:g} rows' or 'month'"
        elif not dates and self.unit not in ("units", "rows"):
            advice = "numbers: use a window such as '50', or '50 rows'"
        else:
            return
        raise SpecError(f"Table.period does not fit column {name!r}, which holds {advice}")

    def numbers(self, time: Column, client: Codes) -> Column:
        """Return the number of every row's period, which is its start; rows are in time order."""
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
            # The Monday: day 0, 1970-01-01, was a Thursday.
            return number - (number + 3) % 7
        return number - number % 3 if self.unit == "quarter" else number

    def name(self, number: float) -> str:
        """Return the name of a period, e.g. ``2009-03`` or ``rows 0-49``."""
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
    """Return every row's rank in its group, and the size of the group."""
    order = np.argsort(groups, kind="stable")
    _, first, size = np.unique(groups[order], return_index=True, return_counts=True)
    rank, sizes = np.empty_like(groups), np.empty_like(groups)
    rank[order] = np.arange(len(groups)) - np.repeat(first, size)
    sizes[order] = np.repeat(size, size)
    return rank, sizes


def _windows(time: Column, length: float) -> Column:
    """Return the start of every time's window; in spite of rounding, 0.3 starts a window of length 0.1."""
    quotient = time / length
    nearest = np.round(quotient)
    meant = np.abs(quotient - nearest) <= 4 * np.finfo(np.float64).eps * np.abs(quotient)
    # The sum turns -0.0 into 0.0.
    return np.where(meant, nearest, np.floor(quotient)) * length + 0.0

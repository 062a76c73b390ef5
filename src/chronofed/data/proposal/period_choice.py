"""Propose a period: a sensible number of them, with enough rows of every client in each."""

import numpy as np

from chronofed.data.columns import Column, missing
from chronofed.data.dataset import Codes
from chronofed.data.periods import Period
from chronofed.data.proposal.roles import Guess

FEWEST, MOST = 12, 60
"""Periods that are sensible."""
ROWS = 5
"""Rows of a client in a period, so that one in five can be a test row."""
_USUAL = ("month", "week", "quarter", "day", "year")


def propose_period(when: Column, client: Codes) -> Guess:
    """Choose a period for these times.

    Args:
        when: The time of every row, sorted; numbers or dates.
        client: Its client.
    """
    known = ~missing(when)
    when, client = when[known], client[known]
    tried = {text: _counted(text, when, client) for text in _candidates(when, client)}
    enough = {
        text: each for text, each in tried.items() if each[1] >= ROWS and FEWEST <= each[0] <= MOST
    }
    nearest = min(tried, key=lambda each: _distance(*tried[each]))
    text = next(iter(enough), nearest)
    periods, rows = tried[text]
    return Guess(text, f"{periods} periods, {rows:g} rows of a client in each (median)")


def _candidates(when: Column, client: Codes) -> list[str]:
    """List periods that suit the time; the usual ones first."""
    longest = int(np.bincount(client).max(initial=1))
    windows = [f"{max(_nice(longest / 24), ROWS):g} rows"]
    if when.dtype.kind == "M":
        days = int((when[-1] - when[0]) / np.timedelta64(1, "D")) if len(when) else 0
        spans = [f"{_nice(days / 24):g} days"] if days >= 24 else []
        return [*_USUAL, *spans, *windows]
    span = float(when[-1] - when[0]) if len(when) else 0.0
    # Without a time column, windows of each client's rows are what a window of time would be.
    return [f"{_nice(span / 24):.15g}", *windows] if span >= 24 else windows


def _counted(text: str, when: Column, client: Codes) -> tuple[int, float]:
    """Return the number of periods, and the median of a client's rows in one."""
    numbers, period = np.unique(Period.parse(text).numbers(when, client), return_inverse=True)
    sizes = np.bincount(period * (client.max(initial=0) + 1) + client)
    return len(numbers), float(np.median(sizes[sizes > 0])) if len(when) else 0.0


def _distance(periods: int, rows: float) -> float:
    """Return how far a choice is from a sensible one; too few rows weigh as much as too many periods."""
    few, many = FEWEST / max(periods, 1), periods / MOST
    return float(np.log(max(few, many, 1)) + 2 * np.log(max(ROWS / max(rows, 0.1), 1)))


def _nice(number: float) -> float:
    """Round to 1, 2 or 5 times a power of ten, at least 1.

    >>> [_nice(number) for number in (0.3, 3.2, 70.0, 360.0)]
    [1.0, 2.0, 50.0, 500.0]
    """
    if number <= 1:
        return 1.0
    power = 10.0 ** np.floor(np.log10(number))
    return float(min((1, 2, 5, 10), key=lambda each: abs(each * power - number)) * power)

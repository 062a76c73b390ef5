"""Which of a client's rows are current: what a round trains on."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from chronofed.config import Count, Kind
from chronofed.tasks.columns import Column
from chronofed.tasks.periods import Period

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def span(text: str, where: str = "") -> timedelta:
    """A length of time such as ``7 days``: seconds, minutes, hours, days or weeks.

    Raises:
        ValueError: If it is none, or 0; ``where`` says in which setting.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) (\w+?)s?", text, re.ASCII)
    seconds = float(found[1]) * _SECONDS.get(found[2], 0) if found else 0.0
    length = timedelta(microseconds=round(seconds * 1_000_000))
    if not length:
        choices = ", ".join(f"{unit}s" for unit in _SECONDS)
        raise ValueError(f"{where}: {text!r} is not a time such as '7 days'; units are {choices}")
    return length


@dataclass(frozen=True, slots=True)
class Present:
    """When a round is.

    Attributes:
        round: The round.
        at: The time, in UTC.
    """

    round: int
    at: np.datetime64


class Current(Kind):
    """Decides which rows are current."""

    dated: ClassVar[bool] = False
    """Whether rows must have time stamps."""

    @abstractmethod
    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Which rows; they come in the order of their time stamps, and none is in the future."""


class Everything(Current, tag="everything"):
    """All rows there are."""

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:  # noqa: ARG002
        """All."""
        return np.ones(len(times), np.bool_)


class LastRows(Current, tag="last-rows"):
    """The latest rows, a fixed number of them.

    Attributes:
        count: How many.
    """

    count: Count = 1000

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:  # noqa: ARG002
        """The end."""
        return np.arange(len(times)) >= len(times) - self.count


class EachRound(Current, tag="each-round"):
    """So many rows for each round: the first for round 0, the next for round 1, whatever the time is.

    Attributes:
        count: How many.
    """

    count: Count = 100

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """The round's turn."""
        turns = np.arange(len(times)) // self.count
        return np.equal(turns, present.round)


class LastTime(Current, tag="last-time"):
    """Rows of the last days, hours, ...

    Attributes:
        length: How long ago a row may be, such as ``7 days``: seconds, minutes, hours, days or weeks.
    """

    dated: ClassVar[bool] = True

    length: str = "7 days"

    def __post_init__(self) -> None:
        super().__post_init__()
        span(self.length, "LastTime.length")

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Those after the limit."""
        after: NDArray[np.bool_] = times > present.at - np.timedelta64(span(self.length), "us")
        return after


class ThisPeriod(Current, tag="this-period"):
    """Rows of the present day, week, month, quarter or year, in UTC.

    Attributes:
        period: Which.
    """

    dated: ClassVar[bool] = True

    period: Literal["day", "week", "month", "quarter", "year"] = "month"

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Those of the same period."""
        all_times = np.append(times, present.at)
        numbers = Period(self.period).numbers(all_times, np.zeros(len(all_times), np.int64))
        same: NDArray[np.bool_] = numbers[:-1] == numbers[-1]
        return same

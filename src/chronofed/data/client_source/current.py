"""Rules for current rows: the rows of a client that a round trains on."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from chronofed.core.config import Count, Kind
from chronofed.data.columns import Column
from chronofed.data.periods import Period

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def parse_duration(text: str, where: str = "") -> timedelta:
    """Read a duration such as ``7 days``, in seconds, minutes, hours, days or weeks.

    Raises:
        ValueError: If the text is not a duration above 0; ``where`` names the setting.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) (\w+?)s?", text, re.ASCII)
    seconds = float(found[1]) * _SECONDS.get(found[2], 0) if found else 0.0
    length = timedelta(microseconds=round(seconds * 1_000_000))
    if not length:
        choices = ", ".join(f"{unit}s" for unit in _SECONDS)
        raise ValueError(
            f"{where}: {text!r} is not a duration such as '7 days'; units are {choices}"
        )
    return length


@dataclass(frozen=True, slots=True)
class Present:
    """The present of a round.

    Attributes:
        round: Number of the round.
        at: Present time, in UTC.
    """

    round: int
    at: np.datetime64


class Current(Kind):
    """A rule that selects the current rows."""

    needs_times: ClassVar[bool] = False
    """The rule needs time stamps."""

    @abstractmethod
    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Return a mask of the current rows; the rows are sorted by time, and none is in the future."""


class Everything(Current, tag="everything"):
    """All rows."""

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Select all rows."""
        return np.ones(len(times), np.bool_)


class LastRows(Current, tag="last-rows"):
    """The latest rows, a fixed number of them.

    Attributes:
        count: Number of rows.
    """

    count: Count = 1000

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Select the last rows."""
        return np.arange(len(times)) >= len(times) - self.count


class EachRound(Current, tag="each-round"):
    """A fixed number of rows for each round: the first for round 0, the next for round 1, whatever the time is.

    Attributes:
        count: Number of rows per round.
    """

    count: Count = 100

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Select the rows of this round."""
        rounds = np.arange(len(times)) // self.count
        return np.equal(rounds, present.round)


class LastTime(Current, tag="last-time"):
    """The rows of the last days, hours, ...

    Attributes:
        length: Maximum age of a row, such as ``7 days``: seconds, minutes, hours, days or weeks.
    """

    needs_times: ClassVar[bool] = True

    length: str = "7 days"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_duration(self.length, "LastTime.length")

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Select rows that are recent enough."""
        after: NDArray[np.bool_] = times > present.at - np.timedelta64(
            parse_duration(self.length), "us"
        )
        return after


class ThisPeriod(Current, tag="this-period"):
    """The rows of the present day, week, month, quarter or year, in UTC.

    Attributes:
        period: The kind of period.
    """

    needs_times: ClassVar[bool] = True

    period: Literal["day", "week", "month", "quarter", "year"] = "month"

    def pick(self, times: Column, present: Present) -> NDArray[np.bool_]:
        """Select rows of the same period as the present."""
        all_times = np.append(times, present.at)
        numbers = Period(self.period).numbers(all_times, np.zeros(len(all_times), np.int64))
        same: NDArray[np.bool_] = numbers[:-1] == numbers[-1]
        return same

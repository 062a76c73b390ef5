"""Guess which column is the client, which the time and which the target, and say why."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chronofed.data.proposal.profiles import Profile

# Names in the order in which they are preferred.
_CLIENTS = """client station shop store site hospital branch device sensor machine meter turbine plant farm
    building household customer user patient person subject participant driver vehicle school bank node account
    airport carrier location city region country unit series id"""
_TIMES = "time timestamp datetime date day month week year hour t step epoch when at"
CLIENTS, TIMES = _CLIENTS.split(), _TIMES.split()
TARGETS = ("target", "y", "label", "class", "outcome", "response")
_MOST_CLIENTS = 10_000


@dataclass(frozen=True, slots=True)
class Guess:
    """A choice, and the reason for it."""

    value: str
    why: str


def guess_time(profiles: Sequence[Profile]) -> Guess:
    """Choose a column of dates, or one of numbers that has the name of a time."""
    dates = [each for each in profiles if each.kind == "dates"]
    if dates:
        found = _hinted(dates, TIMES)
        if found is None or len(dates) == 1:
            why = "the only column of dates" if len(dates) == 1 else "the first column of dates"
            return Guess(dates[0].name, why)
        return Guess(found.name, "a column of dates with the name of a time")
    numbers = [each for each in profiles if each.kind == "numbers" and each.distinct > 12]
    found = _hinted(numbers, TIMES)
    if found is not None:
        return Guess(found.name, "numbers with the name of a time")
    return Guess("", "no column of dates: the order of the rows")


def guess_client(profiles: Sequence[Profile]) -> Guess:
    """Choose a column that has the name of a client and not too many values."""
    found = _hinted(filter(_may_be_client, profiles), CLIENTS)
    if found is not None:
        return Guess(found.name, "a usual name for clients")
    others = [each.name for each in profiles if _may_be_client(each) and each.kind == "text"]
    maybe = f"; --client could be {' or '.join(others[:3])}" if others else ""
    return Guess("", f"no column has a usual name for clients: all rows belong to one{maybe}")


def guess_target(profiles: Sequence[Profile], regression: bool) -> Guess | None:
    """Choose a column with the name of a target, else the last one; ``None`` if none can be."""
    able = [each for each in profiles if may_be_target(each, regression)]
    if not able:
        return None
    found = _hinted(able, TARGETS)
    if found is not None:
        return Guess(found.name, "a usual name for targets")
    why = "the last column" if able[-1] is profiles[-1] else "the last column that can be"
    return Guess(able[-1].name, why)


def may_be_target(profile: Profile, regression: bool) -> bool:
    """Tell if a column has classes, or numbers to predict."""
    classes = len(profile.shares) > 1
    return classes or (regression and profile.kind == "numbers" and not profile.unused)


def _may_be_client(profile: Profile) -> bool:
    names = profile.kind == "text" or (profile.kind == "numbers" and profile.whole)
    return names and 1 < profile.distinct <= min(_MOST_CLIENTS, profile.rows // 5)


def _hinted(profiles: Iterable[Profile], hints: Sequence[str]) -> Profile | None:
    """Return the column whose name has the first of some words; a whole name comes before a part of one."""
    found: dict[int, Profile] = {}
    for each in profiles:
        words = _words(each.name)
        places = [k for k, hint in enumerate(hints) if hint in words]
        if places:
            rank = places[0] if len(words) == 1 else places[0] + len(hints)
            found.setdefault(rank, each)
    return found[min(found)] if found else None


def _words(name: str) -> list[str]:
    """Return the words of a name.

    >>> _words("StationID"), _words("site_code")
    (['station', 'id'], ['site', 'code'])
    """
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return [part.lower() for part in parts] or [name.lower()]

"""Cells of text: which of them are missing, and which numbers or dates they hold."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]

MISSING = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""Texts that stand for a missing value, beside the empty cell."""
DateOrder = Literal["", "dmy", "mdy"]
ORDERS = {"dmy": "day/month/year", "mdy": "month/day/year"}
_CHUNK = 65536
_TIME = r"(?:(?:T| +)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,6})\d*)?)?(?: ?([AaPp])\.?[Mm]\.?)?)?"
_WRITTEN = re.compile(
    rf"(\d{{1,4}})([-/.])(\d{{1,2}})\2(\d{{1,4}}){_TIME} ?(Z|[+-]\d{{2}}:?\d{{2}})?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Distinct texts as numbers or dates.

    Attributes:
        values: ``float64``, or ``datetime64[us]``; missing and unread texts are NaN or NaT.
        unread: True where a text is present and could not be read.
        zoned: True if a date has an offset from UTC; all dates are then in UTC.
        order: Order of day and month, if the dates do not begin with the year.
        doubt: A date that may be either of two days, if nothing decides.
    """

    values: NDArray[Any]  # (distinct,)
    unread: Mask  # (distinct,)
    zoned: bool = False
    order: DateOrder = ""
    doubt: str = ""


def cleaned(cell: str, missing: frozenset[str]) -> str:
    """Return a cell without blanks around it; a missing one is empty."""
    stripped = cell.strip()
    return "" if stripped in missing else stripped


def read_numbers(texts: Sequence[str]) -> Parsed:
    """Read every text as a number.

    >>> read_numbers(["1", "", "x"]).values.tolist()
    [1.0, nan, nan]
    """
    values = np.full(len(texts), np.nan)
    unread = np.zeros(len(texts), dtype=np.bool_)
    for start, chunk in _chunks(texts):
        found = [_try(_number, text) for text in chunk]
        values[start : start + len(chunk)] = [np.nan if v is None else v for v in found]
        unread[start : start + len(chunk)] = [
            v is None and text != "" for v, text in zip(found, chunk, strict=True)
        ]
    return Parsed(values, unread)


def read_dates(texts: Sequence[str], form: str = "", zone: Any = None) -> Parsed:
    """Read every text as a date: by a format of ``strptime``, or as one of the usual ways to write dates.

    Dates that begin with the year need no decision. If they end with it, the order of day and month is the one
    that fits all dates; if both do and differ, ``doubt`` is such a date.

    Args:
        texts: Distinct texts.
        form: A format such as ``%d/%m/%Y``; by default the usual ways.
        zone: Zone of dates without an offset, among others that have one; by default UTC.
    """
    if form:
        return _dates(texts, lambda cell: datetime.strptime(cell, form), zone)
    first = _dates(texts, lambda cell: _written(cell, "dmy"), zone)
    swapped = [text for text in texts if _ends_with_year(text)] if len(texts) else []
    if not swapped:
        return first
    other = _dates(texts, lambda cell: _written(cell, "mdy"), zone)
    if other.unread.sum() < first.unread.sum():
        return Parsed(other.values, other.unread, other.zoned, "mdy")
    doubt = ""
    differ = np.flatnonzero((first.values != other.values) & ~np.isnat(other.values))
    if not other.unread.any() and len(differ):
        doubt = texts[int(differ[0])]
    return Parsed(first.values, first.unread, first.zoned, "dmy", doubt)


def format_problem(form: str) -> str | None:
    """Return what is wrong with a format of dates."""
    if not re.search(r"%[YyG]", form.replace("%%", "")):
        return f"{form!r} has no year; use a format such as '%d/%m/%Y'"
    sample = datetime(2013, 3, 21, 14, 5, 6, tzinfo=UTC)
    try:
        datetime.strptime(sample.strftime(form), form)
    except (ValueError, re.error) as error:
        return f"{form!r} is not a format of dates ({error}); use one such as '%d/%m/%Y'"
    return None


def _dates(texts: Sequence[str], parse: Callable[[str], datetime], zone: Any) -> Parsed:
    values = np.full(len(texts), "NaT", dtype="datetime64[us]")
    unread = np.zeros(len(texts), dtype=np.bool_)
    # Dates with and without an offset are told apart, since those without may be in another zone.
    aware = np.zeros(len(texts), dtype=np.bool_)
    for start, chunk in _chunks(texts):
        found = [_try(parse, text) for text in chunk]
        stop = start + len(chunk)
        values[start:stop] = [_instant(moment) for moment in found]
        aware[start:stop] = [moment is not None and moment.tzinfo is not None for moment in found]
        unread[start:stop] = [
            m is None and text != "" for m, text in zip(found, chunk, strict=True)
        ]
    plain = np.flatnonzero(~aware & ~np.isnat(values))
    if zone is not None and aware.any():
        values[plain] = [_instant(moment.replace(tzinfo=zone)) for moment in values[plain].tolist()]
    return Parsed(values, unread, bool(aware.any()))


def _instant(moment: datetime | None) -> np.datetime64:
    if moment is None:
        return np.datetime64("NaT", "us")
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(moment, "us")


def _number(cell: str) -> float:
    # Python reads "1_2" as 12.
    if "_" in cell:
        raise ValueError(cell)
    return float(cell)


def _written(cell: str, order: DateOrder) -> datetime:
    """Read a date as ISO 8601, or with slashes, dots or dashes and the year first or last."""
    try:
        return datetime.fromisoformat(f"{cell}-01" if re.fullmatch(r"\d{4}-\d{2}", cell) else cell)
    except ValueError:
        found = _WRITTEN.fullmatch(cell)
    if found is None:
        raise ValueError(cell)
    first, mark, middle, last = found[1], found[2], found[3], found[4]
    if len(first) == 4:
        year, month, day = first, middle, last
    elif len(last) == 4 and (order == "dmy" or mark != "."):
        # With dots, the day comes first everywhere.
        day, month = (first, middle) if order == "dmy" else (middle, first)
        year = last
    else:
        raise ValueError(cell)
    return datetime.fromisoformat(f"{year}-{int(month):02}-{int(day):02}{_clock(found)}")


def _clock(found: re.Match[str]) -> str:
    """Return the time of day in ISO 8601, with the offset; empty at midnight."""
    hour, minute, second, fraction, half, offset = found.groups()[4:]
    if hour is None:
        return f"T00:00{offset}" if offset else ""
    if half and not 1 <= int(hour) <= 12:
        raise ValueError(hour)
    hours = int(hour) if not half else int(hour) % 12 + 12 * (half in "pP")
    parts = f"T{hours:02}:{minute}:{second or '00'}.{(fraction or '0'):0<6}"
    return f"{parts}{offset or ''}"


def _ends_with_year(cell: str) -> bool:
    found = _WRITTEN.fullmatch(cell)
    return found is not None and len(found[4]) == 4 and len(found[1]) < 3


def _try(parse: Callable[[str], Any], cell: str) -> Any:
    # An empty cell is no date, and costs no exception.
    if cell == "":
        return None
    try:
        return parse(cell)
    except (ValueError, OverflowError):
        return None


def _chunks(texts: Iterable[str]) -> Iterable[tuple[int, list[str]]]:
    """Yield some texts at a time, with the position of the first."""
    source, start = iter(texts), 0
    while chunk := list(islice(source, _CHUNK)):
        yield start, chunk
        start += len(chunk)

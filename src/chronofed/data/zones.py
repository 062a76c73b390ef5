"""Time zones: the calendar of a place, for instants in UTC."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from chronofed.data.columns import Column, missing

# Of the calendar that Python knows, with a day to spare for offsets.
_FIRST, _LAST = np.datetime64("0001-01-02", "us"), np.datetime64("9999-12-30", "us")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER_US = 15 * 60 * 1_000_000


def find_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name, such as ``Australia/Sydney``.

    Raises:
        ValueError: If this machine does not know it.
    """
    try:
        return ZoneInfo(name)
    # Names of folders and paths outside of the database raise OSError and ValueError, others KeyError.
    except (OSError, ValueError, KeyError):
        choices = "use a name such as 'Europe/Berlin' or 'UTC'"
        raise ValueError(
            f"{name!r} is not a time zone that this machine knows; {choices}"
        ) from None


def local_times(instants: Column, zone: ZoneInfo) -> Column:
    """Return the clock of a zone at some instants in UTC, as dates without an offset.

    Offsets are looked up once for each quarter of an hour, and for each instant where one changes within it.
    """
    known = np.flatnonzero(~missing(instants))
    micros = np.clip(instants[known], _FIRST, _LAST).astype(np.int64)
    quarters, code = np.unique(micros // _QUARTER_US, return_inverse=True)
    begin = _offsets(quarters * _QUARTER_US, zone)
    offsets = begin[code]
    changing = np.flatnonzero(begin != _offsets((quarters + 1) * _QUARTER_US - 1, zone))
    within = np.flatnonzero(np.isin(code, changing))
    offsets[within] = _offsets(micros[within], zone)
    local = instants.copy()
    local[known] += offsets.astype("timedelta64[us]")
    return local


def _offsets(micros: Column, zone: ZoneInfo) -> Column:
    """Return the offset of a zone from UTC in microseconds."""
    one = timedelta(microseconds=1)
    moments = ((_EPOCH + timedelta(microseconds=each)).astimezone(zone) for each in micros.tolist())
    found = ((moment.utcoffset() or timedelta()) // one for moment in moments)
    return np.fromiter(found, np.int64, len(micros))

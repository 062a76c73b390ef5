"""Forecasting: earlier values as features, and targets that lie ahead.

Rows of a client are counted in its own order of time. The row that is predicted lies ``horizon`` rows after the
row whose features are known, the origin. Lag *k* is the value *k* rows before the row that is predicted, so it
is known at the origin if *k* is at least the horizon. All features are those of the origin row alone; a lag
becomes one more column of the table, whose first cells of every client are missing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.columns import Categorical, Columns
from chronofed.data.dataset import Codes


def lag_name(column: str, lag: int) -> str:
    """Return the name of a column of earlier values.

    >>> lag_name("load", 24)
    'load lag 24'
    """
    return f"{column} lag {lag}"


def earlier(client: Codes, count: int) -> Codes:
    """Return the position of the row of the same client that comes ``count`` rows before; -1 if none does.

    >>> earlier(np.array([0, 1, 0, 0, 1]), 1).tolist()
    [-1, -1, 0, 2, 1]
    """
    order = np.argsort(client, kind="stable")
    found = np.full(len(client), -1, dtype=np.int64)
    later, before = order[count:], order[: max(len(order) - count, 0)]
    same = client[later] == client[before]
    found[later[same]] = before[same]
    return found


def with_lags(
    columns: Columns,
    names: Sequence[str],
    shifts: dict[int, int],
    place: Codes,
    client: Codes,
) -> Columns:
    """Return the table with a column of earlier values for every name and lag.

    Args:
        columns: The table.
        names: Columns whose earlier values are wanted.
        shifts: Rows before the origin, by lag.
        place: Position in the file of every row, in time order.
        client: Its client.
    """
    more: dict[str, NDArray[Any] | Categorical] = {}
    for lag, shift in shifts.items():
        position = earlier(client, shift)
        source = np.full(columns.rows(names), -1, dtype=np.int64)
        source[place] = np.where(position < 0, -1, place[position])
        for name in names:
            column = lag_name(name, lag)
            if column in columns.arrays:
                raise DataError(f"{columns.path}: has a column {column!r}, the name of a lag")
            more[column] = _moved(columns, name, source)
    return columns.extended(more)


def _moved(columns: Columns, name: str, source: Codes) -> NDArray[Any] | Categorical:
    """Return the cells of other rows; missing where the source is -1."""
    held, none = columns[name], source < 0
    if isinstance(held, Categorical):
        codes = np.where(none, len(held.distinct), held.codes[source])
        return Categorical([*held.distinct, ""], codes)
    values = columns.values(name)[source]
    values[none] = np.datetime64("NaT") if values.dtype.kind == "M" else np.nan
    return values

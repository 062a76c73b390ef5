"""Fit a preparation on the training rows of a table's first periods."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.columns import Column, Columns, missing
from chronofed.data.dataset import Codes
from chronofed.data.preparation import Feature

CATEGORIES = 100
"""A text column with more categories holds identifiers or prose, ..."""
FEW_CATEGORIES = 20
"""... as does one with more than this if more than half of its texts are different."""


def fit_features(
    columns: Columns, names: Sequence[str], rows: Codes, standardise: bool
) -> tuple[Feature, ...]:
    """Fit every feature on some rows of a table."""
    return tuple(_fit_feature(columns, name, rows, standardise) for name in names)


def _fit_feature(columns: Columns, name: str, rows: Codes, standardise: bool) -> Feature:
    if len(columns[name].shape) > 1:
        values = columns.tensor(name)
        if values.ndim > 2 and not standardise and values.dtype == np.uint8:
            # Images stay as they are stored; the model scales bytes.
            return Feature(name)
        return fit_numbers(name, values[rows], standardise)
    if columns.missing(name)[rows].all():
        return Feature(name, deviation=0.0, gaps=True)
    column = columns.values(name, rows)[rows]
    if column.dtype.kind == "M":
        advice = "name it as client or time, or list the features without it"
        raise DataError(f"{columns.path}: column {name!r} holds dates, not features; {advice}")
    if column.dtype == object:
        return _fit_text(columns, name, column)
    return fit_numbers(name, column[:, None], standardise)


def fit_numbers(name: str, values: NDArray[Any], standardise: bool) -> Feature:
    """Fit mean and deviation of numbers (n, ..., channels), for each channel.

    A gap becomes the mean, and is marked in channels that have gaps here. A channel that is constant here is
    always 0 if numbers are standardised.
    """
    axes = tuple(range(values.ndim - 1))
    gaps = np.isnan(values)
    sample, seen = values.astype(np.float64), ~gaps
    count = np.maximum(seen.sum(axis=axes), 1)
    mean = sample.sum(axis=axes, where=seen) / count
    found = gaps.any(axis=axes)
    marked = (
        bool(found.all()) if found.all() == found.any() else tuple(np.flatnonzero(found).tolist())
    )
    if not standardise:
        return Feature(name, fill=_plain(mean), gaps=marked)
    deviation = np.sqrt(np.square(sample - mean).sum(axis=axes, where=seen) / count)
    low = sample.min(axis=axes, where=seen, initial=np.inf)
    varied = low < sample.max(axis=axes, where=seen, initial=-np.inf)
    return Feature(name, _plain(mean), _plain(np.where(varied, deviation, 0.0)), gaps=marked)


def _fit_text(columns: Columns, name: str, cells: Column) -> Feature:
    """List the categories in sorted order, with a place for texts that come later."""
    categories = tuple(sorted(set(cells.tolist()) - {""}))
    most = min(CATEGORIES, max(FEW_CATEGORIES, len(cells) // 2))
    if len(categories) > most:
        some = f"{len(categories)} different texts in the {len(cells)} rows that are fitted on"
        complaint = f"has {some}, more than {most} categories"
        raise DataError(f"{columns.path}: column {name!r} {complaint}; list features without it")
    gaps = bool(missing(cells).any())
    return Feature(name, categories=categories, gaps=gaps, other=True)


def by_first_appearance(values: Column, period: Codes) -> list[Any]:
    """List the distinct values: by the first period in which they appear, then by value.

    So a value that appears in an early period keeps its place whatever comes later.

    >>> by_first_appearance(np.array(["b", "a", "c"]), np.array([0, 1, 0]))
    ['b', 'c', 'a']
    """
    distinct, code = np.unique(values, return_inverse=True)
    first = np.full(len(distinct), period.max(initial=0))
    np.minimum.at(first, code, period)
    names = distinct.tolist()
    return [names[k] for k in np.argsort(first, kind="stable")]


def _plain(numbers: NDArray[np.float64]) -> float | tuple[float, ...]:
    return float(numbers[0]) if numbers.size == 1 else tuple(numbers.tolist())

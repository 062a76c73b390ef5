"""Measure how the scale of features drifts away from what was fitted, and say so where it matters."""

import numpy as np

from chronofed.data.columns import Columns
from chronofed.data.dataset import Codes
from chronofed.data.preparation import Feature, Preparation
from chronofed.data.scales import Scale, Scales

SHIFT = 3.0
"""Fitted deviations between a period's mean and the fitted one, from which on it is worth a note, ..."""
RATIO = 5.0
"""... and times that a period's deviation is above the fitted one."""
NOTED = 3
"""Features that are noted, at most: the worst."""
_ROWS = 10
"""A mean of fewer rows is no evidence."""
_CHUNK = 2**18
# The square is finite, and nobody needs to know more.
_FAR = 1e12


def measure_scales(
    columns: Columns, preparation: Preparation, place: Codes, period: Codes, names: tuple[str, ...]
) -> Scales:
    """Measure every feature that is a scaled number, in every period.

    Args:
        columns: The table.
        preparation: What was fitted.
        place: Position of every training row in the file.
        period: Its period.
        names: Names of all periods.
    """
    found = tuple(
        _measure(columns, feature, place, period, len(names))
        for feature in preparation.features
        if len(columns[feature.name].shape) == 1 and _is_scaled(feature)
    )
    return Scales(names, len(preparation.periods), found)


def _is_scaled(feature: Feature) -> bool:
    """Tell if numbers are scaled by mean and deviation; others have a number for gaps instead."""
    return not feature.text and not feature.plain and feature.fill == () and feature.deviation != 0


def drift_notes(scales: Scales) -> list[str]:
    """Return a line for each of the worst features beyond a limit."""
    found = [(*worst, scale) for scale in scales.features if (worst := _worst(scale, scales))]
    found.sort(key=lambda item: (-item[0], item[2].name))
    notes = [_told(position, scale, scales) for _, position, scale in found[:NOTED]]
    if len(found) > NOTED:
        notes.append(f"{len(found) - NOTED} more features lie far from what they were fitted on")
    return notes


def _measure(columns: Columns, feature: Feature, place: Codes, period: Codes, count: int) -> Scale:
    values = columns.numbers(feature.name)
    rows, total, squares = np.zeros((3, count))
    for start in range(0, len(place), _CHUNK):
        part = slice(start, start + _CHUNK)
        scaled = (values[place[part]] - feature.mean) / feature.deviation
        known = ~np.isnan(scaled)
        scaled, when = np.clip(scaled[known], -_FAR, _FAR), period[part][known]
        rows += np.bincount(when, minlength=count)
        total += np.bincount(when, scaled, count)
        squares += np.bincount(when, np.square(scaled), count)
    there = np.flatnonzero(rows)
    shift = total[there] / rows[there]
    ratio = np.sqrt(np.maximum(squares[there] / rows[there] - np.square(shift), 0))
    lists = (there, rows[there].astype(np.int64), np.round(shift, 6), np.round(ratio, 6))
    return Scale(feature.name, *(tuple(numbers.tolist()) for numbers in lists))


def _far(scale: Scale, fitted: int) -> list[int]:
    """Return the positions of the later periods that lie beyond a limit."""
    return [
        k
        for k, period in enumerate(scale.periods)
        if period >= fitted and scale.rows[k] >= _ROWS and _excess(scale, k) >= 1
    ]


def _excess(scale: Scale, k: int) -> float:
    """Return by how many times a period lies beyond the nearer limit."""
    return max(abs(scale.shift[k]) / SHIFT, scale.ratio[k] / RATIO)


def _worst(scale: Scale, scales: Scales) -> tuple[float, int] | None:
    far = _far(scale, scales.fitted)
    return max(((_excess(scale, k), k) for k in far), default=None)


def _told(worst: int, scale: Scale, scales: Scales) -> str:
    """Say since when a feature lies where, or in which period it lay furthest away."""
    far = set(_far(scale, scales.fitted))
    first = len(scale.periods)
    while first - 1 in far:
        first -= 1
    lasting = worst >= first
    name = scales.periods[scale.periods[first if lasting else worst]]
    when = f"from {name} on" if lasting and first < len(scale.periods) - 1 else f"in {name}"
    shift, ratio = scale.shift[worst], scale.ratio[worst]
    if abs(shift) / SHIFT >= ratio / RATIO:
        side = "above" if shift > 0 else "below"
        most = "up to " if when.startswith("from") else ""
        return f"{when}, {scale.name} lies {most}{abs(shift):.3g} deviations {side} what it was fitted on"
    return f"{when}, {scale.name} varies {ratio:.3g} times as much as what it was fitted on"

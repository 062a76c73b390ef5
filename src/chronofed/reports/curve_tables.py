"""Curves as plain data: few enough points for a page, rounded once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from chronofed.reports.downsample import Numbers, downsample
from chronofed.reports.groups import Group
from chronofed.training.measure import MeasureDisplay, headline_of, placed

# Points of all curves together: half a megabyte at most.
POINTS = 24_000
# The fewest points of a curve: of the measure that ranks experiments, and of another.
_LEAST, _LEAST_OF_OTHERS = 40, 16
# Endings of measures of drift and of what is lost of the past.
_DRIFT = ("drift_sq", "information_loss")
# Points of one curve: more than a screen can show.
MOST_POINTS = 600


def curve_tables(
    groups: Sequence[Group], measures: Iterable[MeasureDisplay]
) -> list[dict[str, Any]]:
    """Tabulate rounds, means and deviations of every experiment by measure, downsampled for a screen."""
    keys = {key for group in groups for run in group.runs for key in recorded(run.history)}
    shown = [measure for measure in placed("curves", measures) if measure.key in keys]
    room = POINTS // max(1, len(shown) * len(groups))
    first = headline_of(keys)
    least = {m.key: _LEAST if m.key == first else _LEAST_OF_OTHERS for m in shown}
    most = {key: min(MOST_POINTS, max(fewest, room)) for key, fewest in least.items()}
    return [
        {
            "key": measure.key,
            "title": measure.title,
            "unit": measure.symbol,
            "topic": _topic(measure),
            "points": _thinned(groups, measure.key, most[measure.key]),
            "curves": [
                _curve(group, measure.key, measure.scale, most[measure.key]) for group in groups
            ],
        }
        for measure in shown
    ]


def _topic(measure: MeasureDisplay) -> str:
    """Sort a measure into what a method reaches, what its theory is about, and what it costs."""
    if measure.cumulative:
        return "costs"
    return "drift" if measure.key.endswith(_DRIFT) else "results"


def _thinned(groups: Sequence[Group], key: str, most: int) -> int | None:
    """Return the number of points of a curve, if some curve has more."""
    longest = max(sum(key in line for line in run.history) for g in groups for run in g.runs)
    return most if longest > most else None


def recorded(history: Sequence[Mapping[str, Any]]) -> set[str]:
    """Collect the measures of a run; the first line may lack some."""
    return {key for line in (*history[:1], *history[-1:]) for key in line}


def _curve(group: Group, key: str, scale: float, most: int) -> dict[str, Any]:
    rounds, means, deviations = group.bands(key)
    kept = downsample(means, most)
    curve = points(rounds[kept], scale * means[kept])
    if len(group.runs) > 1:
        curve["d"] = [short(value) for value in scale * deviations[kept]]
    return curve


def thin_curve(rounds: Numbers, values: Numbers, scale: float, most: int) -> dict[str, Any]:
    """Tabulate a curve with at most so many points."""
    kept = downsample(values, most)
    return points(rounds[kept], scale * values[kept])


def points(rounds: Numbers, values: Numbers) -> dict[str, Any]:
    """Tabulate a curve."""
    return {"x": rounds.astype(int).tolist(), "y": [short(value) for value in values]}


def short(value: float) -> float | None:
    """Round to the four digits that a page shows of a curve, so that it does not round again.

    What is not finite cannot be drawn, or written as JSON.
    """
    return finite(float(f"{value:.4g}"))


def finite(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if np.isfinite(value) else None

"""The large chart of the first screen as plain data: thick means, thin seeds, grey baselines, a calendar."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from chronofed.reports.curve_tables import MOST_POINTS, recorded, thin_curve
from chronofed.reports.downsample import Numbers
from chronofed.reports.groups import Group, measures_of
from chronofed.reports.references import baseline_curves
from chronofed.training.measure import MeasureDisplay, headline_of

# Points of the thin curves of all seeds together, and of one of them.
_SEED_POINTS, _MOST_POINTS = 12_000, 200
# Periods of a season by the form of their names.
_SEASONS = {r"\d{4}-\d{2}": 12, r"\d{4}-Q\d": 4, r"\d{4}-W\d{2}": 52, r"\d{4}-\d{2}-\d{2}": 7}


def main_measure(groups: Sequence[Group]) -> MeasureDisplay | None:
    """Return the measure that ranks the experiments, if it was recorded."""
    keys = {key for group in groups for run in group.runs for key in recorded(run.history)}
    key = headline_of(keys)
    return next((m for m in measures_of(groups) if m.key == key and key in keys), None)


def main_chart(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Build the thin curves of the seeds and the baselines, and the thick ones where they are averaged.

    Without a season, the thick curves are those of the measure.
    """
    measure = main_measure(groups)
    if measure is None:
        return None
    runs = sum(len(group.runs) for group in groups)
    most = max(20, min(_MOST_POINTS, _SEED_POINTS // max(1, runs)))
    season = _season(groups)

    def curve(rounds: Numbers, values: Numbers, points: int = most) -> dict[str, Any]:
        return thin_curve(*trailing(rounds, values, season), measure.scale, points)

    seeds = [
        [curve(*run.series(measure.key)) for run in group.runs]
        if len(group.runs) > 1 and runs <= _SEED_POINTS // 20
        else []
        for group in groups
    ]
    baselines = _baselines(groups, measure)
    return {
        "measure": measure.key, "seeds": seeds, "season": season,
        "baselines": [{"title": title, **curve(*found)} for title, found in baselines],
        "curves": [curve(*group.bands(measure.key)[:2], MOST_POINTS) for group in groups]
        if season > 1
        else None,
    }  # fmt: skip


def _season(groups: Sequence[Group]) -> int:
    """Return over how many periods the large chart averages: a year, or a week of days.

    Without it, a hundred months up and down hide what is better. Below four seasons every period is drawn.
    """
    names = (calendar(groups) or {}).get("names", [])
    for form, season in _SEASONS.items():
        if len(names) >= 4 * season and all(re.fullmatch(form, name) for name in names):
            return season
    return 1


def trailing(rounds: Numbers, values: Numbers, season: int) -> tuple[Numbers, Numbers]:
    """Average every value with those before it, ``season`` together; the first, which lack some, are left out.

    >>> trailing(np.arange(4.0), np.array([1.0, 2.0, 3.0, 7.0]), 2)[1].tolist()
    [1.5, 2.5, 5.0]
    """
    if season == 1 or len(values) < season:
        return rounds, values
    return rounds[season - 1 :], np.convolve(values, np.full(season, 1 / season), "valid")


def _baselines(
    groups: Sequence[Group], measure: MeasureDisplay
) -> Iterator[tuple[str, tuple[Numbers, Numbers]]]:
    """Yield the baselines that are equal in all runs of a seed, mean over seeds, as grey curves."""
    for title, scores in baseline_curves(groups, measure.key).items():
        rounds, values = np.array(sorted(scores.items()), dtype=np.float64).reshape(-1, 2).T
        yield title, (rounds, values)


def calendar(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Return the first round of every period and its name, if all runs agree.

    On the next period a round is named after the period that its model is evaluated on.
    """
    found = []
    for run in (run for group in groups for run in group.runs):
        about = run.directory.scenario()
        names, rounds = about.get("period_names") or [], int(about.get("rounds") or 0)
        if not names or rounds % len(names):
            return None
        ahead = run.spec.get("evaluate", {}).get("protocol") == "next"
        found.append({"names": names, "length": rounds // len(names), "ahead": int(ahead)})
    same = all(one == two for one, two in pairwise(found))
    return found[0] if found and same else None

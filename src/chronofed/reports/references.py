"""Baselines as rows of a table, where all its runs have the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from statistics import fmean
from typing import Any

from chronofed.reports.groups import Group
from chronofed.reports.runs import RunView
from chronofed.reports.spread import Spread
from chronofed.training.measure import HEADLINE, Column


@dataclass(frozen=True, slots=True)
class Reference:
    """A baseline that all runs of a table are compared with.

    Attributes:
        title: Its name.
        key: The number of the summary that it is to be compared with.
        mean: Its mean over the periods evaluated.
    """

    title: str
    key: str
    mean: float

    def text(self, column: Column) -> str:
        """Write the number in its column, and nothing in others."""
        found = Spread.of([self.mean]) if column.key == self.key else None
        return "" if found is None else found.text(column.digits, column.scale)


def references(groups: Sequence[Group]) -> list[Reference]:
    """Return the baselines that are the same for all runs of a seed: those that train differ with the settings.

    They are means over seeds.
    """
    found = [(_seed(run), run.summary.get("baselines")) for group in groups for run in group.runs]
    known = [(seed, one) for seed, one in found if one]
    if not known or len(known) < len(found) or len({one["measure"] for _, one in known}) > 1:
        return []
    measure = known[0][1]["measure"]
    key = "anytime" if measure == HEADLINE else f"anytime_{measure}"
    tables = [(seed, one["references"]) for seed, one in known]
    return [
        Reference(one["title"], key, fmean(means.values()))
        for name, one in tables[0][1].items()
        if (means := _by_seed(name, tables)) is not None
    ]


def _seed(run: RunView) -> int:
    return int(run.spec.get("seed", 0))


def _by_seed(name: str, tables: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[int, float] | None:
    """Return the mean of a baseline by seed; ``None`` where runs of a seed differ, or lack it."""
    means: dict[int, float] = {}
    for seed, table in tables:
        mean = table.get(name, {}).get("mean")
        if mean is None or not isclose(mean, means.setdefault(seed, mean), rel_tol=1e-9):
            return None
    return means


def baseline_curves(groups: Sequence[Group], measure: str) -> dict[str, dict[int, float]]:
    """Return the scores of the baselines of :func:`references` by title and round, means over seeds."""
    wanted = {one.title for one in references(groups)}
    by_seed = {_seed(run): run for group in groups for run in group.runs}
    found: dict[str, dict[int, list[float]]] = {}
    for run in by_seed.values() if wanted else ():
        about = run.directory.baselines()
        for name, scores in about.get("scores", {}).items() if _of(about, measure) else ():
            titles = run.summary["baselines"]["references"]
            title = titles.get(name, {}).get("title")
            for round_, score in zip(about["rounds"], scores, strict=True):
                if title in wanted and score is not None:
                    found.setdefault(title, {}).setdefault(round_, []).append(score)
    return {title: {r: fmean(s) for r, s in scores.items()} for title, scores in found.items()}


def _of(about: Mapping[str, Any], measure: str) -> bool:
    return about.get("measure") == measure

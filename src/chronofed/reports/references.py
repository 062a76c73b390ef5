"""Baselines as rows of a table, where all its runs have the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from chronofed.reports.groups import Group
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
    """Return the baselines that are the same for all runs: those that train differ with the settings."""
    found = [run.summary.get("baselines") for group in groups for run in group.runs]
    known = [one for one in found if one]
    if not known or len(known) < len(found) or len({one["measure"] for one in known}) > 1:
        return []
    measure = known[0]["measure"]
    key = "anytime" if measure == HEADLINE else f"anytime_{measure}"
    return [
        Reference(one["title"], key, one["mean"])
        for name, one in known[0]["references"].items()
        if all(_same(one, other["references"].get(name)) for other in known)
    ]


def _same(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and isclose(one["mean"], other["mean"], rel_tol=1e-9)

"""What a recipe's runs say: its table of numbers and what became of its claims. From records alone."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatchmethod
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

from chronofed.experiments.claims import Alike, Beats, Claim, Grows, Ordered, Refused
from chronofed.experiments.recipe import Cell, Recipe
from chronofed.experiments.study import Study
from chronofed.metrics.paired import Paired, paired
from chronofed.reports.view import Group, RunView

SURE = 0.05  # a difference counts as resolved if chance makes it this rarely

Verdict = Literal["holds", "does not hold", "not resolved", "not run"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One difference that a claim is about.

    Attributes:
        what: In words.
        found: The difference in the direction of the claim; ``None`` without runs.
        by: What it was to reach.
    """

    what: str
    found: Paired | None
    by: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Whether the difference is as claimed, or the opposite, beyond chance."""
        if self.found is None:
            return "not run"
        if self.found.mean >= self.by and self.found.mean > 0 and self.found.p < SURE:
            return "holds"
        if self.found.mean < 0 and self.found.p < SURE:
            return "does not hold"
        return "not resolved"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a claim.

    Attributes:
        claim: The claim.
        verdict: In a word.
        comparisons: The differences behind it.
        words: What was found where it is no difference.
    """

    claim: Claim
    verdict: Verdict
    comparisons: tuple[Comparison, ...] = ()
    words: str = ""


class Results:
    """A recipe's runs in a folder.

    Attributes:
        recipe: The recipe.
        study: Where the runs are.
        scale: At which scale.
        seeds: Of which seeds.
    """

    def __init__(self, recipe: Recipe, study: Study, scale: str, seeds: Sequence[int]) -> None:
        self.recipe, self.study, self.scale, self.seeds = recipe, study, scale, seeds

    @cached_property
    def cells(self) -> list[Cell]:
        """All that was wanted."""
        return list(self.recipe.cells(self.scale, self.seeds))

    @cached_property
    def runs(self) -> dict[tuple[str, str], dict[int, RunView]]:
        """Finished runs by row and column, and by seed."""
        found: dict[tuple[str, str], dict[int, RunView]] = {}
        for cell in self.cells:
            path = self.study.path(cell.experiment)
            if (path / "summary.json").exists():
                found.setdefault((cell.row, cell.column), {})[cell.seed] = RunView.read(path)
        return found

    @cached_property
    def refusals(self) -> dict[tuple[str, str], str]:
        """Why cells were refused."""
        reasons = ((cell, self.study.refusal(cell.experiment)) for cell in self.cells)
        return {(cell.row, cell.column): reason for cell, reason in reasons if reason is not None}

    @cached_property
    def failures(self) -> Counter[tuple[str, str]]:
        """How many runs of each cell could not go on, such as those that diverge."""
        paths = ((cell, self.study.path(cell.experiment)) for cell in self.cells)
        return Counter((c.row, c.column) for c, path in paths if (path / "failure.json").exists())

    @property
    def missing(self) -> int:
        """How many runs are not there yet."""
        there = sum(map(len, self.runs.values()))
        refused = sum((cell.row, cell.column) in self.refusals for cell in self.cells)
        return len(self.cells) - there - refused - self.failures.total()

    @property
    def headings(self) -> list[str]:
        """The columns of this scale."""
        return self.recipe.headings(self.scale)

    def group(self, row: str, column: str) -> Group:
        """The runs of one cell over seeds."""
        return Group(row, tuple(self.runs.get((row, column), {}).values()))

    def values(self, row: str, column: str, measure: str) -> dict[int, float]:
        """One number of the summaries by seed."""
        runs = self.runs.get((row, column), {})
        return {s: float(r.summary[measure]) for s, r in runs.items() if measure in r.summary}

    @property
    def hardware(self) -> list[str]:
        """The machines that the runs were made on."""
        views = [view for runs in self.runs.values() for view in runs.values()]
        return sorted({_machine(view.path) for view in views})

    @property
    def seconds(self) -> float:
        """Time of all runs together, one after the other."""
        views = {view.path: view for runs in self.runs.values() for view in runs.values()}
        return sum(float(view.summary.get("seconds", 0)) for view in views.values())

    def findings(self) -> list[Finding]:
        """What became of every claim."""
        return [self._judge(claim) for claim in self.recipe.claims]

    @singledispatchmethod
    def _judge(self, claim: Claim) -> Finding:
        raise NotImplementedError(type(claim).__name__)

    @_judge.register
    def _(self, claim: Beats) -> Finding:
        return self._ranked(claim, product(claim.better, claim.worse), claim.by)

    @_judge.register
    def _(self, claim: Ordered) -> Finding:
        return self._ranked(claim, pairwise(claim.rows))

    @_judge.register
    def _(self, claim: Grows) -> Finding:
        gains = [
            self._differences(claim, claim.better, claim.worse, column)
            for column in (claim.more, claim.fewer)
        ]
        seeds = sorted(gains[0].keys() & gains[1].keys())
        found = paired(*([gain[s] for s in seeds] for gain in gains)) if seeds else None
        what = f"{claim.better} - {claim.worse}: {claim.more} - {claim.fewer}"
        one = Comparison(what, found)
        return Finding(claim, one.verdict, (one,))

    @_judge.register
    def _(self, claim: Alike) -> Finding:
        comparisons = []
        for row, column in product(claim.rows, claim.columns or self.headings):
            first, second = (self.values(row, column, m) for m in (claim.measure, claim.other))
            seeds = sorted(first.keys() & second.keys())
            both = [[claim.factor * values[s] for s in seeds] for values in (first, second)]
            found = paired(*both) if seeds else None
            comparisons.append(
                Comparison(_place(f"{row}: {claim.measure} - {claim.other}", column), found)
            )
        if any(one.found is None for one in comparisons):
            return Finding(claim, "not run", tuple(comparisons))
        near = all(one.found and abs(one.found.mean) <= claim.within for one in comparisons)
        return Finding(claim, "holds" if near else "does not hold", tuple(comparisons))

    @_judge.register
    def _(self, claim: Refused) -> Finding:
        places = list(product(claim.rows, claim.columns or self.headings))
        reasons = {self.refusals[place] for place in places if place in self.refusals}
        if all(place in self.refusals for place in places):
            return Finding(claim, "holds", words="; ".join(sorted(reasons)))
        ran = any(place in self.runs for place in places)
        return Finding(claim, "does not hold" if ran else "not run")

    def _ranked(self, claim: Claim, pairs: Iterable[tuple[str, str]], by: float = 0.0) -> Finding:
        wanted = [name for name in claim.columns or self.headings if name in self.headings]
        comparisons = tuple(
            Comparison(
                _place(f"{better} - {worse}", column),
                self._compared(claim, better, worse, column),
                by,
            )
            for column, (better, worse) in product(wanted, list(pairs))
        )
        return Finding(claim, _together([one.verdict for one in comparisons]), comparisons)

    def _compared(self, claim: Claim, better: str, worse: str, column: str) -> Paired | None:
        gains = list(self._differences(claim, better, worse, column).values())
        return paired(gains, [0.0] * len(gains)) if gains else None

    def _differences(self, claim: Claim, better: str, worse: str, column: str) -> dict[int, float]:
        """How much better one row is than another, by seed."""
        first, second = (self.values(row, column, claim.measure) for row in (better, worse))
        sign = -claim.factor if claim.less else claim.factor
        return {s: sign * (first[s] - second[s]) for s in sorted(first.keys() & second.keys())}


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim about several differences holds if all do, and fails if one is the opposite."""
    for verdict in ("not run", "does not hold", "not resolved"):
        if verdict in verdicts:
            return verdict
    return "holds"


def _place(what: str, column: str) -> str:
    return f"{what}, {column}" if column else what


def _machine(path: Path) -> str:
    """The machine and the versions that matter, in a line."""
    found: dict[str, Any] = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    packages = {name: version.partition("+")[0] for name, version in found["packages"].items()}
    return (
        f"{found['cores']} cores ({found['machine']}), Python {found['python']}, "
        f"torch {packages['torch']}, chronofed {packages['chronofed']}"
    )

"""Results of a recipe: its table of numbers and the verdicts on its claims, from records alone."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, singledispatchmethod
from itertools import pairwise, product
from pathlib import Path

from chronofed.core.errors import RunError
from chronofed.reports.groups import Group
from chronofed.reports.runs import RunView
from chronofed.runs.directory import RunDirectory
from chronofed.studies.claims import Alike, Beats, Claim, Grows, Ordered, Refused
from chronofed.studies.recipe import Recipe, RecipeCell
from chronofed.studies.study import Study
from chronofed.studies.verdicts import Comparison, Finding, judge
from chronofed.training.paired import Paired, paired

logger = logging.getLogger(__name__)


class Results:
    """A recipe's runs in a folder.

    Attributes:
        recipe: The recipe.
        study: The folder of the runs.
        scale: The scale.
        seeds: The seeds.
    """

    def __init__(self, recipe: Recipe, study: Study, scale: str, seeds: Sequence[int]) -> None:
        self.recipe, self.study, self.scale, self.seeds = recipe, study, scale, seeds

    @cached_property
    def cells(self) -> list[RecipeCell]:
        """All cells of the recipe."""
        return list(self.recipe.cells(self.scale, self.seeds))

    @cached_property
    def runs(self) -> dict[tuple[str, str], dict[int, RunView]]:
        """Finished runs by row and column, and by seed."""
        found: dict[tuple[str, str], dict[int, RunView]] = {}
        for cell in self.cells:
            path = self.study.path(cell.experiment)
            if not (path / "summary.json").exists():
                continue
            try:
                found.setdefault((cell.row, cell.column), {})[cell.seed] = RunView.read(path)
            except RunError as error:
                logger.warning("skipped %s: %s", path, error)
        return found

    @cached_property
    def refusals(self) -> dict[tuple[str, str], str]:
        """The reasons why cells were refused."""
        reasons = ((cell, self.study.refusal(cell.experiment)) for cell in self.cells)
        return {(cell.row, cell.column): reason for cell, reason in reasons if reason is not None}

    @cached_property
    def failures(self) -> Counter[tuple[str, str]]:
        """The number of failed runs of each cell, such as those that diverge."""
        paths = ((cell, self.study.path(cell.experiment)) for cell in self.cells)
        return Counter((c.row, c.column) for c, path in paths if (path / "failure.json").exists())

    @property
    def missing(self) -> int:
        """The number of runs that are still missing."""
        finished = sum(map(len, self.runs.values()))
        refused = sum((cell.row, cell.column) in self.refusals for cell in self.cells)
        return len(self.cells) - finished - refused - self.failures.total()

    @property
    def headings(self) -> list[str]:
        """The columns of this scale."""
        return self.recipe.headings(self.scale)

    def group(self, row: str, column: str) -> Group:
        """Return the runs of one cell over seeds."""
        return Group(row, tuple(self.runs.get((row, column), {}).values()))

    def values(self, row: str, column: str, measure: str) -> dict[int, float]:
        """Return one number of the summaries by seed."""
        runs = self.runs.get((row, column), {})
        return {s: float(r.summary[measure]) for s, r in runs.items() if measure in r.summary}

    @property
    def hardware(self) -> list[str]:
        """The machines that the runs were made on."""
        views = [view for runs in self.runs.values() for view in runs.values()]
        return sorted({_machine(view.path) for view in views})

    @property
    def seconds(self) -> float:
        """The time of all runs together, as if run one after the other."""
        views = {view.path: view for runs in self.runs.values() for view in runs.values()}
        return sum(float(view.summary.get("seconds", 0)) for view in views.values())

    def findings(self) -> list[Finding]:
        """Judge every claim."""
        return [self._judge(claim) for claim in self.recipe.claims]

    @singledispatchmethod
    def _judge(self, claim: Claim) -> Finding:
        raise NotImplementedError(type(claim).__name__)

    @_judge.register
    def _(self, claim: Beats) -> Finding:
        return self._ranked(claim, product(claim.better, claim.worse), claim.margin)

    @_judge.register
    def _(self, claim: Ordered) -> Finding:
        return self._ranked(claim, pairwise(claim.rows))

    @_judge.register
    def _(self, claim: Grows) -> Finding:
        gains = [
            self._differences(claim, claim.better, claim.worse, column)
            for column in (claim.larger_in, claim.smaller_in)
        ]
        seeds = sorted(gains[0].keys() & gains[1].keys())
        found = paired(*([gain[s] for s in seeds] for gain in gains)) if seeds else None
        what = f"{claim.better} - {claim.worse}: {claim.larger_in} - {claim.smaller_in}"
        larger, smaller = (
            self._published(claim, claim.better, claim.worse, column)
            for column in (claim.larger_in, claim.smaller_in)
        )
        there = None if larger is None or smaller is None else larger - smaller
        return judge(claim, [Comparison(what, found, published=there)])

    @_judge.register
    def _(self, claim: Alike) -> Finding:
        comparisons = []
        for row, column in product(claim.rows, claim.columns or self.headings):
            first, second = (self.values(row, column, m) for m in (claim.measure, claim.other))
            seeds = sorted(first.keys() & second.keys())
            both = [[claim.factor * values[s] for s in seeds] for values in (first, second)]
            what = _place(f"{row}: {claim.measure} - {claim.other}", column)
            found = paired(*both) if seeds else None
            comparisons.append(Comparison(what, found, tolerance=claim.tolerance))
        return judge(claim, comparisons)

    @_judge.register
    def _(self, claim: Refused) -> Finding:
        places = list(product(claim.rows, claim.columns or self.headings))
        reasons = {self.refusals[place] for place in places if place in self.refusals}
        if all(place in self.refusals for place in places):
            return Finding(claim, "holds", words="; ".join(sorted(reasons)))
        ran = any(place in self.runs for place in places)
        return Finding(claim, "does not hold" if ran else "not run")

    def _ranked(
        self, claim: Claim, pairs: Iterable[tuple[str, str]], margin: float = 0.0
    ) -> Finding:
        wanted = [name for name in claim.columns or self.headings if name in self.headings]
        comparisons = [
            Comparison(
                _place(f"{better} - {worse}", column),
                self._compared(claim, better, worse, column),
                margin,
                published=self._published(claim, better, worse, column),
            )
            for column, (better, worse) in product(wanted, list(pairs))
        ]
        return judge(claim, comparisons)

    def _published(self, claim: Claim, better: str, worse: str, column: str) -> float | None:
        """Return the paper's difference, if the claim is about the number that its table has."""
        if claim.measure != getattr(self.recipe.view, "measure", None):
            return None
        first, second = (self.recipe.published(row, column) for row in (better, worse))
        return None if first is None or second is None else first - second

    def _compared(self, claim: Claim, better: str, worse: str, column: str) -> Paired | None:
        gains = list(self._differences(claim, better, worse, column).values())
        return paired(gains, [0.0] * len(gains)) if gains else None

    def _differences(self, claim: Claim, better: str, worse: str, column: str) -> dict[int, float]:
        """Compute by how much one row is better than another, by seed."""
        first, second = (self.values(row, column, claim.measure) for row in (better, worse))
        sign = -claim.factor if claim.lower_is_better else claim.factor
        return {s: sign * (first[s] - second[s]) for s in sorted(first.keys() & second.keys())}


def _place(what: str, column: str) -> str:
    return f"{what}, {column}" if column else what


def _machine(path: Path) -> str:
    """Describe the machine and the main versions in a line."""
    try:
        found = RunDirectory(path).environment()
        packages = {name: version.partition("+")[0] for name, version in found["packages"].items()}
        return (
            f"{found['cores']} cores ({found['machine']}), Python {found['python']}, "
            f"torch {packages['torch']}, chronofed {packages['chronofed']}"
        )
    except (RunError, AttributeError, KeyError) as error:
        logger.warning("%s: unknown machine: %s", path, error)
        return "unknown machine"

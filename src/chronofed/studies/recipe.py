"""Recipes: a table or figure as a grid of experiments, and the claims about it.

A recipe is one TOML file made of parts of specifications::

    title = "Baselines"
    label = "Performance of different algorithms"
    order = 1

    [base]                                  # a specification
    rounds = 500

    [scales.cpu]
    hours = 0.5
    overrides = { rounds = 200 }            # changes at this scale

    [rows.FedAvg]                           # changes of each row ...
    [rows.CFL-Core-Set.method.memory]
    kind = "core-set"

    [columns."alpha 0.1".scenario]          # ... and of each column
    client_alpha = 0.1

    [view]
    kind = "summary-table"

    [[claims]]
    kind = "beats"
    says = "core sets help"
    better = ["CFL-Core-Set"]
    worse = ["FedAvg"]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, TypeAlias

import msgspec

from chronofed.core.config import Config, Count, Natural, NonNegative
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table
from chronofed.runs.spec import Experiment
from chronofed.studies.claims import Claim
from chronofed.studies.views import View

ONLY_COLUMN = ""
"""Name of the only column of a recipe without columns."""

SpecPart: TypeAlias = dict[str, Any]
"""A part of a specification."""


class Scale(Config):
    """One size of a recipe.

    Attributes:
        hours: About how long it takes on two cores with three seeds.
        seeds: Default seeds; more than three where three do not resolve a claim.
        overrides: Changes to the recipe's base.
        rows: Further changes to single rows, such as a tuned learning rate.
        columns: The same for single columns, applied after those of rows.
        cells: The same for a row in one column, ``{row: {column: change}}``, applied last.
        exclude: Columns to leave out.
    """

    hours: NonNegative
    seeds: tuple[Natural, ...] = (0, 1, 2)
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: dict[str, Any] = msgspec.field(default_factory=dict)
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    exclude: tuple[str, ...] = ()


class Recipe(Config):
    """A table or figure; see the module.

    Attributes:
        title: The title.
        label: Its label in the paper.
        order: Its place among the paper's tables and figures.
        view: How to show it.
        scales: The sizes it can be run at, by name.
        base: The specification that all cells share.
        rows: Changes of each row.
        columns: Changes of each column.
        paper: The paper's own numbers: for each row, one per column.
        claims: The paper's claims about it.
        extends: Another recipe to take base, scales, rows and columns from, where they are not given here. Rows
            and columns may then be a list of names.
    """

    title: str
    label: str
    order: Count
    view: View
    scales: dict[str, Any] = msgspec.field(default_factory=dict)
    base: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: dict[str, Any] = msgspec.field(default_factory=dict)
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    paper: dict[str, Any] = msgspec.field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    extends: str | None = None

    def headings(self, scale: str) -> list[str]:
        """Return the names of the columns at a scale; one empty name if there are none."""
        excluded = self.scale(scale).exclude
        return [name for name in self.columns if name not in excluded] or [ONLY_COLUMN]

    def published(self, row: str, column: str) -> float | None:
        """Return the paper's number for a cell; ``None`` if it has none."""
        numbers = self.paper.get(row)
        places = list(self.columns) or [ONLY_COLUMN]
        return None if numbers is None else float(numbers[places.index(column)])

    def scale(self, name: str) -> Scale:
        """Return one of the sizes.

        Raises:
            SpecError: If there is none of that name.
        """
        if name not in self.scales:
            raise SpecError(f"no scale '{name}'; there are: {', '.join(self.scales)}")
        return from_table(self.scales[name], Scale, f"scales.{name}")

    def cells(self, scale: str, seeds: Sequence[int]) -> "Iterator[RecipeCell]":
        """Yield all experiments seed by seed, so that an unfinished grid is whole for the first seeds."""
        size = self.scale(scale)
        for seed, column, row in product(seeds, self.headings(scale), self.rows):
            # Later parts win: what makes the row is never overridden by a scale or a column.
            parts = (
                size.overrides,
                size.rows.get(row, {}),
                self.columns.get(column, {}),
                size.columns.get(column, {}),
                size.cells.get(row, {}).get(column, {}),
                self.rows[row],
                {"seed": seed},
            )
            yield RecipeCell(row, column, seed, self._experiment(row, column, parts))

    def _experiment(self, row: str, column: str, parts: Sequence[SpecPart]) -> Experiment:
        name = f"{row}, {column}" if column else row
        try:
            return from_table(reduce(merged, parts, {"name": name, **self.base}), Experiment)
        except SpecError as error:
            raise type(error)(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class RecipeCell:
    """One run of a recipe: a row, a column and a seed."""

    row: str
    column: str
    seed: int
    experiment: Experiment

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.experiment.name}, seed {self.seed}"


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> SpecPart:
    """Merge a change into a specification; settings of another kind replace the old ones as a whole.

    >>> merged({"model": {"kind": "mlp", "hidden": [9]}, "rounds": 5}, {"model": {"kind": "linear"}})
    {'model': {'kind': 'linear'}, 'rounds': 5}
    >>> merged({"train": {"lr": 0.1, "steps": 5}}, {"train": {"lr": 0.2}})
    {'train': {'lr': 0.2, 'steps': 5}}
    """
    if change.get("kind", base.get("kind")) != base.get("kind"):
        return dict(change)
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result

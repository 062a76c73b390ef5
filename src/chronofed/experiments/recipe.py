"""Recipes: a table or figure as a grid of experiments, and what is claimed about it.

A recipe is one TOML file, built only from what a specification can say::

    title = "Baselines"
    label = "Performance of different algorithms"
    order = 1

    [base]                                  # a specification
    rounds = 500

    [scales.cpu]
    hours = 0.5
    change = { rounds = 200 }               # what differs from it at this scale

    [rows.FedAvg]                           # what differs in each row ...
    [rows.CFL-Core-Set.method.memory]
    kind = "core-set"

    [columns."alpha 0.1".scenario]          # ... and in each column
    client_alpha = 0.1

    [view]
    kind = "table"

    [[claims]]
    kind = "beats"
    says = "core sets help"
    better = ["CFL-Core-Set"]
    worse = ["FedAvg"]
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from chronofed.config import Config, Count, Natural, NonNegative
from chronofed.errors import SpecError
from chronofed.experiments.claims import Claim
from chronofed.experiments.reader import read
from chronofed.experiments.spec import Experiment
from chronofed.experiments.views import View

SHIPPED = Path(__file__).parents[1] / "recipes"
ALONE = ""  # the name of the only column of a recipe that has none

Change: TypeAlias = dict[str, Any]  # a part of a specification


class Scale(Config):
    """One size of a recipe.

    Attributes:
        hours: What it takes on two cores with three seeds, about.
        seeds: Of every run, where none are asked for: more where three do not resolve what is claimed.
        change: What differs from the recipe's base.
        rows: What differs in single rows beyond that, such as a learning rate that was tuned.
        columns: The same for single columns, which comes after rows.
        without: Columns that are left out.
    """

    hours: NonNegative
    seeds: tuple[Natural, ...] = (0, 1, 2)
    change: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: dict[str, Any] = msgspec.field(default_factory=dict)
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    without: tuple[str, ...] = ()


class Recipe(Config):
    """A table or figure; see the module.

    Attributes:
        title: What it shows.
        label: Its label in the paper.
        order: Its place among the paper's tables and figures.
        view: How it is shown.
        scales: What it can be run at, by name.
        base: The specification that all cells have in common.
        rows: What differs in each row.
        columns: What differs in each column.
        paper: The paper's own numbers: for each row, one a column.
        claims: What the paper claims about it.
        like: Another recipe, from which everything but view, claims and numbers is taken where it is not given
            here. Rows and columns may then be a mere list of names.
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
    like: str | None = None

    def headings(self, scale: str) -> list[str]:
        """Names of the columns at a scale; one without a name if there are none."""
        without = self.scale(scale).without
        return [name for name in self.columns if name not in without] or [ALONE]

    def published(self, row: str, column: str) -> float | None:
        """The paper's number."""
        numbers = self.paper.get(row)
        places = list(self.columns) or [ALONE]
        return None if numbers is None else float(numbers[places.index(column)])

    def scale(self, name: str) -> Scale:
        """One of the sizes.

        Raises:
            SpecError: If there is none of that name.
        """
        if name not in self.scales:
            raise SpecError(f"no scale '{name}'; there are: {', '.join(self.scales)}")
        return read(self.scales[name], Scale, f"scales.{name}")

    def cells(self, scale: str, seeds: Sequence[int]) -> "Iterator[Cell]":
        """All experiments, seed by seed, so that a part of the grid is a smaller grid."""
        size = self.scale(scale)
        for seed, column, row in product(seeds, self.headings(scale), self.rows):
            tuned, place = size.rows.get(row, {}), self.columns.get(column, {})
            there = size.columns.get(column, {})
            parts = (size.change, tuned, place, there, self.rows[row], {"seed": seed})
            yield Cell(row, column, seed, self._experiment(row, column, parts))

    def _experiment(self, row: str, column: str, parts: Sequence[Change]) -> Experiment:
        name = f"{row}, {column}" if column else row
        try:
            return read(reduce(merged, parts, {"name": name, **self.base}), Experiment)
        except SpecError as error:
            raise type(error)(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a recipe."""

    row: str
    column: str
    seed: int
    experiment: Experiment

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.experiment.name}, seed {self.seed}"


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> Change:
    """A specification with a change; settings of another kind replace what was there as a whole.

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


def shipped() -> list[str]:
    """Names of the recipes that come with chronofed, in the paper's order."""
    names = (path.stem for path in SHIPPED.glob("*.toml"))
    return sorted(names, key=lambda name: (_table(name)["order"], name))


def load(name: str) -> Recipe:
    """Read a recipe: one that comes with chronofed, by its name, or a file.

    Raises:
        SpecError: If there is none, or anything is wrong with it, with the place.
    """
    try:
        recipe = read(_whole(name), Recipe)
        _check(recipe)
    except SpecError as error:
        raise type(error)(f"recipe {name}: {error}") from error
    return recipe


def _whole(name: str) -> dict[str, Any]:
    """A recipe with what it takes from another; files are named as seen from its own folder."""
    table = _table(name)
    if "like" not in table:
        return table
    like = str(table["like"])
    other = _whole(str(Path(name).parent / like) if _is_file(like) else like)
    for key in ("base", "scales"):
        table[key] = merged(other.get(key, {}), table.get(key, {}))
    for key in ("rows", "columns"):
        if isinstance(table.get(key), list):
            _known(table[key], other.get(key, {}), f"{key}: {table['like']} has no")
            table[key] = {name: other[key][name] for name in table[key]}
    return table


def _table(name: str) -> dict[str, Any]:
    path = Path(name) if _is_file(name) else SHIPPED / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(path.stem for path in sorted(SHIPPED.glob("*.toml")))
        raise SpecError(f"no recipe '{name}'; there are: {known}; or give a .toml file") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {error}") from error


def _is_file(name: str) -> bool:
    return name.endswith(".toml")


def _check(recipe: Recipe) -> None:
    """All names must exist and all specifications make sense, before anything is run."""
    for number, claim in enumerate(recipe.claims):
        names = claim.columns + tuple(getattr(claim, key, "") for key in ("more", "fewer"))
        _known(names, recipe.columns, f"claims[{number}]: no column")
        _known(_rows(claim), recipe.rows, f"claims[{number}]: no row")
    _known(recipe.paper, recipe.rows, "paper: no row")
    for row, numbers in recipe.paper.items():
        if len(numbers) != len(recipe.columns or [ALONE]):
            raise SpecError(f"paper.{row}: expected {len(recipe.columns)} numbers, one a column")
    for scale in recipe.scales:
        _known(recipe.scale(scale).without, recipe.columns, f"scales.{scale}.without: no column")
        if recipe.like is None:  # what is taken from another recipe may be about more of them
            _known(recipe.scale(scale).rows, recipe.rows, f"scales.{scale}.rows: no row")
            _known(
                recipe.scale(scale).columns, recipe.columns, f"scales.{scale}.columns: no column"
            )
        list(recipe.cells(scale, [0]))


def _rows(claim: Claim) -> list[str]:
    named = (getattr(claim, key, ()) for key in ("better", "worse", "rows"))
    return [row for rows in named for row in ((rows,) if isinstance(rows, str) else rows)]


def _known(names: Sequence[str] | Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for name in names:
        if name and name not in known:
            raise SpecError(f"{what} '{name}'; there are: {', '.join(known)}")

"""Loading recipes: those that come with chronofed, and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chronofed.core import toml
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table
from chronofed.studies.claims import Claim
from chronofed.studies.recipe import ONLY_COLUMN, Recipe, merged

SHIPPED = Path(__file__).parent / "recipes"


def shipped() -> list[str]:
    """Return the names of the recipes that come with chronofed, in the paper's order."""
    names = (path.stem for path in SHIPPED.glob("*.toml"))
    return sorted(names, key=lambda name: (_table(name)["order"], name))


def load(name: str) -> Recipe:
    """Load a recipe: one that comes with chronofed by its name, or a file.

    Raises:
        SpecError: If there is none, or anything is wrong with it; the message names the place.
    """
    try:
        recipe = from_table(_whole(name), Recipe)
        _check(recipe)
    except SpecError as error:
        raise type(error)(f"recipe {name}: {error}") from error
    return recipe


def _whole(name: str) -> dict[str, Any]:
    """Return a recipe with what it takes from another; a file is named relative to the recipe's folder."""
    table = _table(name)
    if "extends" not in table:
        return table
    base = str(table["extends"])
    other = _whole(str(Path(name).parent / base) if _is_file(base) else base)
    for key in ("base", "scales"):
        table[key] = merged(other.get(key, {}), table.get(key, {}))
    for key in ("rows", "columns"):
        if isinstance(table.get(key), list):
            _known(table[key], other.get(key, {}), f"{key}: {base} has no")
            table[key] = {name: other[key][name] for name in table[key]}
    return table


def _table(name: str) -> dict[str, Any]:
    path = Path(name) if _is_file(name) else SHIPPED / f"{name}.toml"
    if not path.exists():
        known = ", ".join(path.stem for path in sorted(SHIPPED.glob("*.toml")))
        raise SpecError(f"no recipe '{name}'; there are: {known}; or give a .toml file")
    return toml.load(path)


def _is_file(name: str) -> bool:
    return name.endswith(".toml")


def _check(recipe: Recipe) -> None:
    """Check that all names exist and all specifications are valid, before anything runs."""
    for number, claim in enumerate(recipe.claims):
        _check_claim(claim, recipe, f"claims[{number}]")
    _known(recipe.paper, recipe.rows, "paper: no row")
    for row, numbers in recipe.paper.items():
        if len(numbers) != len(recipe.columns or [ONLY_COLUMN]):
            raise SpecError(f"paper.{row}: expected {len(recipe.columns)} numbers, one per column")
    for scale in recipe.scales:
        _check_scale(scale, recipe)


def _check_claim(claim: Claim, recipe: Recipe, where: str) -> None:
    compared = (getattr(claim, key, "") for key in ("larger_in", "smaller_in"))
    _known([*claim.columns, *compared], recipe.columns, f"{where}: no column")
    _known(_rows(claim), recipe.rows, f"{where}: no row")


def _check_scale(name: str, recipe: Recipe) -> None:
    scale, where = recipe.scale(name), f"scales.{name}"
    # The scales of another recipe may name rows and columns that this one leaves out.
    if recipe.extends is None:
        _known(scale.exclude, recipe.columns, f"{where}.exclude: no column")
        _known(scale.rows, recipe.rows, f"{where}.rows: no row")
        _known(scale.columns, recipe.columns, f"{where}.columns: no column")
        _known(scale.cells, recipe.rows, f"{where}.cells: no row")
        for row, cells in scale.cells.items():
            _known(cells, recipe.columns, f"{where}.cells.{row}: no column")
    list(recipe.cells(name, [0]))


def _rows(claim: Claim) -> list[str]:
    named = (getattr(claim, key, ()) for key in ("better", "worse", "rows"))
    return [row for rows in named for row in ((rows,) if isinstance(rows, str) else rows)]


def _known(names: Sequence[str] | Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for name in names:
        if name and name not in known:
            raise SpecError(f"{what} '{name}'; there are: {', '.join(known)}")

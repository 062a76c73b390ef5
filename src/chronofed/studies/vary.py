"""All combinations of values of some settings, as runs of one specification."""

import copy
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core.config import Config, Kind
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import alternatives
from chronofed.runs.load_spec import load_table, locate, read_settings, toml_value
from chronofed.runs.spec import Experiment, on_engine
from chronofed.studies.recipe import ONLY_COLUMN, RecipeCell

MOST_RUNS = 10_000
"""Runs of one grid."""
NOTHING = "none"
"""Value that leaves a setting at its default."""
_OPENING, _CLOSING = "[{", "]}"


@dataclass(frozen=True, slots=True)
class Varied:
    """A setting and the values that it takes.

    Attributes:
        key: The setting with dots, such as ``train.lr``.
        values: The values as they were written.

    >>> Varied.parse("model.hidden=[8],[16, 16]").values
    ('[8]', '[16, 16]')
    """

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Varied":
        """Read ``KEY=VALUE,VALUE``; commas in brackets, braces and quotes do not separate values.

        Raises:
            SpecError: If it is anything else.
        """
        key, equals, rest = text.partition("=")
        values = tuple(part.strip() for part in _split(rest))
        if not equals or not all(key.strip().split(".")) or not all(values):
            raise SpecError(f"--vary {text}: expected KEY=VALUES, such as --vary train.lr=0.03,0.1")
        if len(set(values)) < len(values):
            raise SpecError(f"--vary {text}: expected different values")
        return cls(key.strip(), values)

    @property
    def path(self) -> list[str]:
        """The parts of the key."""
        return self.key.split(".")


@dataclass(frozen=True, slots=True)
class Grid:
    """The combinations of values of some settings.

    Attributes:
        spec: The specification.
        varied: The settings that vary.
        overrides: Changes to the specification that hold for all runs.
        data: Folder of data files.
    """

    spec: Path
    varied: Sequence[Varied]
    overrides: Sequence[str] = ()
    data: Path | None = None

    def __post_init__(self) -> None:
        keys = [one.key for one in self.varied]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise SpecError(f"--vary {twice[0]}: given twice; list all its values at once")
        if "seed" in keys:
            raise SpecError("--vary seed: use --seeds")

    @property
    def name(self) -> str:
        """The name of the folder of its runs; equal specifications get the same."""
        base = msgspec.structs.replace(self._base, seed=0)
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in base.name)
        return f"{safe}-{base.fingerprint()}"

    @property
    def _base(self) -> Experiment:
        return self._located(load_table(self.spec, self.overrides))

    def cells(
        self,
        seeds: Sequence[int] | None,
        engine: str | None = None,
        workers: int | None = None,
        track: str | None = None,
    ) -> list[RecipeCell]:
        """Return all runs, seed by seed, so that an unfinished grid is whole for the first seeds.

        Raises:
            SpecError: If a combination is not a valid specification.
        """
        settings = {each.name: each for each in self._settings(engine, workers)}
        count = len(settings) * len(seeds or [0])
        if count > MOST_RUNS:
            raise SpecError(f"--vary: {count} runs are too many; at most {MOST_RUNS}")
        return [
            RecipeCell(
                name,
                ONLY_COLUMN,
                seed,
                msgspec.structs.replace(one, seed=seed, track=track or one.track),
            )
            for seed in seeds or [self._base.seed]
            for name, one in settings.items()
        ]

    def _settings(self, engine: str | None, workers: int | None) -> Iterator[Experiment]:
        """Yield the experiment of every combination; those that differ in nothing have the same name."""
        # A kind before its own settings.
        ordered = sorted(self.varied, key=lambda one: len(one.path))
        if not ordered:
            yield on_engine(self._base, engine, workers)
            return
        for values in product(*(one.values for one in ordered)):
            table = load_table(self.spec, self.overrides)
            used = [
                (one, value)
                for one, value in zip(ordered, values, strict=True)
                if _set(table, one, value, self.varied)
            ]
            name = ", ".join(f"{self._short(one)}={value}" for one, value in used)
            try:
                experiment = self._located(table | {"name": name})
            except SpecError as error:
                raise type(error)(f"{name}: {error}") from error
            yield on_engine(experiment, engine, workers)

    def _short(self, one: Varied) -> str:
        """Shorten a key to its last part, where that tells all keys apart."""
        last = one.path[-1]
        return last if [each.path[-1] for each in self.varied].count(last) == 1 else one.key

    def _located(self, table: dict[str, Any]) -> Experiment:
        experiment = read_settings(copy.deepcopy(table), self.spec)
        return locate(experiment, self.spec.parent, self.data)


def _set(table: dict[str, Any], one: Varied, text: str, varied: Sequence[Varied]) -> bool:
    """Set a value in a specification; return False if the kind chosen here has no such setting."""
    *parents, key = one.path
    kind = _type_at(parents, table)
    chosen = any(each.path == parents for each in varied)
    if chosen and kind is not None and key not in kind.__struct_fields__:
        return False
    place: Any = table
    for part in parents:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise SpecError(f"--vary {one.key}: {part} is not a table")
    if text == NOTHING:
        place.pop(key, None)
        return True
    value = toml_value(text)
    asks = _is_kind(_hint(kind, key))
    place[key] = {"kind": value} if isinstance(value, str) and asks else value
    return True


def _type_at(path: Sequence[str], table: Mapping[str, Any]) -> type[Config] | None:
    """Return the class of the settings at a place; ``None`` if it is not known."""
    found: type[Config] | None = Experiment
    here: Any = table
    for part in path:
        hint = _hint(found, part)
        here = here.get(part, {}) if isinstance(here, Mapping) else {}
        found = _class(hint, here, getattr(found, "__struct_defaults__", ()), found, part)
    return found


def _class(
    hint: Any, here: Any, defaults: Sequence[Any], owner: type[Config] | None, part: str
) -> type[Config] | None:
    """Return the class that a table stands for: of its kind, or without one that of the default."""
    if not (isinstance(hint, type) and issubclass(hint, Config)):
        return None
    if not issubclass(hint, Kind):
        return hint
    kind = here.get("kind") if isinstance(here, Mapping) else None
    if kind is not None:
        return alternatives(hint).get(str(kind))
    fields = owner.__struct_fields__ if owner else ()
    known = dict(zip(fields[::-1], tuple(defaults)[::-1], strict=False))
    return type(known[part]) if isinstance(known.get(part), Config) else None


def _hint(owner: type[Config] | None, key: str) -> Any:
    return typing.get_type_hints(owner, include_extras=True).get(key) if owner else None


def _is_kind(hint: Any) -> bool:
    options = typing.get_args(hint) or (hint,)
    return any(isinstance(one, type) and issubclass(one, Kind) for one in options)


def _split(text: str) -> Iterator[str]:
    """Split at commas that are not inside brackets, braces or quotes."""
    depth, quote, part = 0, "", ""
    for mark in text:
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        depth += (mark in _OPENING) - (mark in _CLOSING) if not quote else 0
        if mark == "," and not depth and not quote:
            yield part
            part = ""
        else:
            part += mark
    yield part

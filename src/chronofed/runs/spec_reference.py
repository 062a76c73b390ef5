"""All keys of a spec, read from the settings classes themselves.

:func:`sections` walks from :class:`~chronofed.runs.spec.Experiment`, or from another root, through all nested
settings and all shipped alternatives. Names and types come from the annotations, ranges from their ``Meta``,
defaults from the classes, and meanings from the ``Attributes`` of the docstrings. So a new backbone, memory or
scenario is in the reference as soon as it exists.
"""

import inspect
import re
import types
import typing
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from chronofed.core import toml
from chronofed.core.bounds import LARGEST, LARGEST_COUNT, LARGEST_INTEGER, LONGEST_S
from chronofed.core.config import Config, Kind, is_alternative, kind_of
from chronofed.core.spec_io import alternatives
from chronofed.data.client_source import Source
from chronofed.runs.spec import Experiment

Settings = type[Config]

PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text"}
BOUNDS = {
    "gt": "> {}",
    "ge": ">= {}",
    "lt": "< {}",
    "le": "<= {}",
    "min_length": "at least {} long",
}
# Bounds that all numbers have are told once, at the top of the reference.
UNTOLD = (None, LARGEST, -LARGEST, LARGEST_COUNT, LARGEST_INTEGER, -LARGEST_INTEGER, LONGEST_S)


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a spec.

    Attributes:
        place: Its dotted name, such as ``method.backbone``; empty for the top level.
        choices: The settings that it can hold. If there are several, or one that has a kind, the table must
            name its ``kind``.
        many: Whether it is an array of tables.
    """

    place: str
    choices: tuple[Settings, ...]
    many: bool = False

    @property
    def title(self) -> str:
        """Its heading in a TOML file."""
        if not self.place:
            return "Top level"
        return f"[[{self.place}]]" if self.many else f"[{self.place}]"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table. Text is reStructuredText, as in docstrings.

    Attributes:
        name: The key.
        type: Its type and range, in the words of TOML; empty if the key is a section.
        section: The section that it is, if it is one.
        default: Its default as TOML, or a few words.
        meaning: One or two sentences.
    """

    name: str
    type: str
    section: Section | None
    default: str
    meaning: str


@cache
def sections(root: Settings = Experiment) -> tuple[Section, ...]:
    """Return all sections of a file, in the order of its fields.

    After those of an experiment come those of a client's own file. Settings that can stand in several
    places, or inside themselves, are listed where they are nearest to the top.
    """
    roots = [Section("", (root,))]
    roots += [Section("source", shipped(Source))] if root is Experiment else []
    found = {frozenset(start.choices): start for start in roots}
    ahead = deque(found.values())
    while ahead:
        section = ahead.popleft()
        for name, hint in (item for cls in section.choices for item in _hints(cls).items()):
            choices = _choices(hint)
            if choices and frozenset(choices) not in found:
                place = f"{section.place}.{name}".lstrip(".")
                inner = Section(place, choices, bool(_items(hint)))
                found[frozenset(choices)] = inner
                ahead.append(inner)
    return tuple(sorted(found.values(), key=lambda section: _rank(section.place, root)))


def keys(settings: Settings, root: Settings = Experiment) -> list[Key]:
    """Return the keys of one settings class."""
    meanings, hints = attributes(settings), _hints(settings)
    return [
        Key(
            field.name,
            "" if _choices(hints[field.name]) else type_words(hints[field.name]),
            _section(hints[field.name], root),
            _default(field),
            " ".join(meanings.get(field.name, "(see above)").split()),
        )
        for field in msgspec.structs.fields(settings)
    ]


def summary(settings: type[Any]) -> str:
    """Return the first paragraph of the docstring."""
    return inspect.cleandoc(settings.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def attributes(settings: type[Any]) -> dict[str, str]:
    """Return the meaning of each field, from the docstrings of a class and its bases."""
    meanings: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        own = re.split(r"\n(?=\S)", section)[0]
        meanings |= dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", own, re.MULTILINE))
    return meanings


def shipped(base: Settings) -> tuple[Settings, ...]:
    """Return the class itself if a spec can use it as it is, else its alternatives in this package."""
    if not issubclass(base, Kind) or is_alternative(base):
        return (base,)
    every = alternatives(base).values()
    return tuple(cls for cls in every if cls.__module__.startswith("chronofed."))


def type_words(hint: Any) -> str:
    """Name a type in the words of TOML."""
    options = [option for option in _options(hint) if option is not type(None)]
    return " or ".join(_words(option) for option in options)


def _words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join(filter(None, [_words(parts[0]), *map(_range, parts[1:])]))
    if origin is Literal:
        return " or ".join(f'``"{part}"``' for part in parts)
    if origin is tuple and parts[1:] == (...,):
        return f"list of ({type_words(parts[0])})"
    if origin is tuple:
        return f"list: {', '.join(map(_words, parts))}"
    if origin is dict:
        return "table" if parts[1] is Any else f"table of {type_words(parts[1])}"
    return PLAIN.get(hint, str(hint))


def _range(meta: msgspec.Meta) -> str:
    bounds = ((text, getattr(meta, name)) for name, text in BOUNDS.items())
    return " and ".join(text.format(bound) for text, bound in bounds if bound not in UNTOLD)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return "none"
    if isinstance(value, Kind):
        return f'``kind = "{kind_of(value)}"``'
    if isinstance(value, Config):
        return "its own defaults"
    # In a list, a table stays on one line.
    text = toml.dumps({"x": [msgspec.to_builtins(value)]})
    return f"``{text.strip().removeprefix('x = [').removesuffix(']')}``"


def _section(hint: Any, root: Settings) -> Section | None:
    choices = frozenset(_choices(hint))
    found = (section for section in sections(root) if frozenset(section.choices) == choices)
    return next(found, None) if choices else None


def _rank(place: str, root: Settings) -> list[int]:
    """Order places as the fields of an experiment."""
    settings, rank = [root], []
    names = list(filter(None, place.split(".")))
    if root is Experiment and names[:1] == ["source"]:
        settings, rank, names = list(shipped(Source)), [len(root.__struct_fields__)], names[1:]
    for name in names:
        owner = next(cls for cls in settings if name in cls.__struct_fields__)
        rank.append(owner.__struct_fields__.index(name))
        settings = list(_choices(_hints(owner)[name]))
    return rank


def _hints(settings: Settings) -> dict[str, Any]:
    hints = typing.get_type_hints(settings, include_extras=True)
    return {name: hints[name] for name in settings.__struct_fields__}


def _options(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _choices(hint: Any) -> tuple[Settings, ...]:
    """Return the settings classes that a field can hold: all shipped ones, if it names a base."""
    named = (option for option in _items(hint) or _options(hint) if _is_settings(option))
    return tuple(choice for cls in named for choice in shipped(cls))


def _items(hint: Any) -> tuple[Any, ...]:
    """Return the settings class of the items, if the field is a list of settings."""
    first = typing.get_args(hint)[:1] if typing.get_origin(hint) is tuple else ()
    return tuple(cls for cls in first if _is_settings(cls))


def _is_settings(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Config)

"""Bad values for every field of a specification, found by introspection: a new field is covered by itself."""

import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from chronofed.core.config import is_alternative, kind_of
from chronofed.runs.spec_reference import Section, sections
from tests.corpus.bad_inputs import Case

NUMBERS = ("nan", "inf", "1e308", '"text"', "true", "[]")
WRONG = {
    int: ("1.5", *NUMBERS),
    float: NUMBERS,
    str: ("5", "true", "[]"),
    bool: ("5", '"text"', "[]", "nan"),
}
# Parts that hold the sections of other parts.
HOLDERS = {
    "method.memory.curvature": ("method.memory.kind=taylor",),
    "method.backbone.curvature": ("method.backbone.kind=pvi",),
    "method.memory.detector": ("method.memory.kind=concepts",),
    "method.backbone.assign": ("method.backbone.kind=clusters",),
    "method.backbone.assign.detector": (
        "method.backbone.kind=clusters",
        "method.backbone.assign.kind=scores",
    ),
}
# Sections that only a client's own file has.
ELSEWHERE = "source"


def generated() -> Iterator[Case]:
    """Yield a case for each field and bad value, and an unknown key for each class."""
    for section in sections():
        if section.place.partition(".")[0] == ELSEWHERE:
            continue
        for settings in section.choices:
            yield from _cases(section, settings)


def _cases(section: Section, settings: type[Any]) -> Iterator[Case]:
    hints = typing.get_type_hints(settings, include_extras=True)
    for field in msgspec.structs.fields(settings):
        for value in bad_values(hints[field.name]):
            yield _case(section, settings, field.name, value)
    yield _case(section, settings, "zzz", "1")


def _case(section: Section, settings: type[Any], name: str, value: str) -> Case:
    kind = f'kind="{kind_of(settings)}",' if is_alternative(settings) else ""
    table = f"{{{kind}{name}={value}}}"
    if not section.place:
        override = f"{name}={value}"
    else:
        override = f"{section.place}={f'[{table}]' if section.many else table}"
    place = f"{section.place}{'[0]' * section.many}.{name}".lstrip(".")
    overrides = (*HOLDERS.get(section.place, ()), override)
    return Case(2, " ".join(["run spec.toml", *(f"-s '{one}'" for one in overrides)]), place)


def bad_values(hint: Any) -> tuple[str, ...]:
    """Return values, as TOML, that no field of this type accepts."""
    options = _options(hint)
    if any(isinstance(o, type) and issubclass(o, msgspec.Struct) for o in options):
        return ("5", '"text"', "[]")
    origins = [typing.get_origin(option) or option for option in options]
    if tuple in origins:
        inner = typing.get_args(options[0])[0]
        return ("5", '"text"', *(f"[{value}]" for value in bad_values(inner) if value != "[]"))
    if dict in origins:
        inner = typing.get_args(options[0])[1]
        return ("5", '"text"', *(f"{{a={v}}}" for v in bad_values(inner)))
    if Literal in origins and len(options) == 1:
        return ('"nonsense"', "5", "[]")
    sets = [set(WRONG[plain]) | _outside(option) for option, plain in _plain(options)]
    return tuple(sorted(set.intersection(*sets))) if sets else ()


def _outside(option: Any) -> set[str]:
    """Return numbers below and above the bounds of a field."""
    found = set()
    bounds = (meta for meta in typing.get_args(option) if isinstance(meta, msgspec.Meta))
    for meta in bounds:
        low = meta.ge if meta.ge is not None else meta.gt
        high = meta.le if meta.le is not None else meta.lt
        found |= {repr(low - 1) if abs(low) < 2 else repr(2 * low)} if low is not None else set()
        found |= {"0"} if meta.gt == 0 else set()
        found |= {repr(high * 10)} if high is not None else set()
    return found


def _plain(options: tuple[Any, ...]) -> Iterator[tuple[Any, type]]:
    for option in options:
        base = typing.get_args(option)[0] if typing.get_origin(option) is Annotated else option
        if typing.get_origin(base) is Literal:
            yield option, str
        elif base in WRONG:
            yield option, base


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union; a text that a literal does not have is as wrong as a number."""
    arguments = typing.get_args(hint)
    if not arguments or typing.get_origin(hint) in (Annotated, Literal, tuple, dict):
        if typing.get_origin(hint) is Annotated and typing.get_origin(arguments[0]) is tuple:
            return (arguments[0],)
        return (hint,)
    return tuple(option for option in arguments if option is not type(None))

"""Convert plain tables, as in TOML, to typed settings and back; errors name the place and the nearest key."""

import difflib
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from chronofed.core.config import Config, Kind, is_alternative, kind_of, shown
from chronofed.core.errors import SpecError
from chronofed.core.user_code import import_name

C = TypeVar("C", bound=Config)


def from_table(table: object, settings: type[C], where: str = "") -> C:
    """Build settings from a table.

    Args:
        table: A table parsed from TOML.
        settings: The class to build; for a :class:`~chronofed.core.config.Kind`, one of its alternatives.
        where: Place in the specification, for messages.

    Returns:
        The settings.

    Raises:
        SpecError: For an unknown or missing key, a wrong type, a value out of range.
    """
    if isinstance(table, str) and table in settings.words:
        table = settings.words[table]
    if not isinstance(table, Mapping):
        msg = f"{where}: expected a table, got {_show(table)}"
        raise SpecError(msg)
    fields = dict(table)
    cls: type[C] = settings
    if issubclass(settings, Kind):
        cls = _alternative(fields.pop("kind", None), settings, where)
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in fields:
        if name not in cls.__struct_fields__:
            raise SpecError(_unknown(_join(where, name), "key", name, cls.__struct_fields__))
    values = {name: _value(v, hints[name], _join(where, name)) for name, v in fields.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise SpecError(_construction(error, cls, where)) from error


def _value(value: object, hint: Any, where: str) -> Any:
    """Convert one field: nested settings recursively, everything else by msgspec."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    nested = [o for o in options if isinstance(o, type) and issubclass(o, Config)]
    if nested and value is not None:
        if len(nested) == 1:
            return from_table(value, nested[0], where)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        return from_table(value, _pick(kind, {kind_of(o): o for o in nested}, where), where)
    (item,) = typing.get_args(hint)[:1] or (None,)
    if typing.get_origin(hint) is tuple and isinstance(item, type) and issubclass(item, Config):
        if not isinstance(value, list):
            msg = f"{where}: expected an array of tables, got {_show(value)}"
            raise SpecError(msg)
        return tuple(from_table(part, item, f"{where}[{k}]") for k, part in enumerate(value))
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise SpecError(_mismatch(str(error), value, options, where)) from error


def _mismatch(complaint: str, value: object, options: tuple[Any, ...], where: str) -> str:
    """Rewrite a message of msgspec with the place and the value."""
    if complaint.startswith("Invalid enum value"):
        listed = [o for o in options if typing.get_origin(o) is typing.Literal]
        choices = [str(choice) for option in listed for choice in typing.get_args(option)]
        return _unknown(where, "value", str(value), choices)
    if complaint == "Number out of range":
        return f"{where}: expected a number that fits into 64 bits, got {_show(value)}"
    text, _, inside = complaint.replace("`", "").partition(" - at $")
    # The value is a list or a table, and the message is about one part of it.
    if inside:
        return f"{where}{inside}: {text[0].lower()}{text[1:]}"
    expected = text.removeprefix("Expected ").split(", got ")[0]
    return f"{where}: expected {expected}, got {_show(value)}"


def alternatives(base: type[Kind]) -> dict[str, type[Kind]]:
    """Return all alternatives of a kind by name: those of its room, and all others that were imported."""
    _import_room(base.__module__)
    found: dict[str, type[Kind]] = {}
    for cls in base.__subclasses__():
        if is_alternative(cls) and cls.__struct_config__.tag != base.__struct_config__.tag:
            found[kind_of(cls)] = cls
        found |= alternatives(cls)
    return dict(sorted(found.items()))


@cache
def _import_room(module: str) -> None:
    """Import every module of a room of chronofed, so that a new part is known by its file alone."""
    top, *inner = module.split(".")
    if top != "chronofed" or not inner:
        return
    room = importlib.import_module(f"{top}.{inner[0]}")
    for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(found.name)


def to_table(settings: object) -> Any:
    """Convert settings to the plain table that :func:`from_table` reads.

    A class from outside chronofed is written as ``module:Class``, whatever its tag, so a resumed run finds it.
    """
    if isinstance(settings, Config):
        fields = {name: to_table(getattr(settings, name)) for name in settings.__struct_fields__}
        return {"kind": _name(type(settings)), **fields} if isinstance(settings, Kind) else fields
    if isinstance(settings, tuple | list):
        return [to_table(item) for item in settings]
    return msgspec.to_builtins(settings)


def _name(cls: type[Kind]) -> str:
    if cls.__module__.startswith("chronofed."):
        return kind_of(cls)
    return f"{cls.__module__}:{cls.__qualname__}"


def _alternative(kind: object, base: type[Any], where: str) -> type[Any]:
    known = {kind_of(base): base} if is_alternative(base) else alternatives(base)
    if isinstance(kind, str) and ":" in kind:
        return _imported(kind, base, where)
    return _pick(kind, known, where)


def _pick(kind: object, known: Mapping[str, type[Any]], where: str) -> type[Any]:
    if kind in known:
        return known[str(kind)]
    place = _join(where, "kind")
    if kind is None:
        msg = f"{place}: missing; choose one of {', '.join(known)}"
        raise SpecError(msg)
    raise SpecError(_unknown(place, "value", str(kind), known))


def _imported(path: str, base: type[Any], where: str) -> type[Any]:
    """Import a user's own class, given as ``package.module:Class``."""
    place = _join(where, "kind")
    cls = import_name(path, place)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        msg = f"{place}: {path!r} is not a subclass of {base.__module__}.{base.__qualname__}"
        raise SpecError(msg)
    return cls


def _construction(error: Exception, cls: type[Any], where: str) -> str:
    """Rewrite an error of a constructor: a missing field, or settings that do not fit together."""
    text = str(error)
    if text.startswith("Missing required argument"):
        return f"{_join(where, text.split(chr(39))[1])}: missing (a required key of {cls.__name__})"
    return f"{where or 'specification'}: {text}"


def _unknown(where: str, what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
    value = "" if what == "key" else f" {shown(name)}"
    return f"{where}: unknown {what}{value}; {hint}"


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _show(value: object) -> str:
    return f"{type(value).__name__} {shown(value)}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name

"""Plain tables, as TOML gives them, into typed settings; errors name the place and the nearest valid key."""

import difflib
import importlib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from chronofed.config import Config, Kind, is_alternative, kind_of
from chronofed.errors import SpecError

C = TypeVar("C", bound=Config)


def read(table: object, settings: type[C], where: str = "") -> C:
    """Build settings from a table.

    Args:
        table: What was read from TOML.
        settings: The class to build; for a :class:`~chronofed.config.Kind`, one of its alternatives.
        where: Place in the specification, for messages.

    Returns:
        The settings.

    Raises:
        SpecError: For an unknown or missing key, a wrong type, a value out of range.
    """
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


def _value(value: object, hint: Any, where: str) -> Any:  # noqa: ANN401
    """One field: nested settings are read in turn, everything else is checked by msgspec."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    nested = [o for o in options if isinstance(o, type) and issubclass(o, Config)]
    if nested and value is not None:
        if len(nested) == 1:
            return read(value, nested[0], where)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        return read(value, _pick(kind, {kind_of(o): o for o in nested}, where), where)
    (item,) = typing.get_args(hint)[:1] or (None,)
    if typing.get_origin(hint) is tuple and isinstance(item, type) and issubclass(item, Config):
        if not isinstance(value, list):
            msg = f"{where}: expected an array of tables, got {_show(value)}"
            raise SpecError(msg)
        return tuple(read(part, item, f"{where}[{k}]") for k, part in enumerate(value))
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise SpecError(_mismatch(str(error), value, options, where)) from error


def _mismatch(complaint: str, value: object, options: tuple[Any, ...], where: str) -> str:
    """Msgspec's complaint in our words."""
    if complaint.startswith("Invalid enum value"):
        listed = [o for o in options if typing.get_origin(o) is typing.Literal]
        choices = [str(choice) for option in listed for choice in typing.get_args(option)]
        return _unknown(where, "value", str(value), choices)
    text, _, inside = complaint.replace("`", "").partition(" - at $")
    if inside:  # the value is a list or a table: the complaint is about one part of it
        return f"{where}{inside}: {text[0].lower()}{text[1:]}"
    expected = text.removeprefix("Expected ").split(", got ")[0]
    return f"{where}: expected {expected}, got {_show(value)}"


def alternatives(base: type[Kind]) -> dict[str, type[Kind]]:
    """All loaded alternatives of a kind by name, e.g. every backbone."""
    found: dict[str, type[Kind]] = {}
    for cls in base.__subclasses__():
        if is_alternative(cls) and cls.__struct_config__.tag != base.__struct_config__.tag:
            found[kind_of(cls)] = cls
        found |= alternatives(cls)
    return dict(sorted(found.items()))


def written(settings: object) -> Any:  # noqa: ANN401 - whatever TOML can hold
    """The plain table that :func:`read` turns into these settings; a user's own class by its path."""
    if isinstance(settings, Config):
        fields = {name: written(getattr(settings, name)) for name in settings.__struct_fields__}
        return {"kind": _name(type(settings)), **fields} if isinstance(settings, Kind) else fields
    if isinstance(settings, tuple | list):
        return [written(item) for item in settings]
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
    """The user's own class, given as ``package.module:Class``."""
    place = _join(where, "kind")
    module, _, name = path.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        msg = f"{place}: cannot import {path!r}: {error}"
        raise SpecError(msg) from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        msg = f"{place}: {path!r} is not a subclass of {base.__module__}.{base.__qualname__}"
        raise SpecError(msg)
    return cls


def _construction(error: Exception, cls: type[Any], where: str) -> str:
    """A constructor's complaint: a missing field, or settings that do not fit together."""
    text = str(error)
    if text.startswith("Missing required argument"):
        return f"{_join(where, text.split(chr(39))[1])}: missing (a required key of {cls.__name__})"
    return f"{where or 'specification'}: {text}"


def _unknown(where: str, what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
    shown = "" if what == "key" else f" {name!r}"
    return f"{where}: unknown {what}{shown}; {hint}"


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _show(value: object) -> str:
    return f"{type(value).__name__} {value!r}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name

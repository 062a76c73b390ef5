"""The base class of all settings: immutable, typed, and the same in Python and in TOML."""

from abc import ABCMeta
from collections.abc import Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from chronofed.core.bounds import LARGEST, LARGEST_COUNT, LARGEST_INTEGER, LONGEST_S

# The bounds also refuse NaN.
Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
# Share of a running mean that is kept.
Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Integer = Annotated[int, msgspec.Meta(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INTEGER)]


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _Meta(msgspec.StructMeta, ABCMeta):
    """A metaclass that lets a Struct have abstract methods."""


class Config(msgspec.Struct, metaclass=_Meta, frozen=True, forbid_unknown_fields=True):
    """Immutable settings whose constructor checks types and ranges; 1 in a field of floats becomes 1.0.

    >>> from chronofed.core.config import Config, NonNegative
    >>> class Tie(Config):
    ...     mu: NonNegative = 0.1
    >>> Tie(-1.0)
    Traceback (most recent call last):
    ...
    ValueError: Tie.mu: Expected `float` >= 0.0, not -1.0
    """

    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Words that a specification may have in place of a table, and the table that each stands for."""

    def __post_init__(self) -> None:
        for name, kind in _checked_fields(type(self)).items():
            value = getattr(self, name)
            try:
                # What is written to a file and read again is the same, to the last digit of its fingerprint.
                msgspec.structs.force_setattr(self, name, msgspec.convert(value, kind))
            except msgspec.ValidationError as error:
                msg = f"{type(self).__name__}.{name}: {error}, not {shown(value)}"
                raise ValueError(msg) from None


def shown(value: object, most: int = 80) -> str:
    """Show a value in a message, shortened; Python refuses to write very long numbers at all.

    >>> shown(16**5000)
    'a number of 20001 bits'
    >>> shown("x" * 100, most=10)
    "'xxx...xxx'"
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    part = (most - 2) // 2
    return text if len(text) <= most else f"{text[:part]}...{text[-part:]}"


class Kind(Config, tag_field="kind"):
    """A Config that is one of several alternatives; ``tag=`` is its ``kind`` in a spec."""


def kind_of(cls: type[msgspec.Struct] | msgspec.Struct) -> str:
    """Return the ``kind`` of an alternative in a spec."""
    return str(cls.__struct_config__.tag)


def is_alternative(cls: type[msgspec.Struct]) -> bool:
    """Tell if a class can be named in a spec; msgspec tags an abstract base with its class name."""
    return cls.__struct_config__.tag not in (None, cls.__name__)


@cache
def _checked_fields(cls: type[Config]) -> dict[str, Any]:
    """Return the fields that msgspec can check: all but nested settings, which check themselves."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls.__struct_fields__ if not _nested(hints[name])}


def _nested(kind: Any) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, msgspec.Struct)
    parts = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return any(_nested(part) for part in parts)

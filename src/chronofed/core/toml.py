"""Plain tables from and to TOML."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chronofed.core.errors import SpecError

BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def load(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        SpecError: If the file cannot be read or is not TOML.
    """
    try:
        return loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise SpecError(f"{path}: not valid TOML: {error}") from error


def loads(text: str) -> dict[str, Any]:
    """Read TOML.

    Raises:
        ValueError: If it is not TOML, or Python cannot hold it: tables nested too deeply, numbers too long.
    """
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        # Such as a number of 5,000 digits.
        raise ValueError(str(error).partition(";")[0]) from None


def dumps(table: Mapping[str, Any]) -> str:
    """Write a table of scalars, lists and tables as TOML; leave ``None`` out.

    >>> print(dumps({"rounds": 3, "train": {"lr": 0.1, "steps": None}}), end="")
    rounds = 3
    <BLANKLINE>
    [train]
    lr = 0.1
    """
    return "\n".join(_lines(table, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None and not isinstance(value, Mapping):
            yield f"{_key(key)} = {_scalar(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield ""
            yield f"[{'.'.join(map(_key, (*path, key)))}]"
            yield from _lines(value, (*path, key))


def _scalar(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_scalar(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        return repr(value)
    return _quoted(value)


def _key(name: str) -> str:
    return name if BARE.match(name) else _quoted(name)


def _quoted(value: object) -> str:
    """Quote as JSON does, which differs from TOML in one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

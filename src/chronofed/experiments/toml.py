"""Writing plain tables as TOML; reading is the standard library's."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def dumps(table: Mapping[str, Any]) -> str:
    """A table of scalars, lists and tables as TOML; ``None`` is left out.

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
    """JSON's text, which is TOML's too but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

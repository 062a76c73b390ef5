"""Limits for what readers accept from files and from other machines: a few bytes never take gigabytes or hours.

A reader checks sizes before it makes anything of them, and raises ``ValueError`` in one line. Whoever calls it
says where the bytes came from.
"""

import json
import re
from typing import Any, NamedTuple

MAX_JSON_CHARACTERS = 2**24
"""Maximum length of a JSON text; it is large because round weights may hold a matrix."""
MAX_JSON_VALUES = 2**20
"""Maximum number of values in a JSON text: those of a matrix of 1,000 rounds."""
MAX_JSON_TABLES = 10_000
"""Maximum number of tables and arrays in a JSON text; each takes much more memory than a number."""
MAX_JSON_DEPTH = 32
"""Maximum depth of tables and arrays inside one another."""
MAX_DIMENSIONS = 64
"""Maximum number of axes of a tensor."""

_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


class HeaderLimits(NamedTuple):
    """Limits for the header of a file of tensors.

    Attributes:
        max_bytes: Maximum size of the header.
        max_tensors: Maximum number of tensors.
    """

    max_bytes: int
    max_tensors: int


FILE_HEADER = HeaderLimits(max_bytes=2**28, max_tensors=4_000_000)
"""For files that this machine wrote: a checkpoint holds the tensors of all clients. Writers keep to it, too."""
MESSAGE_HEADER = HeaderLimits(max_bytes=2**22, max_tensors=10_000)
"""For one message or one record: what one model, one client or one data set has."""


def read_json(text: str) -> Any:
    """Parse JSON of bounded size, number of values and depth.

    Raises:
        ValueError: If a limit is exceeded, or it is not JSON.
    """
    if len(text) > MAX_JSON_CHARACTERS:
        raise ValueError(f"{len(text)} characters, at most {MAX_JSON_CHARACTERS} are accepted")
    # Characters inside strings count as well: the counts are never too small.
    tables = text.count("{") + text.count("[")
    if tables > MAX_JSON_TABLES or text.count(",") > MAX_JSON_VALUES:
        raise ValueError(
            f"too many values: at most {MAX_JSON_VALUES}, "
            f"in at most {MAX_JSON_TABLES} tables and arrays, are accepted"
        )
    if tables > MAX_JSON_DEPTH and _depth(text) > MAX_JSON_DEPTH:
        raise ValueError(f"nested too deeply: at most {MAX_JSON_DEPTH} levels are accepted")
    return json.loads(text)


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        first = text[token.start()]
        depth += (first in "[{") - (first in "]}")
        deepest = max(deepest, depth)
    return deepest

"""Plain data in fewer characters: tables by column, and what occurs twice once.

Pages of many experiments repeat names of keys, settings and rounds hundreds of times. ``cf.unpacked`` in
``web/packed.js`` restores what was packed; :func:`unpacked` is the same for readers in Python.
"""

import json
from dataclasses import dataclass, field
from typing import Any

# The key of an object that stands for something else begins with it, and no other key does.
MARK = "~"
_TABLE, _PAIRS = f"{MARK}table", f"{MARK}pairs"
# Rows from which a table is stored by column, and characters from which a repetition is stored once.
_ROWS, _CHARACTERS = 3, 12


def packed(content: object) -> dict[str, Any]:
    """Pack plain data.

    >>> packed([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 4}])
    {'content': {'~table': [3, {'a': 1}, {'b': [2, 3, 4]}]}, 'shared': []}
    """
    tables = _by_column(content)
    repeated = _Repeated()
    repeated.count(tables)
    return repeated.stored_once(tables)


def unpacked(page: dict[str, Any]) -> Any:
    """Restore what was packed.

    >>> unpacked({"content": [{"~": 0}, {"~": 0}], "shared": ["one long text"]})
    ['one long text', 'one long text']
    """
    return _restored(page["content"], page["shared"])


def _restored(value: Any, shared: list[Any]) -> Any:
    if isinstance(value, list):
        return [_restored(own, shared) for own in value]
    if not isinstance(value, dict):
        return value
    if MARK in value:
        return _restored(shared[value[MARK]], shared)
    if _PAIRS in value:
        return dict(_restored(value[_PAIRS], shared))
    if _TABLE not in value:
        return {key: _restored(own, shared) for key, own in value.items()}
    count, alike, columns = _restored(value[_TABLE], shared)
    return [alike | {key: column[k] for key, column in columns.items()} for k in range(count)]


def _by_column(value: Any) -> Any:
    """Turn lists of objects that have the same keys into columns; a column of one value is stored once."""
    if isinstance(value, dict):
        if any(str(key).startswith(MARK) for key in value):
            return {_PAIRS: [[key, _by_column(own)] for key, own in value.items()]}
        return {str(key): _by_column(own) for key, own in value.items()}
    if not isinstance(value, list | tuple):
        return value
    if not _is_table(value):
        return [_by_column(own) for own in value]
    columns = {key: [row[key] for row in value] for key in value[0]}
    same = {key: _by_column(column[0]) for key, column in columns.items() if _constant(column)}
    own = {key: _by_column(column) for key, column in columns.items() if key not in same}
    return {_TABLE: [len(value), same, own]}


def _is_table(rows: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether these are some objects with the same keys, none of which is a mark."""
    if len(rows) < _ROWS or not all(isinstance(row, dict) and row for row in rows):
        return False
    keys = rows[0].keys()
    return not any(key.startswith(MARK) for key in keys) and all(row.keys() == keys for row in rows)


def _constant(column: list[Any]) -> bool:
    """Return whether all values of a column are written alike, which 1 and true are not."""
    first = _text(column[0])
    return all(value == column[0] and _text(value) == first for value in column)


@dataclass
class _Repeated:
    """What occurs more than once, by its text.

    Attributes:
        counts: How often a text occurs.
        first: A value of that text.
        texts: The texts of the values that are long enough, by their identity.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def count(self, value: Any) -> str:
        """Count a value and all that is inside it; return its text."""
        if isinstance(value, dict):
            parts = [f"{_text(key)}:{self.count(own)}" for key, own in value.items()]
            text = "{" + ",".join(parts) + "}"
        elif isinstance(value, list):
            text = "[" + ",".join(map(self.count, value)) + "]"
        else:
            text = _text(value)
        if len(text) > _CHARACTERS and isinstance(value, dict | list | str):
            self.counts[text] = self.counts.get(text, 0) + 1
            self.first.setdefault(text, value)
            self.texts[id(value)] = text
        return text

    def stored_once(self, value: Any) -> dict[str, Any]:
        """Store every repetition once, the largest first: what is only inside it is not stored again."""
        shared: list[Any] = []
        content = self._referring(value, shared)
        return {"content": content, "shared": shared}

    def _referring(self, value: Any, shared: list[Any]) -> Any:
        text = self.texts.get(id(value), "")
        if self.counts.get(text, 0) < 2:
            return self._inside(value, shared)
        if text not in self.places:
            self.places[text] = len(shared)
            shared.append(None)
            shared[self.places[text]] = self._inside(self.first[text], shared)
        return {MARK: self.places[text]}

    def _inside(self, value: Any, shared: list[Any]) -> Any:
        if isinstance(value, dict):
            return {key: self._referring(own, shared) for key, own in value.items()}
        if isinstance(value, list):
            return [self._referring(own, shared) for own in value]
        return value


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))

"""Names for experiments that share one: the settings in which they differ, in short words."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chronofed.reports.runs import flatten

# Settings and characters of a name; what needs more is told apart in another way.
_MOST_SETTINGS, _MOST_CHARACTERS = 4, 60


def names_by_difference(specs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Name every specification by the settings in which it differs from others; ``None`` if that is too long.

    >>> names_by_difference([{"train": {"lr": 0.0312}}, {"train": {"lr": 0.1}}])
    ['lr 0.0312', 'lr 0.1']
    """
    flat = [flatten(spec) for spec in specs]
    keys = [
        key for key in dict.fromkeys(key for spec in flat for key in spec) if _differs(flat, key)
    ]
    shown = [key for key in keys if not _follows(flat, key, keys)]
    if not 0 < len(shown) <= _MOST_SETTINGS:
        return None
    values = {key: _texts([spec.get(key) for spec in flat]) for key in shown}
    names = [
        ", ".join(
            word for key in shown if (word := _words(key, shown, values[key][place], key in spec))
        )
        for place, spec in enumerate(flat)
    ]
    fit = all(0 < len(name) <= _MOST_CHARACTERS for name in names)
    return names if fit and len({*names}) == len(names) else None


def _differs(flat: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(spec.get(key) != flat[0].get(key) for spec in flat)


def _follows(flat: Sequence[Mapping[str, Any]], key: str, keys: Sequence[str]) -> bool:
    """Return whether the kind of the same part says what a setting is, as its default does."""
    kind = f"{key.rpartition('.')[0]}.kind"
    if key == kind or kind not in keys:
        return False
    found: dict[str, set[str]] = {}
    for spec in flat:
        found.setdefault(json.dumps(spec.get(kind)), set()).add(json.dumps(spec.get(key)))
    return all(len(values) == 1 for values in found.values())


def _texts(values: Sequence[Any]) -> list[str]:
    """Write values with three digits, or with all where two would look the same."""
    short = [f"{v:.3g}" if isinstance(v, float) else _plain(v) for v in values]
    long = [_plain(value) for value in values]
    return short if len({*short}) == len({*long}) else long


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "-".join(map(_plain, value)) or "none"
    return str(value)


def _words(key: str, shown: Sequence[str], value: str, known: bool) -> str:
    """Write a setting: ``lr 0.1``; the kind of a part speaks for itself."""
    if not known:
        return ""
    place, _, last = key.rpartition(".")
    if last == "kind":
        return value
    alone = sum(other.rpartition(".")[2] == last for other in shown) == 1
    word = last if alone else f"{place.rpartition('.')[2]} {last}"
    return f"{word.replace('_', ' ')} {value}"

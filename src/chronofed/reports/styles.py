"""The look of a method: the same colour and line wherever it is drawn, whatever is drawn beside it.

A style is a number below 32: its colour is ``number % 8``, its line ``number // 8``. Pages, figures for papers
and the terminal read the tables below, so that they agree. The colours are chosen such that the nearest two of
them stay apart for normal, protan and deutan eyes, on white and on dark ground; tests measure it.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chronofed.reports.groups import SAME_RESULT, Group
from chronofed.reports.runs import method_of

COLOURS = ("#2f6db3", "#d9662b", "#035128", "#971971", "#6f6100", "#8c74e5", "#c7465b", "#0094aa")
"""Colours on white ground."""

DARK = ("#6aa7e8", "#f0905a", "#577001", "#b032a1", "#efdf72", "#7d58f6", "#d26183", "#b6e1ff")
"""The same hues on dark ground."""

DASHES: tuple[tuple[float, ...], ...] = ((), (9, 4), (2, 3), (9, 3, 2, 3))
"""Lengths of the strokes and gaps of each line, in pixels of a page."""

StyleKey = tuple[str, str]
STYLES = len(COLOURS) * len(DASHES)

# Methods that are met most often keep their colours apart.
_USUAL = {"fedavg": 0, "fedavg + core-set": 1, "fedavg + taylor": 2, "fedavg + generative": 3}


def style_key(spec: Mapping[str, Any]) -> StyleKey:
    """Return the method in words, and all settings that a result depends on."""
    same = {key: value for key, value in spec.items() if key not in SAME_RESULT}
    return method_of(spec), json.dumps(same, sort_keys=True, default=str)


def assign(keys: Iterable[StyleKey]) -> dict[StyleKey, int]:
    """Give every experiment a style, whatever their order.

    A method has one colour, and its variants differ in the line. Experiments with one method, such as those of
    a sweep, differ in colours first, because the colour would tell nothing.

    >>> list(assign([("fedavg + core-set", "a"), ("fedavg", "b"), ("fedavg", "c")]).values())
    [0, 8, 1]
    """
    ordered = sorted(set(keys))
    methods = sorted({method for method, _ in ordered}, key=lambda m: (_USUAL.get(m, STYLES), m))
    if len(methods) == 1:
        return {key: number % STYLES for number, key in enumerate(ordered)}
    colours: dict[str, int] = {}
    for method in methods:
        wanted = _USUAL.get(method, zlib.crc32(method.encode()) % len(COLOURS))
        colours[method] = _nearest(wanted, set(colours.values()), len(COLOURS))
    taken: dict[StyleKey, int] = {}
    ranked = sorted(ordered, key=lambda key: methods.index(key[0]))
    for key in ranked:
        taken[key] = _free(colours[key[0]], set(taken.values()))
    return taken


def extended(known: Mapping[StyleKey, int], keys: Iterable[StyleKey]) -> dict[StyleKey, int]:
    """Give styles to further experiments, and leave those that were given before.

    >>> extended({("fedavg", "a"): 5}, [("fedavg", "a"), ("fedavg", "b"), ("fedavg + core-set", "c")])
    {('fedavg', 'a'): 5, ('fedavg', 'b'): 8, ('fedavg + core-set', 'c'): 1}
    """
    found = dict(known)
    fresh = assign({*known, *keys})
    for key, style in fresh.items():
        if key not in found:
            found[key] = _nearest(style, set(found.values()), STYLES)
    return found


def _nearest(wanted: int, taken: set[int], count: int) -> int:
    """Return the first free number from a wanted one on, or the wanted one if none is free."""
    places = [(wanted + k) % count for k in range(count)]
    return next((place for place in places if place not in taken), wanted)


def _free(colour: int, taken: set[int]) -> int:
    """Return the first free line of a colour; then any free style."""
    lines = range(colour, STYLES, len(COLOURS))
    return next((line for line in lines if line not in taken), _nearest(colour, taken, STYLES))


def styles_of(groups: Sequence[Group], known: Mapping[StyleKey, int] | None = None) -> list[int]:
    """Return the style of every group.

    Args:
        groups: The groups.
        known: Styles that were given before, as on a live page, where the selection changes.
    """
    keys = [style_key(group.runs[0].spec) if group.runs else (group.name, "") for group in groups]
    found = {**assign(keys), **(known or {})}
    return [found[key] for key in keys]

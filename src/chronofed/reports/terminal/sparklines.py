"""Small curves in the terminal, drawn with braille dots, readable without colour."""

from collections.abc import Collection, Sequence

import numpy as np
from rich.columns import Columns
from rich.console import Group as Rows
from rich.padding import Padding
from rich.text import Text

from chronofed.reports.downsample import Numbers
from chronofed.reports.groups import Group
from chronofed.reports.styles import DARK, styles_of
from chronofed.training.measure import MeasureDisplay, decimals

# Samples of lines in the order of the dashes of a page.
LINES = ("━━━", "━ ━", "···", "━·━")
# Curves of many experiments that are drawn.
MOST = 8
# Lines of a curve.
HEIGHT = 5
# Characters of a curve, and between two curves.
NARROW, WIDE, GAP = 24, 44, 2
# Bits of the dots of a braille character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def braille(
    x: Numbers, y: Numbers, width: int, height: int, limits: tuple[float, float, float, float]
) -> list[str]:
    """Draw a curve as lines of braille characters.

    Args:
        x: Positions, ascending.
        y: Values.
        width: Characters in a line.
        height: Lines.
        limits: Minimum and maximum of the positions, minimum and maximum of the values.

    >>> braille(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 2, 1, (0, 1, 0, 1))
    ['⡠⠊']
    """
    left, right, low, high = limits
    columns = np.linspace(left, right, 2 * width)
    inside = (columns >= x[0]) & (columns <= x[-1])
    levels = (np.interp(columns, x, y) - low) / (high - low or 1.0) * (4 * height - 1)
    rows = 4 * height - 1 - np.clip(np.rint(levels), 0, 4 * height - 1).astype(int)
    cells = np.zeros((height, width), dtype=int)
    before: int | None = None
    for column in np.flatnonzero(inside):
        now = int(rows[column])
        # Fill the column from the last level on, so that a steep curve has no gaps.
        start = now if before is None or abs(before - now) < 2 else before + np.sign(now - before)
        for row in range(min(start, now), max(start, now) + 1):
            cells[row // 4, column // 2] |= _DOTS[row % 4][column % 2]
        before = now
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def most_telling(found: Sequence[Group], measure: MeasureDisplay) -> list[int]:
    """Return the places of the experiments that are drawn: of many the best, those that finished first."""

    def order(place: int) -> tuple[bool, float]:
        means = found[place].bands(measure.key)[1]
        if not len(means):
            return True, np.inf
        last = float(means[-1])
        return not found[place].finished, last if measure.better == "lower" else -last

    places = range(len(found))
    return sorted(sorted(places, key=order)[:MOST])


def curves(
    found: Sequence[Group],
    width: int,
    key: str = "test_accuracy",
    scale: float = 100.0,
    shown: Collection[int] | None = None,
) -> Columns | None:
    """Draw a small curve for every experiment, on the same axes; ``None`` if there is nothing to draw.

    Args:
        found: All experiments, by which the styles are given.
        width: Characters in a line.
        key: The measure.
        scale: By which it is multiplied.
        shown: The places of those that are drawn; ``None`` for all.
    """
    every = [
        (_title(group.name, style), *group.bands(key)[:2])
        for place, (group, style) in enumerate(zip(found, styles_of(found), strict=True))
        if shown is None or place in shown
    ]
    lines = [line for line in every if len(line[1])]
    if not lines:
        return None
    low = scale * min(float(y.min()) for _, _, y in lines)
    high = scale * max(float(y.max()) for _, _, y in lines)
    limits = (min(x[0] for _, x, _ in lines), max(x[-1] for _, x, _ in lines), low, high)
    room = len(_label(high)) + 1
    across = max(1, min(len(lines), width // (NARROW + room + GAP)))
    span = max(4, min(WIDE, width // across - room - GAP))
    panels = [_panel(name, x, scale * y, span, limits) for name, x, y in lines]
    return Columns(panels, padding=(1, GAP), width=span + room)


def _title(name: str, style: int) -> Text:
    """Write the name behind a sample of the line that stands for the method on pages, too."""
    sample = (LINES[style // len(DARK)], DARK[style % len(DARK)])
    return Text.assemble(sample, " ", (name, "bold"), no_wrap=True, overflow="ellipsis")


def _panel(
    title: Text, x: Numbers, y: Numbers, span: int, limits: tuple[float, float, float, float]
) -> Rows:
    """Draw the name, the curve with its scale on the left, and the rounds below."""
    first, last, low, high = limits
    drawn = braille(x, y, span, HEIGHT, limits)
    room = len(_label(high))
    beside = [_label(high), *[""] * (HEIGHT - 2), _label(low)]
    body = [Text(f"{label:>{room}} {line}") for label, line in zip(beside, drawn, strict=True)]
    below = f"{int(first)}{int(last):>{span - len(str(int(first)))}}"
    return Rows(Padding(title, (0, 0, 0, room + 1)), *body, Text(f"{'':{room}} {below}", "dim"))


def _label(value: float) -> str:
    return f"{value:.{1 if abs(value) >= 1 else decimals(value, -2)}f}"

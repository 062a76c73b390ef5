"""Figures of the theory: round weights as bars, and rounds that algorithms need as lines."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chronofed.reports.figures import canvas
from chronofed.reports.figures.canvas import COLOURS, FAINT, INK, style_axes

_PURPOSE = "drawing curves"
# Lines that lie on each other can be told apart.
_STYLES = (":", "--", "-.", "-")
# More bars than this have no numbers on them.
_NUMBERED = 24


def draw_weights(weights: Sequence[float], path: str | os.PathLike[str], title: str = "") -> Path:
    """Draw round weights as bars, the present last and in another colour.

    Args:
        weights: The weights, oldest first; those below 0 hang down.
        path: The file to write; the ending chooses PNG, SVG or PDF.
        title: The title.
    """
    drawn = canvas.new_figure((min(max(4.6, 1.4 + 0.5 * len(weights)), 12.0), 3.4), _PURPOSE)
    axes = drawn.add_subplot()
    rounds = np.arange(1, len(weights) + 1)
    colours = [COLOURS[0]] * (len(weights) - 1) + [COLOURS[1]]
    bars = axes.bar(rounds, weights, color=colours, width=0.72, zorder=2)
    axes.set_xlim(0.3, len(weights) + 0.7)
    axes.axhline(0, color=INK, linewidth=0.8, zorder=3)
    if len(weights) <= _NUMBERED:
        axes.bar_label(bars, [_label(w) for w in weights], fontsize=8, color=INK, padding=2)
        axes.set_xticks(rounds)
        axes.margins(y=0.12)
    style_axes(axes, "round (the last is the present)", "weight", title)
    return canvas.save(drawn, path)


def draw_lines(
    lines: Mapping[str, NDArray[np.float64]],
    over: NDArray[np.float64],
    labels: tuple[str, str],
    path: str | os.PathLike[str],
    title: str = "",
) -> Path:
    """Draw a line for each algorithm; an axis is logarithmic if its numbers span more than a decade.

    Args:
        lines: Values of each algorithm; at most four.
        over: Positions on the horizontal axis.
        labels: The labels of the horizontal and of the vertical axis.
        path: The file to write; the ending chooses PNG, SVG or PDF.
        title: The title.
    """
    drawn = canvas.new_figure((6.4, 4.0), _PURPOSE)
    axes = drawn.add_subplot()
    styles = _STYLES[-len(lines) :]
    for (name, values), style, colour in zip(lines.items(), styles, COLOURS, strict=False):
        axes.plot(over, values, style, color=colour, linewidth=2, label=name)
    axes.set_xscale("log" if _wide(over) else "linear")
    axes.set_yscale("log" if _wide(np.concatenate(list(lines.values()))) else "linear")
    axes.margins(x=0)
    axes.grid(which="major", axis="both", color=FAINT, alpha=0.3, linewidth=0.6)
    style_axes(axes, *labels, title)
    drawn.legend(
        loc="outside upper center",
        ncols=len(lines),
        fontsize=9,
        labelcolor=INK,
        frameon=False,
        handlelength=3.0,
    )
    return canvas.save(drawn, path)


def _label(weight: float) -> str:
    return f"{weight:.3g}".replace("-", "−")


def _wide(values: NDArray[np.float64]) -> bool:
    return bool(values.min() > 0 and values.max() > 10 * values.min())

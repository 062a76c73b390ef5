"""The noisy quadratic model as a picture: a panel a setting, a curve an algorithm."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.nqm import Cell
from chronofed.reports import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4
WORDS = {
    "SRD": "small drift",
    "BRD": "big drift",
    "SL": "small $L$",
    "LL": "large $L$",
    "SC": "strongly convex",
    "GC": "general convex",
}


def draw_panels(cells: Sequence[Cell], path: str | os.PathLike[str]) -> Path:
    """Draw the losses of all algorithms at their best learning rates, with bands over seeds.

    This is the paper's ``Performance of different algorithms on noisy quadratic model Appendix``.

    Args:
        cells: What a sweep found.
        path: Where to; the ending chooses PNG, SVG or PDF.

    Returns:
        The path.
    """
    panels: dict[str, list[Cell]] = {}
    for cell in cells:
        panels.setdefault(cell.setting, []).append(cell)
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    picture = figure.blank((2.1 + 2.7 * columns, 0.7 + 2.5 * rows), "drawing curves")
    axes = picture.subplots(rows, columns, squeeze=False).ravel()
    for panel, (setting, found) in zip(axes, panels.items(), strict=False):
        _draw_panel(panel, setting, found)
    for spare in axes[len(panels) :]:
        spare.set_visible(False)
    handles, names = axes[0].get_legend_handles_labels()
    picture.legend(
        handles, names, loc="outside upper center", ncols=len(names), frameon=False, fontsize=9
    )
    picture.supxlabel("round", fontsize=9, color=figure.INK)
    picture.supylabel(r"loss $\|Aw + B\|$", fontsize=9, color=figure.INK)
    return figure.save(picture, path)


def _draw_panel(axes: "Axes", setting: str, cells: Sequence[Cell]) -> None:
    for k, cell in enumerate(cells):
        colour, low, middle, high = figure.COLOURS[k % len(figure.COLOURS)], *cell.curve
        rounds = range(len(middle))
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        style = "-" if k % 2 == 0 else (0, (4, 2))  # curves may lie on each other
        axes.plot(
            rounds, middle, color=colour, linewidth=1.4, linestyle=style, label=cell.algorithm
        )
    axes.set_yscale("log")
    axes.set_title(_title(setting), fontsize=9, color=figure.INK)
    axes.tick_params(labelsize=7.5, colors=figure.INK)
    axes.grid(color=figure.FAINT, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    rates = "\n".join(f"{cell.algorithm}: {cell.lr:g}" for cell in cells)
    axes.text(
        0.97,
        0.96,
        f"learning rates\n{rates}",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=6,
        color=figure.INK,
    )


def _title(setting: str) -> str:
    return ", ".join(WORDS.get(word, word) for word in setting.split("-"))

"""The noisy quadratic model as a figure: a panel for each setting, a curve for each algorithm."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.reports.figures import canvas
from chronofed.theory.nqm import Cell

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
        cells: The results of a sweep.
        path: The file to write; the ending chooses PNG, SVG or PDF.

    Returns:
        The path.
    """
    panels: dict[str, list[Cell]] = {}
    for cell in cells:
        panels.setdefault(cell.setting, []).append(cell)
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    picture = canvas.new_figure((2.1 + 2.7 * columns, 0.7 + 2.5 * rows), "drawing curves")
    axes = picture.subplots(rows, columns, squeeze=False).ravel()
    for panel, (setting, found) in zip(axes, panels.items(), strict=False):
        _draw_panel(panel, setting, found)
    for spare in axes[len(panels) :]:
        spare.set_visible(False)
    handles, names = axes[0].get_legend_handles_labels()
    picture.legend(
        handles, names, loc="outside upper center", ncols=len(names), frameon=False, fontsize=9
    )
    picture.supxlabel("round", fontsize=9, color=canvas.INK)
    picture.supylabel(r"loss $\|Aw + B\|$", fontsize=9, color=canvas.INK)
    return canvas.save(picture, path)


def _draw_panel(axes: "Axes", setting: str, cells: Sequence[Cell]) -> None:
    for k, cell in enumerate(cells):
        colour, low, middle, high = canvas.COLOURS[k % len(canvas.COLOURS)], *cell.curve
        rounds = range(len(middle))
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        # Curves may lie on each other.
        style = "-" if k % 2 == 0 else (0, (4, 2))
        axes.plot(
            rounds, middle, color=colour, linewidth=1.4, linestyle=style, label=cell.algorithm
        )
    axes.set_yscale("log")
    axes.set_title(_title(setting), fontsize=9, color=canvas.INK)
    axes.tick_params(labelsize=7.5, colors=canvas.INK)
    axes.grid(color=canvas.FAINT, alpha=0.25, linewidth=0.6)
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
        color=canvas.INK,
    )


def _title(setting: str) -> str:
    return ", ".join(WORDS.get(word, word) for word in setting.split("-"))

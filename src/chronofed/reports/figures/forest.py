"""A forest plot: the differences behind claims, each with its interval, beside the published ones."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.reports.figures import canvas
from chronofed.reports.figures.canvas import COLOURS, FAINT, INK, style_axes
from chronofed.studies.verdicts import Comparison, Finding, Verdict
from chronofed.training.power import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR: dict[Verdict, str] = {
    "holds": COLOURS[2],
    "does not hold": COLOURS[6],
    "not resolved": FAINT,
}
ROW_INCHES = 0.26


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the plot.

    Attributes:
        label: The difference in words.
        mean: Its mean, in the direction of the claim.
        low: Lower end of the interval of 95 %.
        high: Upper end.
        margin: What the difference is tested against.
        published: The paper's difference, if it has one.
        verdict: The verdict on its claim.
    """

    label: str
    mean: float
    low: float
    high: float
    margin: float
    published: float | None
    verdict: Verdict


def lines(findings: Sequence[Finding]) -> list[Line]:
    """Return a line for every difference that was tested; not of claims that two numbers are alike."""
    return [
        line
        for finding in findings
        for one in finding.comparisons
        if (line := _line(one, finding.verdict)) is not None
    ]


def _line(one: Comparison, verdict: Verdict) -> Line | None:
    if one.found is None or one.tolerance is not None:
        return None
    low, high = interval(one.found)
    return Line(one.what, one.found.mean, low, high, one.margin, one.published, verdict)


def draw_forest(shown: Sequence[Line], label: str, path: str | os.PathLike[str]) -> Path:
    """Draw the lines from the top: mean and interval by the colour of the verdict, the paper's as a diamond.

    A single pair has no interval, and is a hollow mark. A tick says what a difference is tested against.

    Args:
        shown: The lines; at least one.
        label: The label of the axis.
        path: The file to write; the ending chooses PNG, SVG or PDF.
    """
    drawn = canvas.new_figure((8.2, 1.1 + ROW_INCHES * len(shown)), "drawing figures")
    axes = drawn.add_subplot()
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, line in enumerate(shown):
        colour, known = COLOUR[line.verdict], math.isfinite(line.low)
        if known:
            axes.plot([line.low, line.high], [place, place], color=colour, linewidth=2.2)
        face = colour if known else "white"
        axes.plot(line.mean, place, "o", color=colour, markerfacecolor=face, markersize=5)
        if line.published is not None:
            axes.plot(line.published, place, "D", color=INK, markersize=4, markerfacecolor="white")
        if line.margin:
            axes.plot(line.margin, place, "|", color=INK, markersize=9)
    axes.set_yticks(range(len(shown)), [line.label for line in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", color=FAINT, alpha=0.3, linewidth=0.6)
    style_axes(axes, label, "", "")
    _legend(axes, shown)
    return canvas.save(drawn, path)


def _legend(axes: "Axes", shown: Sequence[Line]) -> None:
    """Name the colours that occur, and the mark of the paper."""
    from matplotlib.lines import Line2D

    met = {line.verdict for line in shown}
    marks = [
        Line2D([], [], color=colour, marker="o", markersize=5, label=f"claim {verdict}")
        for verdict, colour in COLOUR.items()
        if verdict in met
    ]
    hollow = {"markerfacecolor": "white", "linestyle": "none", "markersize": 4}
    if any(line.published is not None for line in shown):
        marks.append(Line2D([], [], color=INK, marker="D", label="the paper", **hollow))  # type: ignore[arg-type]
    axes.legend(
        handles=marks,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(marks),
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )

"""Runs as figures for papers: curves with bands over seeds, or two numbers over a third."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chronofed.reports.figures import canvas
from chronofed.reports.figures.canvas import COLOURS, FAINT, INK, style_axes
from chronofed.reports.groups import Group
from chronofed.reports.main_chart import calendar
from chronofed.reports.styles import StyleKey, assign, style_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PURPOSE = "drawing curves"
# In the order of the dashes of a page.
_STYLES = ("-", "--", ":", "-.")
# Inches of a row of a legend.
LEGEND_ROW = 0.2
BLUE, RED = COLOURS[0], COLOURS[6]


def smoothed(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Compute a centred moving mean; near the ends over as many values as there are on both sides.

    >>> smoothed(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist()
    [0.0, 3.0, 3.0, 0.0]
    """
    reach = window // 2
    near = [min(reach, k, len(values) - 1 - k) for k in range(len(values))]
    return np.array([values[k - n : k + n + 1].mean() for k, n in enumerate(near)])


def draw_curves(
    panels: Mapping[str, Sequence[Group]],
    measure: str,
    label: str,
    path: str | os.PathLike[str],
    *,
    factor: float = 1.0,
    window: int = 1,
    zoom: tuple[int, int] | None = None,
    columns: int | None = None,
) -> Path:
    """Draw one measure over rounds: a panel for each title, a line for each group, mean and band over seeds.

    Args:
        panels: Groups of runs by title.
        measure: A number of every evaluation.
        label: The label of the vertical axis.
        path: The file to write; the ending chooses PNG, SVG or PDF.
        factor: The factor from the number to what is drawn.
        window: Evaluations in the moving mean.
        zoom: First and last round of a second panel beside each.
        columns: Columns of a paper that the figure fills, 1 or 2; by default it has its own size.
    """
    across = 2 if zoom else 1
    # One look for a method in all panels, and in a single panel the one that it has on pages.
    every = [group for groups in panels.values() for group in groups]
    keys = {id(group): _key(group, len(panels)) for group in every}
    looks = assign(keys.values())
    size = (0.8 + 3.6 * len(panels) * across, 3.4)
    drawn = canvas.new_figure(size, _PURPOSE, columns=columns)
    axes = drawn.subplots(1, len(panels) * across, squeeze=False)[0]
    for number, (title, groups) in enumerate(panels.items()):
        for part, limits in enumerate((None, zoom)[:across]):
            panel = axes[number * across + part]
            styles = [looks[keys[id(group)]] for group in groups]
            _draw_lines(panel, groups, measure, factor, window, limits, styles)
            where = f"{title}, rounds {limits[0]} to {limits[1]}" if limits else title
            known = calendar(groups)
            below = _name_periods(panel, known) if known else "round"
            style_axes(panel, below, label if not (number or part) else "", where)
    # A name that is in several panels stands in the legend once.
    found = {
        name: handle
        for panel in axes
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    across_legend = _columns(list(found), drawn.get_figwidth())
    # Rows of the legend need room of their own, or they take it from the curves.
    rows = -(-len(found) // across_legend)
    drawn.set_figheight(drawn.get_figheight() + LEGEND_ROW * max(0, rows - 1))
    drawn.legend(
        list(found.values()),
        list(found),
        loc="outside upper center",
        ncols=across_legend,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=2.4,
    )
    return canvas.save(drawn, path)


def period_marks(
    known: Mapping[str, Any], low: float, high: float, most: int = 6
) -> list[tuple[int, str]]:
    """Choose rounds to mark between two of them, each with the name of its period, or with its year alone.

    >>> months = [f"{year}-{month:02d}" for year in (2020, 2021, 2022) for month in range(1, 13)]
    >>> period_marks({"names": months, "length": 1, "ahead": 1}, 1, 35)
    [(12, '2021'), (24, '2022')]
    >>> period_marks({"names": ["a", "b", "c"], "length": 2, "ahead": 0}, 1, 6)
    [(1, 'a'), (3, 'b'), (5, 'c')]
    """
    ahead, length = int(known["ahead"]), int(known["length"])
    every = [
        (1 + (place - ahead) * length, str(name))
        for place, name in enumerate(known["names"])
        if place >= ahead
    ]
    every = [(round_, name) for round_, name in every if low <= round_ <= high]
    months = all(re.fullmatch(r"\d{4}-\d{2}", name) for _, name in every)
    years = [(round_, name[:4]) for round_, name in every if months and name.endswith("-01")]
    shown = years if len(years) > 1 else every
    return shown[:: max(1, -(-len(shown) // most))]


def _name_periods(axes: "Axes", known: Mapping[str, Any]) -> str:
    """Mark periods below a panel instead of rounds; return what the axis shows."""
    marks = period_marks(known, *axes.get_xlim())
    axes.set_xticks([round_ for round_, _ in marks], [name for _, name in marks])
    return "period evaluated" if known["ahead"] else "period"


def _key(group: Group, panels: int) -> StyleKey:
    """Return what a style is for; rows of several panels are told apart by their names, not by their data."""
    method, settings = style_key(group.runs[0].spec)
    return method, settings if panels == 1 else group.name


def _columns(names: Sequence[str], width: float) -> int:
    """Choose the columns of a legend such that its longest name fits beside the others.

    >>> _columns(["FedAvg"] * 3, 4.4), _columns(["a method with a long name"] * 6, 4.4)
    (3, 1)
    """
    inches = 0.68 + 0.067 * max(map(len, names), default=0)
    return max(1, min(len(names), int(width / inches)))


def _draw_lines(
    axes: "Axes",
    groups: Sequence[Group],
    measure: str,
    factor: float,
    window: int,
    limits: tuple[int, int] | None,
    styles: Sequence[int],
) -> None:
    for group, style in zip(groups, styles, strict=True):
        curve = np.array(group.curve(measure))
        if not len(curve):
            continue
        rounds = curve[:, 0]
        middle, deviation = (factor * smoothed(curve[:, c], window) for c in (1, 2))
        here = slice(None) if limits is None else (rounds >= limits[0]) & (rounds <= limits[1])
        colour, here_count = COLOURS[style % len(COLOURS)], len(rounds[here])
        axes.plot(
            rounds[here],
            middle[here],
            _STYLES[style // len(COLOURS)],
            color=colour,
            linewidth=1.8,
            label=group.name,
            marker="o" if here_count == 1 else "",  # a single evaluation makes no line
            markersize=5,
            clip_on=here_count > 1,
        )
        low, high = (middle - deviation)[here], (middle + deviation)[here]
        axes.fill_between(rounds[here], low, high, color=colour, alpha=0.15, linewidth=0)
    axes.margins(x=0)
    axes.grid(color=FAINT, alpha=0.3, linewidth=0.6)


def draw_two_axes(
    over: Sequence[float],
    left: Sequence[tuple[float, float]],
    right: Sequence[tuple[float, float]],
    labels: tuple[str, str, str],
    path: str | os.PathLike[str],
) -> Path:
    """Draw two numbers over a third, each with its own axis, colour and marker.

    Args:
        over: The third.
        left: Means and deviations of the first.
        right: Means and deviations of the second.
        labels: The labels below, on the left and on the right.
        path: The file to write; the ending chooses PNG, SVG or PDF.
    """
    drawn = canvas.new_figure((5.2, 3.6), _PURPOSE)
    first = drawn.add_subplot()
    second = first.twinx()
    for axes, values, colour, mark, label in (
        (first, left, BLUE, "o-", labels[1]),
        (second, right, RED, "s--", labels[2]),
    ):
        means, deviations = np.array(values).T
        axes.errorbar(over, means, deviations, fmt=mark, color=colour, linewidth=2, capsize=3)
        style_axes(axes, labels[0], label, "")
        axes.yaxis.label.set_color(colour)
        axes.tick_params(axis="y", colors=colour)
    second.spines["right"].set_visible(True)
    second.spines["right"].set_color(FAINT)
    first.set_xticks(list(over))
    first.grid(color=FAINT, alpha=0.3, linewidth=0.6)
    return canvas.save(drawn, path)


def draw_pairs(groups: Sequence[Group], path: str | os.PathLike[str]) -> Path:
    """Draw loss and accuracy on test data and on training data seen so far."""
    drawn = canvas.new_figure((8.0, 3.4), _PURPOSE)
    axes = drawn.subplots(1, 2)
    for panel, measure, label, factor in zip(
        axes, ("loss", "accuracy"), ("loss", "accuracy, %"), (1, 100), strict=True
    ):
        both = [
            Group(f"{group.name}, {words}", group.runs)
            for group in groups
            for words in ("test data", "past training data")
        ]
        for k, (group, data) in enumerate(zip(both, ("test", "seen") * len(groups), strict=True)):
            curve = np.array(group.curve(f"{data}_{measure}"))
            style, colour = _STYLES[k % 2], COLOURS[k % len(COLOURS)]
            panel.plot(
                curve[:, 0],
                factor * curve[:, 1],
                style,
                color=colour,
                linewidth=1.8,
                label=group.name,
            )
        panel.margins(x=0)
        panel.grid(color=FAINT, alpha=0.3, linewidth=0.6)
        style_axes(panel, "round", label, "")
    handles, names = axes[0].get_legend_handles_labels()
    drawn.legend(
        handles,
        names,
        loc="outside upper center",
        ncols=2,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    return canvas.save(drawn, path)

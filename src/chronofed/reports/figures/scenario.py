"""A scenario as a figure: who holds how many samples of which class, round after round.

This is the paper's figure "time evolving figure": clients x rounds x classes as circles.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import SpecError
from chronofed.core.names import Names
from chronofed.reports.figures import canvas
from chronofed.reports.figures.canvas import COLOURS, FAINT, INK
from chronofed.scenarios.base import Indices, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PURPOSE = "drawing a scenario"
UNKNOWN = "nothing to draw: the clients are elsewhere, and what they hold is not known here"
# Inches for a round.
_COLUMN = 0.42
# Inches that all clients together should not exceed.
_TALL = 16.0
# Points in an inch.
_POINTS = 72
# Pixels that matplotlib can draw side by side.
_LIMIT = 2**16


@dataclass(frozen=True, slots=True)
class Grid:
    """The number of samples of each class that each client held in each of the rounds shown.

    Attributes:
        rounds: The rounds shown.
        names: The names of the clients.
        counts: Numbers of samples ``(clients, rounds, classes)``.
        periods: The names of the periods of these rounds, if they have names; empty for a round without data.
    """

    rounds: tuple[int, ...]
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    periods: tuple[str, ...] = ()

    @property
    def kinds(self) -> int:
        """Number of classes."""
        return int(self.counts.shape[2])

    @property
    def line(self) -> float:
        """Inches for a class: a client takes about 1.7, more of many classes, less where clients are many."""
        room = _TALL / (int(self.counts.shape[0]) * (self.kinds + 1))
        return max(min(0.34, max(1.7 / self.kinds, 0.05), room), 0.05)

    @property
    def pitch(self) -> float:
        """Lines from one client to the next; about a quarter of an inch stays empty."""
        return self.kinds + max(1.0, 0.24 / self.line)

    @property
    def margins(self) -> tuple[float, float]:
        """Inches that long names of clients take on the right, and names of periods at the top."""
        longest = max(map(len, self.names), default=0)
        return 0.1 * max(0, longest - 14), 0.07 * max(map(len, self.periods), default=0)

    def area(self, held: Indices) -> NDArray[np.float64]:
        """Return areas of circles in square points, proportional to their samples."""
        # Of many classes a client holds a few at a time, so that large circles seldom meet; of few all.
        widest = _POINTS * min(0.8 * _COLUMN, (2 if self.kinds > 3 else 1) * self.line)
        return np.asarray(widest**2 * held / max(1, self.counts.max()), dtype=np.float64)


def draw_scenario(
    scenario: Scenario,
    dataset_labels: Indices,
    classes: Sequence[str],
    path: str | os.PathLike[str],
    rounds: int | Sequence[int] = 20,
    clients: Sequence[int] | None = None,
    names: Names | None = None,
) -> Path:
    """Draw clients x rounds x classes as circles whose area is the number of samples.

    Args:
        scenario: Who takes part, and with which samples.
        dataset_labels: Class of every training sample.
        classes: Names of the classes.
        path: The file to write; the ending chooses PNG, SVG or PDF.
        rounds: Rounds to show; a number means the first so many, or all if there are fewer.
        clients: Clients to show, ``None`` for all. Where clients never come back, a row is not one
            client but the first, second, ... of each round.
        names: The names of clients and periods; by default clients have numbers.
    """
    canvas.check(path, _PURPOSE)
    if isinstance(rounds, int):
        rounds = range(rounds if scenario.rounds is None else min(rounds, scenario.rounds))
    grid = tabulate(scenario, dataset_labels, len(classes), rounds, clients, names)
    return draw_grid(grid, classes, path)


def draw_grid(grid: Grid, classes: Sequence[str], path: str | os.PathLike[str]) -> Path:
    """Draw a scenario from its numbers."""
    return canvas.save(_figure(grid, classes), path)


def tabulate(
    scenario: Scenario,
    labels: Indices,
    classes: int,
    rounds: Sequence[int],
    clients: Sequence[int] | None = None,
    names: Names | None = None,
) -> Grid:
    """Count the samples behind the figure; arguments as for :func:`draw_scenario`."""
    if scenario.remote:
        raise SpecError(UNKNOWN)
    samples = [_samples_by_client(scenario, round_) for round_ in rounds]
    everyone = scenario.clients if scenario.persistent else max(map(len, samples), default=0)
    rows = tuple(range(everyone) if clients is None else clients)
    if not (rows and samples):
        msg = f"nothing to draw: {len(rows)} clients in {len(samples)} rounds; choose some"
        raise SpecError(msg)
    counts = np.zeros((len(rows), len(samples), classes), dtype=np.int64)
    for row, column in np.ndindex(len(rows), len(samples)):
        held = samples[column].get(rows[row], np.zeros(0, dtype=np.int64))
        counts[row, column] = np.bincount(labels[held], minlength=classes)
    names = names or Names(returning=scenario.persistent)
    periods = tuple(_period(scenario, names, round_) for round_ in rounds) if names.periods else ()
    return Grid(tuple(rounds), tuple(map(names.client, rows)), counts, periods)


def _period(scenario: Scenario, names: Names, round_: int) -> str:
    """Return the name of a round's period; empty if nobody takes part."""
    keys = {visit.key for visit in scenario.at(round_).visits.values()}
    return ", ".join(map(names.data_set, sorted(keys)))


def _samples_by_client(scenario: Scenario, round_: int) -> dict[int, Indices]:
    """Return the samples of each client, or of the first, second, ... where none comes back."""
    visits = scenario.at(round_).visits
    names = visits if scenario.persistent else range(len(visits))
    return {name: visit.indices for name, visit in zip(names, visits.values(), strict=True)}


def _figure(grid: Grid, classes: Sequence[str]) -> "Figure":
    """Draw the figure; refuse one that is too large."""
    clients, rounds, _ = grid.counts.shape
    side, top = grid.margins
    size = (max(4.6, 2.2 + rounds * _COLUMN) + side, 1.1 + clients * grid.pitch * grid.line + top)
    if max(size) * canvas.DPI >= _LIMIT:
        msg = f"{clients} clients x {rounds} rounds are too many for one picture: choose fewer"
        raise SpecError(msg)
    drawn = canvas.new_figure(size, _PURPOSE)
    axes = drawn.add_subplot()
    axes.set_xlim(-0.7, rounds - 0.3)
    axes.set_ylim(clients * grid.pitch - 1, -1)
    for row in range(clients):
        _draw_client(axes, grid, row)
    _draw_axes(axes, grid, classes)
    _draw_key(drawn, grid)
    return drawn


def _draw_client(axes: "Axes", grid: Grid, row: int) -> None:
    """Draw one client's band: a tinted cell for every round in which it takes part, and its circles."""
    kinds = grid.kinds
    colour = COLOURS[row % len(COLOURS)]
    top = row * grid.pitch
    here = np.flatnonzero(grid.counts[row].any(axis=1))
    axes.bar(here, kinds + 0.3, bottom=top - 0.65, width=0.94, color=colour, alpha=0.09, zorder=1)
    column, kind = np.nonzero(grid.counts[row])
    held = grid.counts[row, column, kind]
    # Small circles lie on top of large ones.
    first = np.argsort(-held, kind="stable")
    axes.scatter(
        column[first],
        (top + kind)[first],
        s=grid.area(held[first]),
        color=colour,
        edgecolors="white",
        linewidths=0.6,
        zorder=2,
    )
    middle = top + (kinds - 1) / 2
    axes.text(
        len(grid.rounds) - 0.2,
        middle,
        grid.names[row],
        color=colour,
        weight="bold",
        va="center",
        parse_math=False,
    )


def _draw_axes(axes: "Axes", grid: Grid, classes: Sequence[str]) -> None:
    """Label rounds below and classes on the left, as many as there is room for."""
    clients, rounds, kinds = grid.counts.shape
    shown = range(0, rounds, math.ceil(rounds / 30))
    axes.set_xticks(shown, [str(grid.rounds[i]) for i in shown], fontsize=8, color=INK)
    axes.set_xlabel("round", color=INK)
    if any(grid.periods):
        _draw_periods(axes, grid, shown)
    named = range(0, kinds, math.ceil(7 / (grid.line * _POINTS)))
    places = [row * grid.pitch + kind for row in range(clients) for kind in named]
    names = [classes[kind] for kind in named] * clients
    # A "$" in a name is a "$".
    axes.set_yticks(places, names, fontsize=6.5, color=INK, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_periods(axes: "Axes", grid: Grid, shown: Sequence[int]) -> None:
    """Name the periods of the rounds above the circles."""
    above = axes.secondary_xaxis("top")
    names = [grid.periods[i] for i in shown]
    above.set_xticks(shown, names, fontsize=7, color=INK, rotation=90, parse_math=False)
    above.tick_params(length=0)
    above.spines[:].set_visible(False)


def _draw_key(drawn: "Figure", grid: Grid) -> None:
    """Draw the legend of the areas."""
    largest = int(grid.counts.max())
    sizes = sorted({n for n in (_rounded(largest / 16), _rounded(largest / 4), largest) if n})
    areas = grid.area(np.array(sizes))
    circles = [drawn.axes[0].scatter([], [], s=area, color=FAINT, linewidths=0) for area in areas]
    drawn.legend(
        circles,
        [f"{n} sample{'s' * (n > 1)}" for n in sizes],
        loc="outside upper right",
        ncols=len(sizes),
        fontsize=8,
        labelcolor=INK,
        frameon=False,
        handlelength=3.4,
        handleheight=2.4,
        scatteryoffsets=[0.14],
        borderpad=0.8,
        handletextpad=0.3,
        borderaxespad=0.2,
    )


def _rounded(number: float) -> int:
    """Round to one significant digit; 0 stays 0."""
    return math.ceil(float(f"{number:.0e}"))

"""Forgetting by client and data set, and round weights over time, as figures for papers."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import RunError, SpecError
from chronofed.core.names import Names
from chronofed.reports.downsample import evenly_spaced
from chronofed.reports.figures import canvas
from chronofed.reports.figures.canvas import INK, style_axes
from chronofed.reports.figures.scenario import UNKNOWN, Grid
from chronofed.reports.period_history import LEVELS, UNSEEN
from chronofed.reports.runs import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Mode = Literal["lost", "accuracy"]
_PURPOSE = "drawing maps"
# Names of clients and of periods that there is room for.
ROWS, COLUMNS = 50, 24
_MAPS = {"lost": "Oranges", "accuracy": "Blues"}


def draw_heatmap(
    runs: Sequence[RunView],
    path: str | os.PathLike[str],
    mode: Mode = "lost",
    round_: int | None = None,
    columns: int | None = None,
) -> Path:
    """Draw clients x data sets, a panel for each run: the accuracy after a round, or the loss since the best.

    Args:
        runs: The runs.
        path: The file to write; the ending chooses PNG, SVG or PDF.
        mode: What to draw.
        round_: The round; by default the last.
        columns: Columns of a paper that the figure fills, 1 or 2; by default it has its own size.

    Raises:
        RunError: If a run did not follow single data sets, or predicts numbers.
        SpecError: If nothing was evaluated by that round, or the round is after the last evaluation.
    """
    tables = [_table(run, mode, round_) for run in runs]
    names = [Names.recorded(run.directory.scenario()) for run in runs]
    lines = max(len(values) for _, values in tables) if any(each.clients for each in names) else 0
    size = (0.9 + 3.8 * len(runs), min(9.0, max(3.6, 1 + 0.16 * lines)))
    drawn = canvas.new_figure(size, _PURPOSE, columns=columns)
    for axes, run, (when, values), named in zip(
        drawn.subplots(1, len(runs), squeeze=False)[0], runs, tables, names, strict=True
    ):
        image = axes.imshow(
            100 * values, cmap=_MAPS[mode], vmin=0, vmax=100, aspect="auto", interpolation="nearest"
        )
        style_axes(
            axes, "data set", "client" if run is runs[0] else "", f"{run.label}, round {when}"
        )
        _name_axes(axes, named, values.shape)
    words = "points lost since the best" if mode == "lost" else "accuracy, %"
    _bar(drawn, image, f"{words}\n({_measured_on(runs)})")
    return canvas.save(drawn, path)


def _name_axes(axes: "Axes", names: Names, shape: tuple[int, ...]) -> None:
    """Name clients and periods, as many as there is room for, where they have names."""
    clients, keys = shape
    if names.clients:
        ticks = evenly_spaced(clients, ROWS)
        labels = [names.client(k) for k in ticks]
        axes.set_yticks(ticks, labels, fontsize=7, parse_math=False)
    if names.periods:
        ticks = evenly_spaced(keys, COLUMNS)
        labels = [names.data_set(k) for k in ticks]
        axes.set_xticks(ticks, labels, fontsize=7, rotation=90, parse_math=False)
        axes.set_xlabel("period")


def _table(run: RunView, mode: Mode, round_: int | None) -> tuple[int, NDArray[np.float64]]:
    """Return the round, and a table ``(clients, data sets)`` with NaN for the unknown."""
    history = run.periods()
    if not history.pairs and run.record("period_error"):
        raise RunError(
            f"{run.path} predicts numbers, and a heatmap shows accuracies; try: plot curves"
        )
    if not history.pairs:
        msg = f"{run.path} did not follow single data sets; set evaluate.periods = 'on' and run it again"
        raise RunError(msg)
    rounds, now, best = history.downsample(len(history.rounds))
    frame = len(rounds) - 1 if round_ is None else int(np.searchsorted(rounds, round_, "right")) - 1
    if frame < 0:
        raise SpecError(f"--round {round_}: {run.path} was first evaluated after round {rounds[0]}")
    if round_ is not None and round_ > rounds[-1]:
        raise SpecError(f"--round {round_}: {run.path} was last evaluated after round {rounds[-1]}")
    shown = best[frame].astype(float) - now[frame] if mode == "lost" else now[frame].astype(float)
    shown[now[frame] == UNSEEN] = np.nan
    clients, keys = (np.array(axis) for axis in zip(*history.pairs, strict=True))
    table = np.full((clients.max() + 1, keys.max() + 1), np.nan)
    table[clients, keys] = shown / LEVELS
    return rounds[frame], table


def _measured_on(runs: Sequence[RunView]) -> str:
    """Say what the cells are measured on, and on how many samples."""
    histories = [run.periods() for run in runs]
    counts = [count for history in histories for count in history.tested.values()]
    least, most = min(counts), max(counts)
    samples = str(least) if least == most else f"{least} to {most}"
    if any(history.basis == "classes" for history in histories):
        return f"on its classes in the common test set, {samples} samples"
    return f"on its own test rows, {samples} a cell"


def draw_round_weights(
    runs: Sequence[RunView], path: str | os.PathLike[str], columns: int | None = None
) -> Path:
    """Draw the weights of the present and of each remembered data set over time, a panel for each run.

    Args:
        runs: The runs.
        path: The file to write; the ending chooses PNG, SVG or PDF.
        columns: Columns of a paper that the figure fills, 1 or 2; by default it has its own size.

    Raises:
        RunError: If a run remembers nothing.
    """
    lines = [run.record("round_weights") for run in runs]
    for run, found in zip(runs, lines, strict=True):
        if not found:
            raise RunError(
                f"{run.path} has no round weights: nothing is remembered, or it is too old"
            )
    drawn = canvas.new_figure((0.9 + 3.8 * len(runs), 3.6), _PURPOSE, columns=columns)
    top = max(max(line["present"], *line["past"], 0) for found in lines for line in found)
    for axes, run, found in zip(
        drawn.subplots(1, len(runs), squeeze=False)[0], runs, lines, strict=True
    ):
        depth = 1 + max(len(line["past"]) for line in found)
        table = np.full((depth, len(found)), np.nan)
        for column, line in enumerate(found):
            table[: 1 + len(line["past"]), column] = [line["present"], *line["past"]]
        image = axes.imshow(
            table, cmap="Blues", vmin=min(0.0, np.nanmin(table)), vmax=top, aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        ticks = evenly_spaced(len(found), 6)
        axes.set_xticks(ticks, [str(found[k]["round"]) for k in ticks])
        style_axes(
            axes, "round", "data sets before the present" if run is runs[0] else "", run.label
        )
    _bar(drawn, image, "weight")
    return canvas.save(drawn, path)


def _bar(drawn: "Figure", image: object, label: str) -> None:
    bar = drawn.colorbar(image, ax=drawn.axes, shrink=0.9)  # type: ignore[arg-type]
    # About 14 letters of this size fit on an inch.
    most = max(20, int(14 * drawn.get_figheight()))
    lines = [line for part in label.split("\n") for line in textwrap.wrap(part, most)]
    bar.set_label("\n".join(lines), color=INK, fontsize=8)
    bar.ax.tick_params(colors=INK, labelsize=8)


def recorded_grid(run: RunView, rounds: int) -> tuple[Grid, list[str]]:
    """Read the scenario that a run recorded, for :func:`chronofed.reports.figures.scenario.draw_grid`.

    Returns:
        The numbers and the names of the classes.

    Raises:
        RunError: If it was not recorded.
    """
    about = run.directory.scenario()
    if not about:
        msg = (
            f"{run.path} has no scenario.json; draw its scenario from the data: "
            f"chronofed scenario {run.path / 'spec.toml'} --plot FILE"
        )
        raise RunError(msg)
    if about.get("remote"):
        raise RunError(f"{run.path}: {UNKNOWN}")
    kept = evenly_spaced(len(about["shown"]), rounds)
    counts = np.zeros((len(about["held"]), len(kept), len(about["classes"])), dtype=np.int64)
    for client, cells in enumerate(about["held"]):
        for column, place in enumerate(kept):
            for kind, samples in cells[place][1] if cells[place] else ():
                counts[client, column, kind] = samples
    names = Names.recorded(about)
    shown = tuple(about["shown"][place] for place in kept)
    periods = tuple(_period(about["held"], place, names) for place in kept) if names.periods else ()
    return Grid(shown, tuple(map(names.client, range(len(counts)))), counts, periods), about[
        "classes"
    ]


def _period(held: Sequence[Sequence[Any]], place: int, names: Names) -> str:
    """Return the name of the period at a place of the recorded rounds; empty if nobody took part."""
    keys = {cells[place][0] for cells in held if cells[place]}
    return ", ".join(map(names.data_set, sorted(keys)))

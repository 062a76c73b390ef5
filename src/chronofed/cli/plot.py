"""The command ``chronofed plot``."""

from argparse import Namespace
from collections.abc import Callable

from chronofed.cli.output import emit_json, note
from chronofed.errors import SpecError
from chronofed.reports import figure
from chronofed.reports.balls import draw_grid
from chronofed.reports.document import MEASURES
from chronofed.reports.maps import draw_heatmap, draw_round_weights, recorded_grid
from chronofed.reports.plots import draw_curves
from chronofed.reports.view import Group, RunView, find_runs, groups

PANELS = 4  # runs side by side


def main(options: Namespace) -> int:
    """Draw runs for a paper."""
    figure.check(options.output, "drawing runs")
    found = groups([RunView.read(path) for path in find_runs(options.runs)])
    DRAW[options.kind](found, options)
    if options.json:
        emit_json({"figure": str(options.output), "experiments": [group.name for group in found]})
    else:
        note(f"figure: {options.output}")
    return 0


def _curves(found: list[Group], options: Namespace) -> None:
    known = {key: (title, unit) for key, title, unit in MEASURES}
    there = {key for group in found for run in group.runs for line in run.history for key in line}
    if options.measure not in there:
        listed = ", ".join(sorted(there - {"round"})) or "nothing"
        msg = f"--measure {options.measure}: not measured in these runs; measured: {listed}"
        raise SpecError(msg)
    title, unit = known.get(options.measure, (options.measure, ""))
    label, factor = (f"{title}, %", 100.0) if unit == "%" else (title, 1.0)
    draw_curves(
        {"": found}, options.measure, label, options.output, factor=factor, window=options.window
    )


def _information_loss(found: list[Group], options: Namespace) -> None:
    options.measure = "information_loss"
    with_loss = [g for g in found if any("last_information_loss" in r.summary for r in g.runs)]
    if not with_loss:
        msg = "no information loss was measured in these runs; set evaluate.past, e.g. to 3"
        raise SpecError(msg)
    _curves(with_loss, options)


def _first(found: list[Group]) -> list[RunView]:
    """One run of every experiment, as many as fit side by side."""
    if len(found) > PANELS:
        note(f"only the first {PANELS} of {len(found)} experiments fit side by side")
    return [group.runs[0] for group in found[:PANELS]]


def _heatmap(found: list[Group], options: Namespace) -> None:
    draw_heatmap(_first(found), options.output, options.show, options.round)


def _weights(found: list[Group], options: Namespace) -> None:
    remembering = [group for group in found if group.runs[0].weights()]
    draw_round_weights(_first(remembering or found), options.output)


def _scenario(found: list[Group], options: Namespace) -> None:
    grid, classes = recorded_grid(found[0].runs[0], options.rounds)
    draw_grid(grid, classes, options.output)


DRAW: dict[str, Callable[[list[Group], Namespace], None]] = {
    "curves": _curves,
    "heatmap": _heatmap,
    "weights": _weights,
    "information-loss": _information_loss,
    "scenario": _scenario,
}

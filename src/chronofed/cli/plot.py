"""The command ``chronofed plot``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_runs, check_counts
from chronofed.cli.output import emit_json, note
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from chronofed.reports.groups import Group
    from chronofed.reports.runs import RunView

GROUP = "results"
HELP = "draw runs for a paper"

# Runs side by side.
PANELS = 4


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("kind", choices=DRAW, help="kind of figure")
    add_runs(parser)
    text = "the figure (.pdf, .svg or .png)"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=text)
    text = "for curves: a key of metrics.jsonl (default test_accuracy, of a regression rmse)"
    parser.add_argument("--measure", metavar="KEY", help=text)
    text = "for curves: evaluations in the moving mean (default 1)"
    parser.add_argument("--window", type=int, default=1, metavar="N", help=text)
    text = "for a heatmap: accuracy lost, or accuracy (default lost)"
    parser.add_argument("--show", choices=("lost", "accuracy"), default="lost", help=text)
    text = "for a heatmap: round to show (default: the last)"
    parser.add_argument("--round", type=int, metavar="N", help=text)
    text = "for a scenario: rounds to show (default 20)"
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help=text)
    text = (
        "fill so many columns of a paper: 1 (3.4 inches wide) or 2 (7 inches); not for a scenario"
    )
    parser.add_argument("--columns", type=int, choices=(1, 2), help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Draw runs for a paper."""
    check_counts(options, "window", "rounds")
    from chronofed.reports.figures import canvas
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import read_runs

    canvas.check(options.output, "drawing runs")
    found = groups(read_runs(options.runs, every_file=True))
    DRAW[options.kind](found, options)
    if options.json:
        emit_json({"figure": str(options.output), "experiments": [group.name for group in found]})
    else:
        note(f"figure: {options.output}")
    return 0


def _curves(found: "list[Group]", options: Namespace) -> None:
    from chronofed.reports.figures.curves import draw_curves
    from chronofed.reports.groups import measures_of
    from chronofed.training.measure import headline_of

    recorded = {
        key for group in found for run in group.runs for line in run.history for key in line
    }
    options.measure = options.measure or headline_of(recorded)
    if options.measure not in recorded:
        listed = ", ".join(sorted(recorded - {"round"})) or "nothing"
        msg = f"--measure {options.measure}: not measured in these runs; measured: {listed}"
        raise SpecError(msg)
    known = {measure.key: measure for measure in measures_of(found)}
    measure = known.get(options.measure)
    label = ", ".join(filter(None, (measure.title, measure.symbol))) if measure else options.measure
    factor = measure.scale if measure else 1.0
    look = {"factor": factor, "window": options.window, "columns": options.columns}
    draw_curves({"": found}, options.measure, label, options.output, **look)


def _information_loss(found: "list[Group]", options: Namespace) -> None:
    options.measure = "information_loss"
    with_loss = [g for g in found if any("last_information_loss" in r.summary for r in g.runs)]
    if not with_loss:
        msg = "no information loss was measured in these runs; set evaluate.past, e.g. to 3"
        raise SpecError(msg)
    _curves(with_loss, options)


def _first(found: "list[Group]") -> "list[RunView]":
    """Return one run of every experiment, as many as fit side by side."""
    if len(found) > PANELS:
        note(f"only the first {PANELS} of {len(found)} experiments fit side by side")
    return [group.runs[0] for group in found[:PANELS]]


def _heatmap(found: "list[Group]", options: Namespace) -> None:
    from chronofed.reports.figures.maps import draw_heatmap

    draw_heatmap(_first(found), options.output, options.show, options.round, options.columns)


def _weights(found: "list[Group]", options: Namespace) -> None:
    from chronofed.reports.figures.maps import draw_round_weights

    remembering = [group for group in found if group.runs[0].record("round_weights")]
    draw_round_weights(_first(remembering or found), options.output, options.columns)


def _scenario(found: "list[Group]", options: Namespace) -> None:
    from chronofed.reports.figures.maps import recorded_grid
    from chronofed.reports.figures.scenario import draw_grid

    if options.columns:
        raise SpecError("--columns: a scenario is as wide as its rounds; choose them with --rounds")
    run = found[0].runs[0]
    grid, classes = recorded_grid(run, options.rounds)
    if len(grid.names) < (clients := run.directory.scenario()["clients"]):
        draw = f"chronofed scenario {run.path / 'spec.toml'} --plot FILE"
        note(f"only the first {len(grid.names)} of {clients} clients are recorded; all: {draw}")
    if len(found) > 1:
        note(f"only the scenario of the first of {len(found)} experiments, {found[0].name}")
    draw_grid(grid, classes, options.output)


DRAW: "dict[str, Callable[[list[Group], Namespace], None]]" = {
    "curves": _curves,
    "heatmap": _heatmap,
    "weights": _weights,
    "information-loss": _information_loss,
    "scenario": _scenario,
}

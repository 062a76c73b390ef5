"""The command ``chronofed compare``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_runs
from chronofed.cli.output import emit, emit_json, note, width

if TYPE_CHECKING:
    from chronofed.reports.runs import Group

GROUP = "results"
HELP = "compare runs in a table with small curves"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_runs(parser)
    text = "also write a page with curves"
    parser.add_argument("--html", type=Path, metavar="FILE", help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Compare runs in a table with small curves, and in a report if asked for."""
    from chronofed.reports.runs import RunView, find_runs, groups
    from chronofed.reports.terminal.comparison import comparison
    from chronofed.reports.terminal.sparklines import curves
    from chronofed.reports.web.page import write_report

    found = groups([RunView.read(path) for path in find_runs(options.runs)])
    if options.html:
        write_report(found, options.html, title="Comparison of runs")
        note(f"report: {options.html}")
    if options.json:
        emit_json([as_json(group) for group in found])
    else:
        emit(comparison(found, width=width()))
        drawn = curves(found, width())
        if drawn is not None:
            emit("test accuracy %, mean over runs, by round")
            emit(drawn)
    return 0


def as_json(group: "Group") -> dict[str, object]:
    """Return a group for a script: the numbers of every run, and means over runs."""
    keys = sorted({key for run in group.runs for key in run.summary})
    statistics = {key: group.mean_and_deviation(key) for key in keys}
    return {
        "experiment": group.name,
        "mean": {key: found[0] for key, found in statistics.items() if found},
        "deviation": {key: found[1] for key, found in statistics.items() if found},
        "runs": [
            {"path": str(run.path), "state": run.state, "seed": run.spec["seed"], **run.summary}
            for run in group.runs
        ],
    }

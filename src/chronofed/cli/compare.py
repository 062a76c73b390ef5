"""The command ``chronofed compare``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_runs
from chronofed.cli.output import emit, emit_json, note, width

if TYPE_CHECKING:
    from chronofed.reports.groups import Group

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
    from chronofed.reports.groups import groups, tasks_of
    from chronofed.reports.runs import read_runs
    from chronofed.reports.terminal.comparison import comparison
    from chronofed.reports.terminal.sparklines import curves
    from chronofed.reports.web.page import write_report
    from chronofed.training.measure import HEADLINES
    from chronofed.training.measures import BY_KEY

    found = groups(read_runs(options.runs, every_file=bool(options.html)))
    if options.html:
        write_report(found, options.html, title="Comparison of runs")
        note(f"report: {options.html}")
    if options.json:
        emit_json([as_json(group) for group in found])
    else:
        emit(comparison(found, width=width()))
        for measure in (BY_KEY[HEADLINES[task]] for task in tasks_of(found)):
            drawn = curves(found, width(), measure.key, measure.scale)
            if drawn is not None:
                emit(f"{measure.name} {measure.symbol}".strip() + ", mean over runs, by round")
                emit(drawn)
    return 0


def as_json(group: "Group") -> dict[str, object]:
    """Return a row for a script: the numbers of every run, and means over runs; one run has no deviation."""
    keys = sorted({key for run in group.runs for key in run.summary})
    found = {key: spread for key in keys if (spread := group.spread(key)) is not None}
    return {
        "experiment": group.name,
        "finished": group.finished,
        "seeds": group.seeds,
        "mean": {key: one.mean for key, one in found.items()},
        "deviation": {key: one.deviation for key, one in found.items()},
        "count": {key: one.count for key, one in found.items()},
        "runs": [
            {"path": str(run.path), "state": run.state, "seed": run.spec["seed"], **run.summary}
            for run in group.runs
        ],
        "copies": [str(run.path) for run in group.copies],
    }

"""The command ``chronofed compare``."""

from argparse import Namespace

from chronofed.cli.output import emit, emit_json, note, width
from chronofed.reports.html import write_report
from chronofed.reports.sparks import curves
from chronofed.reports.terminal import comparison
from chronofed.reports.view import Group, RunView, find_runs, groups


def main(options: Namespace) -> int:
    """Compare runs in a table with small curves, and in a report if asked for."""
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


def as_json(group: Group) -> dict[str, object]:
    """A group for a script: every run's own numbers, and means over runs."""
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

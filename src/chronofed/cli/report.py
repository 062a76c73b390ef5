"""The command ``chronofed report``."""

from argparse import Namespace

from chronofed.cli.output import emit_json, note
from chronofed.reports.html import write_report
from chronofed.reports.view import RunView, find_runs, groups


def main(options: Namespace) -> int:
    """Write one page about some runs, to send to a colleague."""
    paths = find_runs(options.runs)
    found = groups([RunView.read(path) for path in paths])
    write_report(found, options.output, options.title or "Comparison of runs")
    size = options.output.stat().st_size
    if options.json:
        about = {"report": str(options.output), "runs": len(paths), "bytes": size}
        emit_json({**about, "experiments": [group.name for group in found]})
    else:
        note(f"{len(paths)} runs; report: {options.output.resolve()} ({size / 1000:.0f} kB)")
    return 0

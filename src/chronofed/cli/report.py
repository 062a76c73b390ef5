"""The command ``chronofed report``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.options import add_json, add_runs
from chronofed.cli.output import emit_json, note

GROUP = "results"
HELP = "write a page about runs, to send to a colleague"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_runs(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default report.html)",
    )
    text = "heading of the page (default: Comparison of runs)"
    parser.add_argument("--title", metavar="TEXT", help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Write one page about some runs, to send to a colleague."""
    from chronofed.reports.groups import groups
    from chronofed.reports.notes import counted
    from chronofed.reports.runs import read_runs
    from chronofed.reports.web.page import report_title, write_report

    views = read_runs(options.runs, every_file=True)
    found = groups(views)
    write_report(found, options.output, options.title or report_title(found))
    size = options.output.stat().st_size
    if options.json:
        about = {"report": str(options.output), "runs": len(views), "bytes": size}
        emit_json({**about, "experiments": [group.name for group in found]})
    else:
        note(
            f"{counted(len(views), 'run')}; report: {options.output.resolve()} ({size / 1000:.0f} kB)"
        )
    return 0

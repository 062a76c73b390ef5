"""The command ``chronofed extend``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_engine, add_json, add_quiet, check_counts
from chronofed.cli.output import emit, emit_json, note, plain, width

if TYPE_CHECKING:
    from chronofed.runs.extend import Extended

GROUP = "experiments"
HELP = "go on from a finished run, with the periods that came since"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    text = "file with the newer rows, or with the whole table (default: the run's own file, which has grown)"
    parser.add_argument("--data", type=Path, metavar="FILE", help=text)
    text = "go on for so many more rounds, where the scenario has no periods"
    parser.add_argument("--rounds", type=int, metavar="N", help=text)
    for add in (add_engine, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Go on from a finished run; if there is nothing new, say so and succeed."""
    check_counts(options, "rounds")
    # A folder that is not a run is reported before torch is imported.
    from chronofed.runs import RunDirectory

    directory = RunDirectory.open(options.run)
    from chronofed.cli.progress import progress
    from chronofed.runs.extend import Request, extend

    # Elsewhere --data is a folder to search.
    folder = options.data if options.data and options.data.is_dir() else None
    file = None if folder else options.data
    request = Request(file, options.rounds, folder, options.engine, options.workers)
    with progress(options.quiet or options.json) as bars:
        done = extend(directory, request, bars.watch(options.run.name))
    return _show(directory.path, done, options)


def _show(path: Path, done: "Extended", options: Namespace) -> int:
    """Print what was new, and the result."""
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import RunView
    from chronofed.reports.terminal.comparison import comparison

    if options.json:
        new = {"new_rounds": done.rounds, "new_periods": list(done.periods)}
        emit_json({"run": str(path), **new, **done.summary})
        return 0
    if options.quiet:
        return 0
    note(f"{path}: {_news(done)}")
    if done.rounds or done.finished:
        emit(comparison(groups([RunView.read(path)]), f"run: {path}", width(), plain()))
    return 0


def _news(done: "Extended") -> str:
    before = "finished what had been stopped; " if done.finished else ""
    if not done.rounds:
        return f"{before}nothing new"
    names = ", ".join(done.periods[:3]) + (", ..." if len(done.periods) > 3 else "")
    return f"{before}{done.rounds} more rounds{f' for {names}' if names else ''}"

"""The command ``chronofed status``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json
from chronofed.cli.output import emit, emit_json

if TYPE_CHECKING:
    from chronofed.reports.status import Status

GROUP = "results"
HELP = "say what a run has seen, how it went lately, and what to do next"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    add_json(parser)


def run(options: Namespace) -> int:
    """Show the status of a run, and look for later periods in its data."""
    from chronofed.reports.status import read_status

    status = read_status(options.run)
    if status.view.state == "finished" and status.periods and not status.view.directory.remote:
        status = _with_news(status)
    if options.json:
        emit_json(status.as_json())
        return 0
    lines = list(status.lines())
    room = max(len(heading) for heading, _ in lines)
    for heading, text in lines:
        emit(f"{heading:{room}}  {text}")
    return 0


def _with_news(status: "Status") -> "Status":
    """Look for later periods in the data of a finished run."""
    from dataclasses import replace

    from chronofed.core.errors import ChronofedError
    from chronofed.runs.extend import news

    try:
        return replace(status, waiting=news(status.view.directory))
    except ChronofedError as error:
        return replace(status, obstacle=str(error))

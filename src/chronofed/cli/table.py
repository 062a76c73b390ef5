"""The command ``chronofed table``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.options import add_json, add_runs
from chronofed.cli.output import emit, emit_json, note, width

GROUP = "results"
HELP = "tabulate runs by what differs, over seeds, for a paper or a page"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_runs(parser)
    text = "write the table to a file: .md, .csv or .tex (default: the terminal)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "numbers to show, e.g. last,anytime,forgetting (default: all that were measured)"
    parser.add_argument("--measures", metavar="LIST", help=text)
    parser.add_argument("--title", default="Results", help="title of the table (default Results)")
    add_json(parser)


def run(options: Namespace) -> int:
    """Tabulate finished runs."""
    from chronofed.cli.compare import as_json
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import read_runs
    from chronofed.reports.user_table import check_format, user_table

    if options.output:
        check_format(options.output)
    keys = [key.strip() for key in options.measures.split(",")] if options.measures else []
    found = groups(read_runs(options.runs))
    table = user_table(found, keys)
    for group in found:
        if not group.finished:
            note(f"left out: {group.name}")
    if options.output:
        table.write(options.output, options.title)
        note(f"table: {options.output}")
    if options.json:
        emit_json([as_json(group) for group in table.groups])
    elif not options.output:
        fitting = table.fitting(width())
        emit(table.text(options.title, fitting).terminal())
        hidden = [column.key for column in table.shown[fitting:]]
        if hidden:
            note(
                f"{len(hidden)} more columns do not fit: {', '.join(hidden)}; see -o and --measures"
            )
    return 0

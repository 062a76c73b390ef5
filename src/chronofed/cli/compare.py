"""The command ``chronofed compare``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_runs
from chronofed.cli.output import emit, emit_json, note, plain, width

if TYPE_CHECKING:
    from chronofed.reports.groups import Group

GROUP = "results"
# Endings of tables, and how each is made.
TABLES = {".tex": "latex", ".csv": "csv", ".md": "markdown"}
HELP = "compare runs: a table, small curves, and what they show"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_runs(parser)
    text = "also write a page with curves"
    parser.add_argument("--html", type=Path, metavar="FILE", help=text)
    text = "also write the table of all numbers (.tex, .csv or .md)"
    parser.add_argument("--table", type=Path, metavar="FILE", help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Compare runs in a table with small curves, and say what they show."""
    _check(options.table)
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import read_runs
    from chronofed.reports.terminal.comparison import comparison
    from chronofed.reports.terminal.sentences import sentences
    from chronofed.reports.web.page import report_title, write_report

    found = groups(read_runs(options.runs, every_file=bool(options.html)))
    if options.html:
        write_report(found, options.html, report_title(found))
        note(f"report: {options.html}")
    if options.table:
        _write_table(found, options.table)
    if options.json:
        emit_json([as_json(group) for group in found])
    else:
        emit(comparison(found, width=width(), plain=plain()))
        _emit_curves(found)
        emit(sentences(found, plain()))
    return 0


def _emit_curves(found: "list[Group]") -> None:
    from chronofed.reports.groups import tasks_of
    from chronofed.reports.terminal.sparklines import curves, most_telling
    from chronofed.training.measure import HEADLINES
    from chronofed.training.measures import BY_KEY

    for measure in (BY_KEY[HEADLINES[task]] for task in tasks_of(found)):
        shown = most_telling(found, measure)
        drawn = curves(found, width(), measure.key, measure.scale, shown)
        if drawn is not None and plain():
            emit("Curves are drawn in a terminal with Unicode, or with --html.")
        elif drawn is not None:
            emit(f"{measure.name} {measure.symbol}".strip() + ", mean over runs, by round")
            emit(drawn)
            if len(shown) < len(found):
                which = "finished ones first, and the best; all of them: --html FILE"
                emit(f"{len(shown)} of {len(found)} experiments are drawn, {which}")


def _check(path: Path | None) -> None:
    """Refuse a table that cannot be written, before any work is done."""
    from chronofed.core.errors import SpecError

    if path is not None and path.suffix.lower() not in TABLES:
        raise SpecError(f"cannot write '{path}': use a file ending of {', '.join(TABLES)}")


def _write_table(found: "list[Group]", path: Path) -> None:
    from chronofed.core.atomic import write_atomic
    from chronofed.reports.results_table import results_table

    content = getattr(results_table(found), TABLES[path.suffix.lower()])()
    write_atomic(path, content.encode())
    note(f"table: {path}")


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

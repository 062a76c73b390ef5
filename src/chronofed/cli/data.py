"""The command ``chronofed data``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chronofed.cli.options import add_data, add_json, add_quiet
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import DataError, SpecError

if TYPE_CHECKING:
    from chronofed.data import download

GROUP = "settings and data"
HELP = "list, find or download data sets, or look at a table"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "list all, download one, print where one is, or look at a table of your own"
    parser.add_argument("action", choices=("list", "get", "where", "show"), help=text)
    text = "data set (for get and where), or file (for show)"
    parser.add_argument("name", nargs="?", metavar="NAME", help=text)
    for add in (add_data, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """List, find or download data sets."""
    from chronofed.data import registry

    action = {"list": _list, "get": _get, "where": _where, "show": _show}[options.action]
    if options.action == "show" and options.name is None:
        raise SpecError("data show: name a table, such as shops.csv")
    if options.action == "get" and options.name is None:
        msg = f"data get: name a data set; known: {', '.join(registry.CATALOGUE)}"
        raise SpecError(msg)
    return action(options)


def _list(options: Namespace) -> int:
    from rich.table import Table

    from chronofed.data import registry

    rows = [
        {
            "name": entry.name,
            "about": entry.title,
            "train": entry.train,
            "test": entry.test,
            "shape": list(entry.shape),
            "licence": entry.licence,
            "found": str(registry.locate(entry.name, options.data) or ""),
        }
        for entry in registry.CATALOGUE.values()
    ]
    if options.json:
        emit_json(rows)
        return 0
    table = Table("name", "about", "licence", "found", header_style="bold")
    for row in rows:
        found = row["found"] or f"no: chronofed data get {row['name']}"
        table.add_row(str(row["name"]), str(row["about"]), str(row["licence"]), str(found))
    emit(table)
    return 0


def _get(options: Namespace) -> int:
    from chronofed.data import download

    with _bars(options.quiet or options.json) as progress:
        path = download.get(options.name, options.data, progress)
    if options.json:
        emit_json({"name": options.name, "path": str(path)})
    else:
        note(f"{options.name} is in {path}")
    return 0


def _where(options: Namespace) -> int:
    """Print where a data set is, or the folders that are searched."""
    from chronofed.data import registry

    if options.name is None:
        found = [str(folder) for folder in registry.folders(options.data)]
    else:
        path = registry.locate(options.name, options.data)
        if path is None:
            entry = registry.find(options.name)
            msg = (
                f"{options.name} is not on this machine; online: chronofed data get {options.name}; "
                f"offline: {entry.offline}"
            )
            raise DataError(msg)
        found = [str(path)]
    if options.json:
        emit_json(found)
    else:
        emit("\n".join(found))
    return 0


def _show(options: Namespace) -> int:
    """Print what ``chronofed init`` finds in a table, and write nothing."""
    from chronofed.cli.init import as_json, show
    from chronofed.core.paths import expand
    from chronofed.data.proposal import Wishes, look_at

    findings = look_at(expand(options.name), Wishes())
    if options.json:
        emit_json(as_json(findings))
    else:
        show(findings)
    return 0


@contextmanager
def _bars(quiet: bool) -> "Iterator[download.Progress]":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:
        tasks = {}

        def move(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield move

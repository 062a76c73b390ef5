"""The command ``chronofed data``."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from chronofed.cli.output import emit, emit_json, note
from chronofed.errors import DataError, SpecError
from chronofed.tasks import download, library


def main(options: Namespace) -> int:
    """List, find or download data sets."""
    action = {"list": _list, "get": _get, "where": _where}[options.action]
    if options.action == "get" and options.name is None:
        msg = f"data get: which one? known are {', '.join(library.CATALOGUE)}"
        raise SpecError(msg)
    return action(options)


def _list(options: Namespace) -> int:
    rows = [
        {
            "name": entry.name,
            "about": entry.title,
            "train": entry.train,
            "test": entry.test,
            "shape": list(entry.shape),
            "licence": entry.licence,
            "found": str(library.locate(entry.name, options.data) or ""),
        }
        for entry in library.CATALOGUE.values()
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
    with _bars(options.quiet or options.json) as progress:
        path = download.get(options.name, options.data, progress)
    if options.json:
        emit_json({"name": options.name, "path": str(path)})
    else:
        note(f"{options.name} is in {path}")
    return 0


def _where(options: Namespace) -> int:
    """Print where a data set is, or the folders that are searched."""
    if options.name is None:
        found = [str(folder) for folder in library.folders(options.data)]
    else:
        path = library.locate(options.name, options.data)
        if path is None:
            entry = library.find(options.name)
            msg = (
                f"{options.name} is not here; online: chronofed data get {options.name}; "
                f"offline: {entry.offline}"
            )
            raise DataError(msg)
        found = [str(path)]
    if options.json:
        emit_json(found)
    else:
        emit("\n".join(found))
    return 0


@contextmanager
def _bars(quiet: bool) -> Iterator[download.Progress]:
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

"""The command ``chronofed client``."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import RunError, SpecError

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from chronofed.clients.store import Inspection

GROUP = "settings and data"
HELP = "inspect a client store, or forget some of its data"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "show what is stored, or delete some of it permanently"
    parser.add_argument("action", choices=("inspect", "forget"), help=text)
    text = "the client store"
    parser.add_argument("client_store", type=Path, metavar="FILE", help=text)
    text = "forget data from before this date, e.g. 2026-01-31 (UTC)"
    parser.add_argument("--before", metavar="DATE", help=text)
    text = "forget rows, by their ids in the id column"
    parser.add_argument("--rows", nargs="+", metavar="ID", help=text)
    text = "forget data sets, by the keys that inspect prints"
    parser.add_argument("--keys", nargs="+", type=int, metavar="KEY", help=text)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_json(parser)


def run(options: Namespace) -> int:
    """Inspect a client store, or forget some of its data."""
    chosen = [name for name in ("before", "rows", "keys") if getattr(options, name) is not None]
    if options.action == "inspect":
        if chosen or options.yes:
            msg = f"client inspect: --{(chosen or ['yes'])[0]} works with client forget only"
            raise SpecError(msg)
        return _inspect(options)
    if not chosen:
        raise SpecError("client forget: give --before DATE, --rows ID ... or --keys KEY ...")
    return _forget(options)


def _inspect(options: Namespace) -> int:
    from dataclasses import asdict

    from chronofed.clients.store import inspect

    seen = inspect(options.client_store)
    if options.json:
        emit_json(asdict(seen))
        return 0
    emit(_table(seen))
    emit(_summary(seen))
    return 0


def _table(seen: "Inspection") -> "Table":
    from rich.table import Table

    headings = ("key", "round", "size", "stored", "classes", "bytes", "first seen", "last seen")
    table = Table(*headings, "data from", "to", header_style="bold")
    for each in seen.data_sets:
        numbers = (each.key, each.round, each.size, each.samples, each.classes, each.bytes)
        dates = (each.first_seen, each.last_seen, each.oldest, each.newest)
        table.add_row(*map(str, numbers), *map(_date, dates))
    return table


def _summary(seen: "Inspection") -> str:
    answered = "never" if seen.order is None else f"{seen.order}, {_date(seen.answered)}"
    lines = [
        f"stored: {seen.samples} samples of {len(seen.data_sets)} data sets; file: {seen.bytes} bytes",
        f"last order answered: {answered} (reply: {seen.reply_bytes} bytes)",
        f"state of the backbone: {seen.state_bytes} bytes",
        f"permanently forgotten: {seen.forgotten_rows} rows"
        + (
            f", and all data before {_date(seen.forgotten_before)}" if seen.forgotten_before else ""
        ),
    ]
    return "\n".join(lines)


def _forget(options: Namespace) -> int:
    from dataclasses import asdict

    from chronofed.clients.store import ClientStore

    before = None if options.before is None else _parse_date(options.before)
    # ClientStore would create a missing file.
    if not options.client_store.is_file():
        raise RunError(f"{options.client_store}: no such file")
    if not (options.yes or _confirmed(options)):
        note("nothing was forgotten")
        return 0
    with ClientStore(options.client_store) as client_store:
        removed = client_store.forget(before, options.rows, options.keys)
    if options.json:
        emit_json(asdict(removed))
    else:
        emit(f"removed {removed.samples} samples; nothing is left of {removed.data_sets} data sets")
    return 0


def _confirmed(options: Namespace) -> bool:
    if not sys.stdin.isatty():
        raise SpecError("client forget: it cannot be undone; confirm with --yes")
    sys.stderr.write(f"Permanently forget these data in {options.client_store}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _parse_date(text: str) -> "datetime":
    from datetime import datetime

    try:
        return datetime.fromisoformat(text)
    except ValueError:
        msg = (
            f"client forget --before: {text!r} is not a date such as 2026-01-31 or 2026-01-31T12:00"
        )
        raise SpecError(msg) from None


def _date(when: "datetime | None") -> str:
    return "" if when is None else f"{when:%Y-%m-%d %H:%M}"

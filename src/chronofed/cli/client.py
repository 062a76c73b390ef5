"""The command ``chronofed client``."""

import sys
from argparse import Namespace
from dataclasses import asdict
from datetime import datetime

from rich.table import Table

from chronofed.cli.output import emit, emit_json, note
from chronofed.errors import RunError, SpecError
from chronofed.vault import Inspection, Vault, inspect


def main(options: Namespace) -> int:
    """Show what a client keeps, or forget some of it."""
    chosen = [name for name in ("before", "rows", "keys") if getattr(options, name) is not None]
    if options.action == "inspect":
        if chosen or options.yes:
            msg = f"client inspect: --{(chosen or ['yes'])[0]} is for client forget"
            raise SpecError(msg)
        return _inspect(options)
    if not chosen:
        raise SpecError("client forget: what? say --before DATE, --rows ID ... or --keys KEY ...")
    return _forget(options)


def _inspect(options: Namespace) -> int:
    seen = inspect(options.vault)
    if options.json:
        emit_json(asdict(seen))
        return 0
    emit(_table(seen))
    emit(_summary(seen))
    return 0


def _table(seen: Inspection) -> Table:
    headings = ("key", "round", "size", "kept", "classes", "bytes", "first seen", "last seen")
    table = Table(*headings, "data from", "to", header_style="bold")
    for each in seen.data_sets:
        numbers = (each.key, each.round, each.size, each.samples, each.classes, each.bytes)
        dates = (each.first_seen, each.last_seen, each.oldest, each.newest)
        table.add_row(*map(str, numbers), *map(_date, dates))
    return table


def _summary(seen: Inspection) -> str:
    answered = "never" if seen.order is None else f"{seen.order}, {_date(seen.answered)}"
    lines = [
        f"kept: {seen.samples} samples of {len(seen.data_sets)} data sets; file: {seen.bytes} bytes",
        f"last order answered: {answered} (reply: {seen.reply_bytes} bytes)",
        f"state of the backbone: {seen.state_bytes} bytes",
        f"forgotten for good: {seen.forgotten_rows} rows"
        + (f", and all before {_date(seen.forgotten_before)}" if seen.forgotten_before else ""),
    ]
    return "\n".join(lines)


def _forget(options: Namespace) -> int:
    before = None if options.before is None else _parsed(options.before)
    if not options.vault.is_file():  # a vault would be made
        raise RunError(f"{options.vault}: no such file")
    if not (options.yes or _agreed(options)):
        note("nothing was forgotten")
        return 0
    with Vault(options.vault) as vault:
        removed = vault.forget(before, options.rows, options.keys)
    if options.json:
        emit_json(asdict(removed))
    else:
        emit(f"removed {removed.samples} samples; nothing is left of {removed.data_sets} data sets")
    return 0


def _agreed(options: Namespace) -> bool:
    if not sys.stdin.isatty():
        raise SpecError("client forget: it cannot be undone, and there is nobody to ask; say --yes")
    sys.stderr.write(f"Forget this for good, in {options.vault}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        msg = (
            f"client forget --before: {text!r} is not a date such as 2026-01-31 or 2026-01-31T12:00"
        )
        raise SpecError(msg) from None


def _date(when: datetime | None) -> str:
    return "" if when is None else f"{when:%Y-%m-%d %H:%M}"

"""The command ``chronofed init``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronofed.cli.options import add_json
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from chronofed.data.proposal import Findings

GROUP = "experiments"
HELP = "look at a table and write a spec for it"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_table(parser)
    text = "spec to write (default: the name of the table, with .toml, in this folder)"
    parser.add_argument("-o", "--output", type=Path, metavar="SPEC.toml", help=text)
    parser.add_argument("--force", action="store_true", help="replace a spec that exists")
    add_json(parser)


def add_table(parser: ArgumentParser) -> None:
    """Add the table and what is known about it."""
    text = "CSV, TSV, Parquet or npz file, folder of Parquet files, or database"
    parser.add_argument("table", type=Path, metavar="TABLE", help=text)
    for name, what in {
        "client": "column with the client of a row; '' for one client",
        "time": "column with the time of a row; '' for the order of rows",
        "target": "column to predict",
        "period": "rule that splits time, e.g. month, '10 days', '50 rows'",
    }.items():
        parser.add_argument(f"--{name}", metavar="NAME" if name != "period" else "RULE", help=what)
    text = "for a database: the SELECT that returns the rows"
    parser.add_argument("--query", default="", metavar="SQL", help=text)


def run(options: Namespace) -> int:
    """Look at a table, say what was found, and write a spec."""
    output = options.output or Path(f"{options.table.stem or 'table'}.toml")
    if output.is_dir():
        raise SpecError(f"{output}: is a folder; name a file")
    if output.exists() and not options.force:
        raise SpecError(f"{output}: exists already; choose another name with -o, or --force")
    from chronofed.core.atomic import write_atomic
    from chronofed.data.proposal import write_spec

    findings = look(options)
    write_atomic(output, write_spec(findings, output).encode())
    if options.json:
        emit_json({"spec": str(output), **as_json(findings)})
        return 0
    show(findings)
    note(f"wrote {output}; next: chronofed scenario {output}, chronofed run {output}")
    return 0


def look(options: Namespace) -> "Findings":
    """Look at the table that is named.

    Raises:
        SpecError: If an option is wrong.
        DataError: If the table is.
    """
    from chronofed.core.paths import expand
    from chronofed.data.proposal import Wishes, look_at
    from chronofed.data.proposal.findings import check_period

    try:
        check_period(options.period)
        wishes = Wishes(options.client, options.time, options.target, options.period, options.query)
        return look_at(expand(str(options.table)), wishes)
    except ValueError as error:
        raise SpecError(f"init: {error}") from error


def show(findings: "Findings") -> None:
    """Print what was found, a line for each thing."""
    from rich.text import Text

    for line in _lines(findings):
        emit(Text(line))
    for line in findings.data.notes:
        note(line)


def as_json(findings: "Findings") -> dict[str, Any]:
    """Return what was found for a script."""
    table, origin = findings.table, findings.data.origin
    assert origin is not None
    names = ("path", "client", "time", "target", "period", "features", "date_format")
    return {
        "settings": {name: getattr(table, name) for name in names},
        "reasons": findings.reasons,
        "task": findings.task,
        "rows": findings.rows,
        "clients": list(origin.clients),
        "periods": list(origin.periods),
        "classes": dict(findings.profiles[table.target].shares),
        "missing": {name: each.gaps for name, each in findings.profiles.items() if each.gaps},
        "left_out": findings.left_out,
        "notes": list(findings.data.notes),
    }


def _lines(findings: "Findings") -> Iterator[str]:
    table, why, origin = findings.table, findings.reasons, findings.data.origin
    assert origin is not None
    yield f"{Path(table.path).name}: {findings.rows} rows, {len(findings.profiles)} columns"
    yield f"client    {table.client or 'none'} ({why['client']}): {_count(origin.clients, 'client')}"
    span = f"{origin.periods[0]} to {origin.periods[-1]}"
    yield f"time      {table.time or 'none'} ({why['time']}): {span}"
    if table.date_format:
        yield f"dates     {table.date_format} ({why['date_format']})"
    target = findings.profiles[table.target]
    shares = ", ".join(f"{name} {share:.1%}" for name, share in target.shares[:5])
    more = f", {len(target.shares) - 5} more" if len(target.shares) > 5 else ""
    classes = f", {len(target.shares)} classes: {shares}{more}" if table.classes else ""
    yield f"target    {table.target} ({why['target']}): {findings.task}{classes}"
    yield f"period    {table.period} ({why['period']})"
    about = ", ".join(f"{name} ({findings.profiles[name].about})" for name in table.features[:8])
    rest = f", {len(table.features) - 8} more" if len(table.features) > 8 else ""
    yield f"features  {len(table.features)}: {about}{rest}"
    for name, reason in findings.left_out.items():
        yield f"left out  {name}: {reason}"


def _count(names: tuple[str, ...], what: str) -> str:
    return f"1 {what}" if len(names) == 1 else f"{len(names)} {what}s"

"""The command ``chronofed profile``."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from chronofed.cli.options import add_data, add_json, add_spec, check_counts, check_spec
from chronofed.cli.output import emit, emit_json

if TYPE_CHECKING:
    from rich.table import Table

    from chronofed.studies.profiling import Profile

GROUP = "this machine"
HELP = "show how the time of a round divides into phases"

BAR_CHARACTERS = 30


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser)
    text = "rounds to time (default 10)"
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help=text)
    add_data(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Show how the time of a round divides into phases."""
    check_counts(options, "rounds")
    check_spec(options.spec)
    from chronofed.runs.built import build
    from chronofed.runs.load_spec import load
    from chronofed.studies.profiling import profile

    built = build(load(options.spec, options.set, options.data), options.data)
    found = profile(built, options.rounds)
    if options.json:
        emit_json({"rounds": found.rounds, "round": found.round, "after": found.after})
    else:
        emit(_table(found, built.experiment.name))
    return 0


def _table(found: "Profile", name: str) -> "Table":
    from rich.table import Table

    total = sum(found.round.values())
    table = Table(
        title=f"{name}: one round on one core, mean of {found.rounds}",
        title_justify="left",
        header_style="bold",
    )
    table.add_column("phase")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for phase, seconds in found.round.items():
        share = seconds / total if total else 0.0
        table.add_row(
            phase, f"{1e3 * seconds:,.2f}", f"{share:.1%}", "█" * round(BAR_CHARACTERS * share)
        )
    table.add_section()
    table.add_row("round", f"{1e3 * total:,.2f}", "100.0%")
    for phase, seconds in found.after.items():
        each = "an evaluation" if phase == "evaluate" else "a checkpoint"
        table.add_row(each, f"{1e3 * seconds:,.2f}")
    return table

"""The command ``chronofed profile``."""

from argparse import Namespace

from rich.table import Table

from chronofed.cli.output import emit, emit_json
from chronofed.errors import SpecError
from chronofed.experiments import spec
from chronofed.experiments.profiling import Profile, profile

BAR = 30  # characters


def main(options: Namespace) -> int:
    """Show where the time of a round goes."""
    if options.rounds < 1:
        raise SpecError(f"--rounds: expected a number >= 1, not {options.rounds}")
    experiment = spec.load(options.spec, options.set, options.data)
    found = profile(experiment, options.rounds, options.data)
    if options.json:
        emit_json({"rounds": found.rounds, "round": found.round, "after": found.after})
    else:
        emit(_table(found, experiment.name))
    return 0


def _table(found: Profile, name: str) -> Table:
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
        table.add_row(phase, f"{1e3 * seconds:,.2f}", f"{share:.1%}", "█" * round(BAR * share))
    table.add_section()
    table.add_row("round", f"{1e3 * total:,.2f}", "100.0%")
    for phase, seconds in found.after.items():
        each = "an evaluation" if phase == "evaluate" else "a checkpoint"
        table.add_row(each, f"{1e3 * seconds:,.2f}")
    return table

"""The command ``chronofed weights``."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_plot, check_counts, check_numbers
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from chronofed.methods.optimal_weights.quadratic_program import Weights

GROUP = "theory"
HELP = "show optimal round weights"


MOST_ROUNDS = 5000
# Characters of all bars.
_WIDTH = 40


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "rounds to weigh, with the present (default 4)"
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help=text)
    for name, default, about in (
        ("time-drift-sq", 1.0, "time drift, squared: D^2"),
        ("information-loss-sq", 0.5, "information loss, squared: R^2"),
        ("correlation", 0.0, "correlation of time drifts one round apart"),
        ("client-drift-sq", 0.0, "client drift, squared: G^2; for clients that never come back"),
    ):
        text = f"{about} (default {default:g})"
        parser.add_argument(f"--{name}", type=float, default=default, metavar="X", help=text)
    text = "clients that are averaged (default 1)"
    parser.add_argument("--cohort", type=int, default=1, metavar="N", help=text)
    text = "allow negative weights, as the paper does"
    parser.add_argument("--signed", action="store_true", help=text)
    add_plot(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Show optimal round weights as a table with bars; draw them if asked for."""
    from chronofed.reports.figures import canvas
    from chronofed.reports.figures.theory import draw_weights

    if options.plot:
        canvas.check(options.plot)
    found, objective = solve(options, options.signed)
    values = found.tolist()
    if options.plot:
        draw_weights(values, options.plot, _title(options))
        note(f"figure: {options.plot}")
    if options.json:
        emit_json({"weights": values, "objective": objective})
    else:
        emit(_table(values, _title(options)))
        emit(f"objective p'Qp = {objective:.6g}")
        if not options.signed and solve(options, signed=True)[0].min() < 0:
            note("without the bound at 0 some weights are negative, as in the paper: use --signed")
    return 0


def solve(options: Namespace, signed: bool) -> "tuple[Weights, float]":
    """Compute the weights and their objective.

    Raises:
        SpecError: If an option is out of range.
    """
    _check(options)
    time = options.time_drift_sq / options.cohort
    clients = options.client_drift_sq / options.cohort
    settings = (options.rounds, options.information_loss_sq, options.correlation)
    try:
        return _solve(*settings, time, clients, not signed)
    except (ValueError, ArithmeticError) as error:
        raise SpecError(f"--{error}") from None


def _solve(
    rounds: int, loss: float, correlation: float, time: float, clients: float, nonnegative: bool
) -> "tuple[Weights, float]":
    """Add independent client drifts to the diagonal where time drifts are correlated."""
    import numpy as np

    from chronofed.methods.optimal_weights import closed_form
    from chronofed.methods.optimal_weights.quadratic_program import minimise

    if clients == 0 or correlation == 0:
        return closed_form.solve(rounds, time + clients, loss, correlation, nonnegative)
    matrix = closed_form.covariance(rounds, time, loss, correlation) + clients * np.eye(rounds)
    return minimise(matrix, nonnegative)


def _check(options: Namespace) -> None:
    if not 1 <= options.rounds <= MOST_ROUNDS:
        raise SpecError(
            f"--rounds: expected a number from 1 to {MOST_ROUNDS}, not {options.rounds}"
        )
    check_counts(options, "cohort")
    squares = ("time_drift_sq", "information_loss_sq", "client_drift_sq")
    for name in squares:
        value = getattr(options, name)
        if not 0 <= value < math.inf:
            option = name.replace("_", "-")
            raise SpecError(f"--{option}: expected a finite number >= 0, not {value}")
    check_numbers(options, *squares, "correlation")


def _title(options: Namespace) -> str:
    """Name the settings in the paper's symbols; leave out those that have no effect."""
    parts = {"G²": options.client_drift_sq, "N": options.cohort - 1 and options.cohort}
    more = [f"{symbol} = {value:g}" for symbol, value in parts.items() if value]
    shown = [
        f"D² = {options.time_drift_sq:g}",
        f"R² = {options.information_loss_sq:g}",
        f"α = {options.correlation:g}",
    ]
    return ", ".join([*shown, *more])


def _table(values: Sequence[float], title: str) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("round", "weight"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for number, (value, bar) in enumerate(zip(values, bars(values), strict=True), start=1):
        name = f"{number} (present)" if number == len(values) else str(number)
        table.add_row(name, f"{value:.4f}", Text(bar, style="red" if value < 0 else ""))
    return table


def bars(values: Sequence[float], width: int = _WIDTH) -> list[str]:
    """Draw a bar for each value; negative ones are light and end at the line where all others begin.

    >>> for bar in bars([0.5, -0.25], width=12):
    ...     print(bar)
        │████████
    ░░░░│
    """
    low, high = min(0.0, *values), max(0.0, *values)
    unit = width / ((high - low) or 1.0)
    left = round(-low * unit)
    axis = "│" if left else ""
    return [
        f"{'░' * round(max(0.0, -value) * unit):>{left}}{axis}{_blocks(max(0.0, value) * unit)}"
        for value in values
    ]


def _blocks(length: float) -> str:
    """Draw a bar to the eighth of a character."""
    eighths = round(8 * length)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()

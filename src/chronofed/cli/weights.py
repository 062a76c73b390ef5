"""The command ``chronofed weights``."""

import math
from argparse import Namespace
from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from chronofed import weights
from chronofed.cli.output import emit, emit_json, note
from chronofed.errors import SpecError
from chronofed.reports import figure
from chronofed.reports.curves import draw_weights

MOST = 5000  # rounds
_WIDTH = 40  # characters for all bars


def main(options: Namespace) -> int:
    """Show optimal round weights as a table with bars; draw them if asked for."""
    if options.plot:
        figure.check(options.plot)
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
            note("without the bound at 0 some weights are negative, as in the paper: --signed")
    return 0


def solve(options: Namespace, signed: bool) -> tuple[weights.Weights, float]:
    """The weights and their objective.

    Raises:
        SpecError: If an option is out of range.
    """
    _check(options)
    time, clients = options.drift / options.cohort, options.client_drift / options.cohort
    settings = (options.rounds, options.loss, options.correlation)
    try:
        return _solve(*settings, time, clients, not signed)
    except (ValueError, ArithmeticError) as error:
        raise SpecError(f"--{error}") from None


def _solve(
    rounds: int, loss: float, correlation: float, time: float, clients: float, nonnegative: bool
) -> tuple[weights.Weights, float]:
    """Client drifts are independent: where time drifts are not, they blur the correlation."""
    if clients == 0 or correlation == 0:
        return weights.optimal(rounds, time + clients, loss, correlation, nonnegative)
    matrix = weights.covariance(rounds, time, loss, correlation) + clients * np.eye(rounds)
    return weights.minimise(matrix, nonnegative)


def _check(options: Namespace) -> None:
    if not 1 <= options.rounds <= MOST:
        raise SpecError(f"--rounds: expected a number from 1 to {MOST}, not {options.rounds}")
    if options.cohort < 1:
        raise SpecError(f"--cohort: expected a number >= 1, not {options.cohort}")
    for name in ("drift", "loss", "client_drift"):
        value = getattr(options, name)
        if not 0 <= value < math.inf:
            option = name.replace("_", "-")
            raise SpecError(f"--{option}: expected a finite number >= 0, not {value}")


def _title(options: Namespace) -> str:
    """The settings in the paper's symbols; those that do nothing are left out."""
    parts = {"G²": options.client_drift, "N": options.cohort - 1 and options.cohort}
    more = [f"{symbol} = {value:g}" for symbol, value in parts.items() if value]
    shown = [f"D² = {options.drift:g}", f"R² = {options.loss:g}", f"α = {options.correlation:g}"]
    return ", ".join([*shown, *more])


def _table(values: Sequence[float], title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("round", "weight"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for number, (value, bar) in enumerate(zip(values, bars(values), strict=True), start=1):
        name = f"{number} (present)" if number == len(values) else str(number)
        table.add_row(name, f"{value:.4f}", Text(bar, style="red" if value < 0 else ""))
    return table


def bars(values: Sequence[float], width: int = _WIDTH) -> list[str]:
    """A bar for each value; those below 0 are light and lie left of a line that all bars begin at.

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
    """A bar to the eighth of a character."""
    eighths = round(8 * length)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()

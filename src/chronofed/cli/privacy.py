"""The command ``chronofed privacy``."""

import math
from argparse import ArgumentParser, Namespace

from chronofed.cli.options import add_json, check_counts, check_numbers
from chronofed.cli.output import emit, emit_json
from chronofed.core.bounds import LARGEST_COUNT
from chronofed.core.errors import SpecError

GROUP = "theory"
HELP = "show the privacy loss of rounds with noise"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "noise multiplier of the method"
    parser.add_argument("--noise", type=float, required=True, metavar="Z", help=text)
    text = "rounds that a client takes part in"
    parser.add_argument("--rounds", type=int, required=True, metavar="T", help=text)
    text = "probability that the guarantee fails (default 1e-5)"
    parser.add_argument("--delta", type=float, default=1e-5, metavar="D", help=text)
    text = "probability that a client takes part, independently and secretly (default 1)"
    parser.add_argument("--sampling", type=float, default=1.0, metavar="Q", help=text)
    text = "vectors that a client sends in a round: 2 for scaffold, mime, mimelite and fednova (default 1)"
    parser.add_argument("--releases", type=int, default=1, metavar="K", help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Show epsilon after some rounds of a private backbone."""
    found = solve(options)
    if options.json:
        # JSON has no infinity.
        finite = found if math.isfinite(found) else None
        emit_json({"epsilon": finite, "delta": options.delta, "rounds": options.rounds})
    else:
        emit(f"epsilon = {found:.4g} at delta = {options.delta:g} after {options.rounds} rounds")
    return 0


def solve(options: Namespace) -> float:
    """Compute the privacy loss.

    Raises:
        SpecError: If an option is out of range.
    """
    from chronofed.methods.accountant import combined, epsilon

    check_counts(options, "releases")
    check_numbers(options, "noise", "delta", "sampling")
    if options.rounds > LARGEST_COUNT:
        raise SpecError(f"--rounds: expected at most {LARGEST_COUNT}, not {options.rounds}")
    noise = combined(options.noise, options.releases)
    try:
        return epsilon(noise, options.rounds, options.delta, options.sampling)
    except ValueError as error:
        raise SpecError(f"--{error}") from None

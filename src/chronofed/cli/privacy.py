"""The command ``chronofed privacy``."""

import math
from argparse import Namespace

from chronofed.cli.output import emit, emit_json
from chronofed.errors import SpecError
from chronofed.privacy import combined, epsilon


def main(options: Namespace) -> int:
    """Show epsilon after some rounds of a private backbone."""
    found = solve(options)
    if options.json:
        finite = found if math.isfinite(found) else None  # JSON knows no infinity
        emit_json({"epsilon": finite, "delta": options.delta, "rounds": options.rounds})
    else:
        emit(f"epsilon = {found:.4g} at delta = {options.delta:g} after {options.rounds} rounds")
    return 0


def solve(options: Namespace) -> float:
    """The privacy loss.

    Raises:
        SpecError: If an option is out of range.
    """
    if options.releases < 1:
        raise SpecError(f"--releases: expected a number >= 1, not {options.releases}")
    noise = combined(options.noise, options.releases)
    try:
        return epsilon(noise, options.rounds, options.delta, options.sampling)
    except ValueError as error:
        raise SpecError(f"--{error}") from None

r"""The paper's constants, rates and bounds as pure functions of numbers or arrays.

All arguments broadcast. Arguments that end in ``_sq`` are squares: ``time_drift_sq`` is :math:`D^2`. The
formulas are the paper's, with the corrections of the errata page. They are the terms inside :math:`O(\cdot)`:
use them to compare settings and algorithms, not to predict a number of rounds.
"""

from chronofed.theory.constants import Constants, bias, constants, variance
from chronofed.theory.rates import ALGORITHMS, CASES, Rounds, rounds, safe_lr

__all__ = [
    "ALGORITHMS",
    "CASES",
    "Constants",
    "Rounds",
    "bias",
    "constants",
    "rounds",
    "safe_lr",
    "variance",
]

r"""The paper's constants, rates and bounds as pure functions of numbers or arrays.

All arguments broadcast. Squares are arguments, as everywhere: ``drift`` is :math:`D^2`. Formulas are the
paper's with the corrections of the errata page. They are what stands inside :math:`O(\cdot)`: they compare
settings and algorithms, and predict no number of rounds.
"""

from chronofed.theory.drifts import Constants, bias, constants, variance
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

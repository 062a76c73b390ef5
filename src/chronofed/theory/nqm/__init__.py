"""The noisy quadratic model: the paper's theory on a fully known problem.

:func:`simulate` runs thousands of runs at once by an exact reduction, :func:`expected` computes their exact
second moments, and :func:`literal` runs one of them through the real backbones, memories and weights.
"""

from chronofed.theory.nqm.literal import literal
from chronofed.theory.nqm.model import ALGORITHMS, PAPER, PRESETS, Algorithm, Model, settings
from chronofed.theory.nqm.moments import expected
from chronofed.theory.nqm.reduction import simulate
from chronofed.theory.nqm.sweep import Cell, sweep

__all__ = [
    "ALGORITHMS",
    "PAPER",
    "PRESETS",
    "Algorithm",
    "Cell",
    "Model",
    "expected",
    "literal",
    "settings",
    "simulate",
    "sweep",
]

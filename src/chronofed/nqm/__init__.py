"""The noisy quadratic model: the paper's theory on a problem of which everything is known.

:func:`simulate` runs very many runs at once by an exact reduction, :func:`expected` gives their exact second
moments, and :func:`literal` runs one through the real backbones, memories and weights.
"""

from chronofed.nqm.literal import literal
from chronofed.nqm.model import ALGORITHMS, PAPER, PRESETS, Algorithm, Model, settings
from chronofed.nqm.moments import expected
from chronofed.nqm.reduction import simulate
from chronofed.nqm.sweep import Cell, sweep

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

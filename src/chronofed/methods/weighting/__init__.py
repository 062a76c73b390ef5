"""Round weights of the present and of each remembered round.

Weights that minimise the paper's variance bound are also plain functions: :func:`optimal` for drifts whose
correlation decays, :func:`closed_form` for the paper's own weights, which may be negative, and
:func:`minimise` for any covariance.
"""

from chronofed.methods.optimal_weights.closed_form import closed_form, covariance
from chronofed.methods.optimal_weights.quadratic_program import minimise
from chronofed.methods.weighting.adaptive import Adaptive
from chronofed.methods.weighting.base import RoundWeights, Timeline, Weights
from chronofed.methods.weighting.correlated import Correlated, Covariance
from chronofed.methods.weighting.optimal import Bounded, Optimal, optimal
from chronofed.methods.weighting.simple import Fixed, Merged, Uniform

__all__ = [
    "Adaptive",
    "Bounded",
    "Correlated",
    "Covariance",
    "Fixed",
    "Merged",
    "Optimal",
    "RoundWeights",
    "Timeline",
    "Uniform",
    "Weights",
    "closed_form",
    "covariance",
    "minimise",
    "optimal",
]

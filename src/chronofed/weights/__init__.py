"""Round weights: how much the present and each remembered round count.

Those that minimise the paper's variance bound are also here as plain functions: :func:`optimal` for drifts
whose correlation fades, :func:`closed_form` for those that the paper gives, which may be negative, and
:func:`minimise` for any covariance.
"""

from chronofed.weights.adaptive import Adaptive
from chronofed.weights.base import RoundWeights, Timeline, Weights
from chronofed.weights.closed import closed_form, covariance
from chronofed.weights.correlated import Correlated, Covariance
from chronofed.weights.optimal import Bounded, Optimal, optimal
from chronofed.weights.quadratic import minimise
from chronofed.weights.simple import Fixed, Merged, Uniform

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

"""Round weights: how much the present and each remembered round count."""

from chronofed.weights.base import RoundWeights, Timeline, Weights
from chronofed.weights.optimal import Optimal
from chronofed.weights.simple import Fixed, Merged, Uniform

__all__ = ["Fixed", "Merged", "Optimal", "RoundWeights", "Timeline", "Uniform", "Weights"]

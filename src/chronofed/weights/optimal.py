"""Weights that minimise the paper's variance bound."""

import numpy as np

from chronofed.config import NonNegative
from chronofed.weights.base import RoundWeights, Timeline, Weights


class Optimal(RoundWeights, tag="optimal"):
    r"""The weights that minimise the variance bound for independent drifts (``Convergence rate of CFL``).

    .. math::
        p_\tau = \frac{D^2}{t D^2 + (t-1) R^2} \;(\tau < t), \qquad
        p_t = \frac{(t-1) R^2 + D^2}{t D^2 + (t-1) R^2}.

    ``loss -> inf`` gives FedAvg, ``loss = 0`` gives :class:`Uniform`; where both are 0 the present
    counts alone.

    Attributes:
        drift: Time drift :math:`D^2` (a square, as in the paper's table of weights).
        loss: Squared information loss :math:`R^2` of the memory.

    >>> Optimal(drift=2.0, loss=1.0)(Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)).round(4)
    array([0.1818, 0.1818, 0.1818, 0.4545])
    """

    drift: NonNegative
    loss: NonNegative

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights of the theorem."""
        past = len(timeline.rounds)
        total = (past + 1) * self.drift + past * self.loss
        if total == 0:
            return np.array([0.0] * past + [1.0])
        weights = np.full(past + 1, self.drift / total)
        weights[-1] = (past * self.loss + self.drift) / total
        return weights

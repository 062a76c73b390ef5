r"""Round weights :math:`p_{\tau,i}`: how much the present and each remembered round count.

The objective of client *i* in round *t* is (``Approximate CFL Formulation``)

.. math:: p_{t,i} f_{t,i}(w) + \sum_{\tau<t} p_{\tau,i} \tilde f_{\tau,i}(w), \qquad \sum_\tau p_{\tau,i} = 1.

The number *t* in the paper's formulas is taken as the number of past objectives that the client can really
recall, plus one.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chronofed.config import Kind, NonNegative

Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """What there is to weigh: the rounds recalled, oldest first, and the present.

    Attributes:
        rounds: When each recalled data set was seen.
        sizes: How many samples stand for it.
        now: The current round.
        size: Number of samples of the present data set.
    """

    rounds: tuple[int, ...]
    sizes: tuple[int, ...]
    now: int
    size: int


class RoundWeights(Kind):
    """Splits a unit of weight between the present and the rounds recalled."""

    @abstractmethod
    def __call__(self, timeline: Timeline) -> Weights:
        """Weights ``(t,)`` that sum to one, oldest round first, the present last."""


class Merged(RoundWeights, tag="merged"):
    r"""Every sample counts the same: the plain union of present and past, the paper's practice.

    .. math:: p_\tau = n_\tau / \sum_s n_s

    >>> Merged()(Timeline(rounds=(0,), sizes=(100,), now=1, size=300))
    array([0.25, 0.75])
    """

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights in proportion to the number of samples."""
        sizes = np.array([*timeline.sizes, timeline.size], dtype=np.float64)
        shares: Weights = sizes / sizes.sum()
        return shares


class Uniform(RoundWeights, tag="uniform"):
    """Every remembered round counts as much as the present one.

    >>> Uniform()(Timeline(rounds=(0, 1, 2), sizes=(9, 9, 9), now=3, size=50))
    array([0.25, 0.25, 0.25, 0.25])
    """

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights ``1/t``."""
        t = len(timeline.rounds) + 1
        return np.full(t, 1 / t)


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

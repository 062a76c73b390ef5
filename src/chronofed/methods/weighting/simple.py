"""Weights that need no constants of the data."""

import numpy as np

from chronofed.core.config import Fraction
from chronofed.methods.weighting.base import RoundWeights, Timeline, Weights


class Merged(RoundWeights, tag="merged"):
    r"""Equal weight for every sample: the plain union of present and past, the paper's practice.

    .. math:: p_\tau = n_\tau / \sum_s n_s

    >>> Merged()(Timeline(rounds=(0,), sizes=(100,), now=1, size=300))
    array([0.25, 0.75])
    """

    def __call__(self, timeline: Timeline) -> Weights:
        """Return weights in proportion to the number of samples."""
        sizes = np.array([*timeline.sizes, timeline.size], dtype=np.float64)
        shares: Weights = sizes / sizes.sum()
        return shares


class Uniform(RoundWeights, tag="uniform"):
    """Equal weight for the present and every remembered round.

    >>> Uniform()(Timeline(rounds=(0, 1, 2), sizes=(9, 9, 9), now=3, size=50))
    array([0.25, 0.25, 0.25, 0.25])
    """

    def __call__(self, timeline: Timeline) -> Weights:
        """Return weights ``1/t``."""
        t = len(timeline.rounds) + 1
        return np.full(t, 1 / t)


class Fixed(RoundWeights, tag="fixed"):
    """A fixed share for the present; remembered rounds share the rest equally.

    Attributes:
        present: Share of the present; it is 1 while there is no past.

    >>> Fixed(0.5)(Timeline(rounds=(0, 1), sizes=(9, 9), now=2, size=50))
    array([0.25, 0.25, 0.5 ])
    """

    present: Fraction = 0.5

    def __call__(self, timeline: Timeline) -> Weights:
        """Return the fixed share, last, after equal parts of the rest."""
        past = len(timeline.rounds)
        if past == 0:
            return np.ones(1)
        return np.array([(1 - self.present) / past] * past + [self.present])

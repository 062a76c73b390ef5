r"""Power of the paired test: the difference that so many seeds resolve, and the seeds that a difference takes.

With *n* pairs whose differences have deviation *s*, Student's *t* of a true difference :math:`\delta` is
noncentral with :math:`\lambda = \delta \sqrt n / s`. Its chance to pass the two-sided limit :math:`c` on the
right side is the mean of :math:`\Phi(\lambda - c u)` over :math:`u = \sqrt{\chi^2_\nu / \nu}`, the ratio of the
estimated deviation to the true one. The deviation itself is an estimate from few seeds, so what follows from it
is rough: with three seeds, the true one may be half or six times as large.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from chronofed.training.paired import SIGNIFICANCE, Paired, student_quantile

POWER = 0.8
"""Chance with which a difference must be resolved to count as one that could have been."""
MOST_PAIRS = 1000
_POINTS = 4000


@cache
def limit(freedom: int, p: float = SIGNIFICANCE) -> float:
    """Return the *t* whose two-sided p-value is ``p``.

    >>> [round(limit(freedom), 3) for freedom in (1, 2, 4, 30)]
    [12.706, 4.303, 2.776, 2.042]
    """
    return student_quantile(p, freedom)


def chance(difference: float, deviation: float, pairs: int, p: float = SIGNIFICANCE) -> float:
    """Return the chance that a true difference above 0 is resolved as such, at a two-sided p-value.

    >>> round(chance(2.0, 1.0, 5), 3), round(chance(0.0, 1.0, 5), 3), chance(1.0, 1.0, 1)
    (0.909, 0.025, 0.0)
    """
    if pairs < 2:
        return 0.0
    if deviation == 0:
        return float(difference > 0)
    freedom = pairs - 1
    ratio, density = _chi(freedom)
    inside = difference * math.sqrt(pairs) / deviation - limit(freedom, p) * ratio
    return float(density @ _normal(inside))


@cache
def reach(pairs: int, p: float = SIGNIFICANCE, power: float = POWER) -> float:
    """Return the difference, in deviations, that so many pairs resolve with a chance of 80 %.

    >>> [round(reach(pairs), 2) for pairs in (3, 5, 10)]
    [3.26, 1.68, 1.0]
    """
    low, high = 0.0, 1.0
    while chance(high, 1.0, pairs, p) < power:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if chance(middle, 1.0, pairs, p) >= power else (middle, high)
    return high


def interval(found: Paired) -> tuple[float, float]:
    """Return the confidence interval of 95 % of a mean difference; without end for a single pair.

    >>> [round(end, 2) for end in interval(Paired(14.53, 4.66, 3))]
    [2.95, 26.11]
    """
    if found.deviation is None or found.pairs < 2:
        return -math.inf, math.inf
    half = limit(found.pairs - 1) * found.deviation / math.sqrt(found.pairs)
    return found.mean - half, found.mean + half


def resolvable(deviation: float | None, pairs: int) -> float | None:
    """Return the difference that these pairs resolve with a chance of 80 %; ``None`` for a single pair."""
    return None if deviation is None or pairs < 2 else deviation * reach(pairs)


def tolerance_shown(deviation: float | None, pairs: int) -> float | None:
    """Return the tolerance within which these pairs show equivalence with a chance of 80 %, if nothing differs.

    Each of the two one-sided tests at 5 % then passes with a chance of 90 %; ``None`` for a single pair.
    """
    if deviation is None or pairs < 2:
        return None
    return deviation * reach(pairs, 2 * SIGNIFICANCE, (1 + POWER) / 2)


def pairs_needed(difference: float, deviation: float | None, p: float = SIGNIFICANCE) -> int | None:
    """Return the pairs that resolve a difference with a chance of 80 %; ``None`` for more than a thousand.

    >>> pairs_needed(0.5, 2.5), pairs_needed(3.0, 2.5), pairs_needed(0.0, 1.0)
    (199, 8, None)
    """
    if deviation is None or difference == 0:
        return None
    size = abs(difference) / deviation if deviation else math.inf
    if reach(MOST_PAIRS, p) > size:
        return None
    low, high = 1, MOST_PAIRS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(size, 1.0, middle, p) >= POWER else (middle, high)
    return high


@cache
def _chi(freedom: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points of the ratio of deviations and their weights, which sum to one."""
    top = 1 + 8 / math.sqrt(freedom)
    ratio = (np.arange(_POINTS) + 0.5) * top / _POINTS
    logarithm = (freedom - 1) * np.log(ratio) - freedom * ratio**2 / 2
    density = np.exp(logarithm - logarithm.max())
    return ratio, density / density.sum()


def _normal(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])

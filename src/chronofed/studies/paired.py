"""Paired comparison: Student's test on runs with the same seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paired:
    """The differences of pairs.

    Attributes:
        mean: Their mean.
        deviation: Their sample standard deviation; 0 for a single pair.
        p: Two-sided p-value of Student's test: the chance of a mean at least this far from 0 if there were no
            difference and differences were normal; 1 for a single pair.
        pairs: Number of pairs.
    """

    mean: float
    deviation: float
    p: float
    pairs: int


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Test ``first - second`` pair by pair with Student's test.

    >>> found = paired([3.0, 4.0, 6.0], [1.0, 1.0, 2.0])
    >>> found.mean, found.deviation, round(found.p, 4)
    (3.0, 1.0, 0.0351)
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    count, mean = len(differences), statistics.fmean(differences)
    if count == 1:
        return Paired(mean, 0.0, 1.0, 1)
    deviation = statistics.stdev(differences)
    if deviation == 0:
        return Paired(mean, 0.0, 1.0 if mean == 0 else 0.0, count)
    return Paired(mean, deviation, student(mean / deviation * math.sqrt(count), count - 1), count)


def student(t: float, freedom: int) -> float:
    r"""Return the chance that Student's *t* with integer degrees of freedom is at least this far from 0.

    By the finite sums of Abramowitz and Stegun (26.7.3, 26.7.4), with :math:`\theta = \arctan(t/\sqrt\nu)`.

    >>> round(student(4.302653, 2), 6), round(student(12.7062, 1), 6), round(student(2.570582, 5), 6)
    (0.05, 0.05, 0.05)
    """
    theta = math.atan(abs(t) / math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom == 1:
        total = 0.0
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return 1 - inside

"""Paired comparison: Student's tests on runs with the same seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SIGNIFICANCE = 0.05
"""A difference is resolved if its p-value is below this."""


@dataclass(frozen=True, slots=True)
class Paired:
    """The differences of pairs, taken as normal.

    Attributes:
        mean: Their mean.
        deviation: Their sample standard deviation; ``None`` for a single pair, which has none.
        pairs: Number of pairs.
    """

    mean: float
    deviation: float | None
    pairs: int

    def p(self, against: float = 0.0) -> float:
        """Return the two-sided p-value of Student's test of the mean against a number; 1 for a single pair.

        >>> round(Paired(14.53, 4.66, 3).p(), 3), round(Paired(14.53, 4.66, 3).p(against=3.0), 4)
        (0.033, 0.0504)
        """
        if self.deviation is None:
            return 1.0
        distance = self.mean - against
        if self.deviation == 0:
            return 1.0 if distance == 0 else 0.0
        return student(distance / self.deviation * math.sqrt(self.pairs), self.pairs - 1)

    def interval(self, level: float = 1 - SIGNIFICANCE) -> tuple[float, float] | None:
        """Return Student's confidence interval of the mean; ``None`` for a single pair.

        It leaves out 0 exactly if :meth:`p` is below ``1 - level``.

        >>> [round(end, 2) for end in Paired(14.53, 4.66, 3).interval()]
        [2.95, 26.11]
        """
        if self.deviation is None:
            return None
        reach = student_quantile(1 - level, self.pairs - 1) * self.deviation / math.sqrt(self.pairs)
        return self.mean - reach, self.mean + reach

    def p_within(self, tolerance: float) -> float:
        r"""Return the p-value of equivalence by two one-sided tests (Schuirmann 1987).

        The larger of the p-values of :math:`\mu > -\delta` and :math:`\mu < \delta`, so that it is small only
        if both are shown. 1 for a single pair.

        >>> round(Paired(0.01, 0.01, 3).p_within(0.1), 4), round(Paired(0.01, 0.1, 3).p_within(0.1), 2)
        (0.002, 0.13)
        """
        if self.deviation is None or abs(self.mean) >= tolerance:
            return 1.0
        # The nearer bound has the larger p-value.
        return self.p(math.copysign(tolerance, self.mean)) / 2


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compute ``first - second`` pair by pair.

    >>> found = paired([3.0, 4.0, 6.0], [1.0, 1.0, 2.0])
    >>> found.mean, found.deviation, round(found.p(), 4)
    (3.0, 1.0, 0.0351)
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    deviation = statistics.stdev(differences) if len(differences) > 1 else None
    return Paired(statistics.fmean(differences), deviation, len(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests (Holm 1979): any of them is below 0.05 by chance in 5 % at most.

    >>> [round(p, 3) for p in holm([0.018, 0.9, 0.3, 0.02, 0.5, 0.7])]
    [0.108, 1.0, 1.0, 0.108, 1.0, 1.0]
    """
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = least
    return corrected


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


def student_quantile(p: float, freedom: int) -> float:
    """Return the *t* that Student's *t* exceeds on either side with chance ``p``, by bisection.

    >>> round(student_quantile(0.05, 2), 4), round(student_quantile(0.05, 30), 4)
    (4.3027, 2.0423)
    """
    low, high = 0.0, 1.0
    while student(high, freedom) > p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) > p else (low, middle)
    return high

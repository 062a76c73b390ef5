"""Numbers over seeds as people read them: the one place where numbers of tables are rounded."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from chronofed.training.measure import decimals


def rounded(value: float, digits: int, scale: float = 1.0) -> str:
    """Round a full number to decimals; tables of the terminal, pages and files all show this text.

    A negative number of digits stands for so many significant ones.

    >>> rounded(0.685049, 2, 100.0)
    '68.50'
    """
    return f"{scale * value:.{decimals(scale * value, digits)}f}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample deviation of one number over runs.

    Attributes:
        mean: The mean.
        deviation: The sample deviation; ``None`` for a single value, and where one is not finite.
        count: The number of values.
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Compute both; ``None`` if there is no value."""
        if not values:
            return None
        known = len(values) > 1 and all(map(math.isfinite, values))
        deviation = statistics.stdev(values) if known else None
        return cls(statistics.fmean(values), deviation, len(values))

    def text(self, digits: int, scale: float = 1.0, expected: int | None = None) -> str:
        """Write ``mean ± deviation``, for a single value the mean alone; the count if some values are missing.

        >>> Spread.of([0.1, 0.2]).text(1, 100), Spread.of([0.1]).text(1, 100, expected=3)
        ('15.0 ± 7.1', '10.0 (1 of 3)')
        """
        digits = decimals(scale * self.mean, digits)
        parts = [rounded(self.mean, digits, scale)]
        if self.deviation is not None:
            parts.append(f"± {rounded(self.deviation, digits, scale)}")
        if expected is not None and self.count != expected:
            parts.append(f"({self.count} of {expected})")
        return " ".join(parts)

"""PageHinkley."""

from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import Count, NonNegative, Positive
from chronofed.core.types import Record
from chronofed.methods.detectors.base import Detector


class PageHinkley(Detector, tag="page-hinkley"):
    r"""The test of Page and Hinkley: a cumulative sum that has risen too far above its minimum.

    With the running mean :math:`\bar x_t` of all numbers since the last change,

    .. math:: m_t = \sum_{s \le t} (x_s - \bar x_s - \delta), \qquad
        \text{a change if } m_t - \min_{s \le t} m_s > \lambda.

    It finds numbers that rise; pass their negatives to find those that fall. The change is placed right after
    the minimum. Numbers themselves are not kept: a position counts from the last change.

    Attributes:
        tolerance: :math:`\delta`, a rise of the mean that does not count.
        threshold: :math:`\lambda`.
        least: Numbers before the first test.
    """

    reference: ClassVar[str] = "Page (1954), Continuous Inspection Schemes"

    tolerance: NonNegative = 0.005
    threshold: Positive = 50.0
    least: Count = 30

    def init(self) -> Record:
        """Return a state of no numbers: their count, mean, sum, its minimum, and the place of that."""
        return {"sums": torch.zeros(5, dtype=torch.float64)}

    def update(self, state: Record, values: Tensor) -> tuple[Record, int | None]:
        """Add the numbers one by one; after a change, the rest belongs to the new stream."""
        count, mean, total, lowest, place = state["sums"].tolist()
        found: int | None = None
        for value in values.double().tolist():
            count += 1
            mean += (value - mean) / count
            total += value - mean - self.tolerance
            if total < lowest:
                lowest, place = total, count
            if count >= self.least and total - lowest > self.threshold:
                found = int(place) if found is None else found
                count = mean = total = lowest = place = 0.0
        numbers = [count, mean, total, lowest, place]
        return {"sums": torch.tensor(numbers, dtype=torch.float64)}, found

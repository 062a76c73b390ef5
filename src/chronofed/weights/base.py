r"""Round weights :math:`p_{\tau,i}`: how much the present and each remembered round count.

The objective of client *i* in round *t* is (``Approximate CFL Formulation``)

.. math:: p_{t,i} f_{t,i}(w) + \sum_{\tau<t} p_{\tau,i} \tilde f_{\tau,i}(w), \qquad \sum_\tau p_{\tau,i} = 1.

The number *t* in the paper's formulas is taken as the number of past objectives that the client can really
recall, plus one.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from chronofed.config import Kind
from chronofed.types import Record

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

    probes: ClassVar[bool] = False
    """Whether clients report what :meth:`update` needs (one more gradient of the present data a round)."""

    @abstractmethod
    def __call__(self, timeline: Timeline) -> Weights:
        """Weights ``(t,)`` that sum to one, oldest round first, the present last."""

    def init(self) -> Record:
        """What weights that learn know before the first round."""
        return {}

    def update(self, state: Record, reports: Mapping[int, Record]) -> Record:  # noqa: ARG002
        """What they know after a round, from the clients' reports."""
        return state

    def report(self, state: Record) -> dict[str, float]:  # noqa: ARG002
        """What they have learned, as measures of the run."""
        return {}

    def resolve(self, state: Record) -> "RoundWeights":  # noqa: ARG002
        """Weights with all constants known, to be sent to clients."""
        return self

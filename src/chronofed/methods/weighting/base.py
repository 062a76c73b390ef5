r"""Round weights :math:`p_{\tau,i}` of the present and of each remembered round.

The objective of client *i* in round *t* is (``Approximate CFL Formulation``)

.. math:: p_{t,i} f_{t,i}(w) + \sum_{\tau<t} p_{\tau,i} \tilde f_{\tau,i}(w), \qquad \sum_\tau p_{\tau,i} = 1.

In the paper's formulas, *t* is the number of past objectives that the client can actually recall, plus one.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from chronofed.core.config import Kind
from chronofed.core.types import Record

Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The data sets to weigh: those recalled, oldest first, and the present one.

    Attributes:
        rounds: Round in which each recalled data set was seen.
        sizes: Number of samples that represent it.
        now: The current round.
        size: Number of samples of the present data set.
    """

    rounds: tuple[int, ...]
    sizes: tuple[int, ...]
    now: int
    size: int


class RoundWeights(Kind):
    """Split a weight of one between the present and the recalled rounds."""

    probes: ClassVar[bool] = False
    """True if clients must report what :meth:`update` needs (one more gradient of the present data a round)."""

    @abstractmethod
    def __call__(self, timeline: Timeline) -> Weights:
        """Return weights ``(t,)`` that sum to one, oldest round first, the present last."""

    def init(self) -> Record:
        """Return the state of weights that learn, before the first round."""
        return {}

    def update(self, state: Record, reports: Mapping[int, Record], round_: int) -> Record:
        """Return the state after a round, given the clients' reports."""
        return state

    def report(self, state: Record) -> dict[str, float]:
        """Return what was learned, as measures of the run."""
        return {}

    def resolve(self, state: Record) -> "RoundWeights":
        """Return weights with all constants known, ready to be sent to clients."""
        return self

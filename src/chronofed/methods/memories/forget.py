"""No memory."""

from typing import ClassVar

from torch import Generator

from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.memories.base import Location, Memory, MemoryItem, Moment
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import RoundWeights


class Forget(Memory, tag="forget"):
    r"""No memory: plain federated learning, :math:`p_t = 1`."""

    location: ClassVar[Location] = "none"

    def observe(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        generator: Generator,
    ) -> Record:
        """Keep nothing."""
        return {}

    def recall(
        self,
        kept: tuple[MemoryItem, ...],
        weights: RoundWeights,
        moment: Moment,
    ) -> Surrogate:
        """Return the present alone."""
        return Surrogate()

"""No memory."""

from typing import ClassVar

from torch import Generator

from chronofed.memories.base import Home, Keepsake, Memory, Moment
from chronofed.surrogate import Surrogate
from chronofed.types import Objective, Record, Samples, Vector
from chronofed.weights import RoundWeights


class Forget(Memory, tag="forget"):
    r"""Keeps nothing: plain federated learning, :math:`p_t = 1`."""

    home: ClassVar[Home] = "nowhere"

    def observe(
        self,
        objective: Objective,  # noqa: ARG002
        params: Vector,  # noqa: ARG002
        samples: Samples,  # noqa: ARG002
        generator: Generator,  # noqa: ARG002
    ) -> Record:
        """Nothing."""
        return {}

    def recall(
        self,
        kept: tuple[Keepsake, ...],  # noqa: ARG002
        weights: RoundWeights,  # noqa: ARG002
        moment: Moment,  # noqa: ARG002
    ) -> Surrogate:
        """The present is everything."""
        return Surrogate()

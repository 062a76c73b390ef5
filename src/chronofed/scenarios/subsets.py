"""Random subsets: in every round each client draws one of its own subsets."""

from collections.abc import Sequence
from dataclasses import dataclass

from chronofed.core.seeds import numpy_generator
from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import Indices, ResidentStream, Scenario, Visit
from chronofed.scenarios.settings import TwoLevel


class Subsets(TwoLevel, tag="subsets"):
    """Every round each client draws one of its subsets at random: the paper's main scenario."""

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Split the training samples."""
        return self._scenario(SubsetStream(self._subsets(dataset.labels, seed), seed), seed)


@dataclass(frozen=True, slots=True, eq=False)
class SubsetStream(ResidentStream):
    """Every round each client draws one of its own subsets at random.

    Attributes:
        subsets: ``subsets[client][number]``, see :func:`~chronofed.scenarios.partition.two_level`.
        seed: Root of the draws. The number of the subset is the visit's key.
    """

    subsets: Sequence[Sequence[Indices]]
    seed: int = 0

    @property
    def clients(self) -> int:
        """Number of clients that exist at the same time."""
        return len(self.subsets)

    def visit(self, client: int, round_: int) -> Visit:
        """Return the subset that the client draws in this round."""
        own = self.subsets[client]
        number = int(numpy_generator(self.seed, "subset", client, round_).integers(len(own)))
        return Visit(own[number], number)

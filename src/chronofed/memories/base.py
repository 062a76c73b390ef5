"""The contract of a memory: what is kept of a round, where, and what it contributes later."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from torch import Generator

from chronofed.config import Kind
from chronofed.surrogate import Surrogate
from chronofed.types import Objective, Record, Samples, Vector
from chronofed.weights import RoundWeights

Home: TypeAlias = Literal["client", "nowhere"]


@dataclass(frozen=True, slots=True)
class Keepsake:
    """What a memory keeps of one data set.

    Attributes:
        round: When it was seen last.
        key: Which of the client's data sets it was (:class:`~chronofed.scenarios.base.Visit`).
        record: The tensors kept.
    """

    round: int
    key: int
    record: Record


@dataclass(frozen=True, slots=True)
class Moment:
    """The present, as a memory needs to know it."""

    round: int
    key: int
    size: int  # number of present samples


class Memory(Kind):
    """Approximates past objectives by what it chose to keep of them."""

    home: ClassVar[Home]
    """Who stores the keepsakes, and so who must come back."""
    reference: ClassVar[str] = ""
    """Where the method comes from."""

    @abstractmethod
    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """What to keep of the present, at the end of local training; empty for nothing."""

    @abstractmethod
    def recall(
        self, kept: tuple[Keepsake, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """The surrogate of what was kept, before local training."""

    def retain(self, kept: tuple[Keepsake, ...], new: Keepsake) -> tuple[Keepsake, ...]:
        """Add a keepsake, oldest first; it replaces an earlier one of the same data set."""
        if not new.record:
            return kept
        return (*(old for old in kept if old.key != new.key), new)

"""The contract of a detector."""

from abc import abstractmethod
from typing import ClassVar, Literal

from torch import Tensor

from chronofed.core.config import Kind
from chronofed.core.types import Record


class Detector(Kind):
    """Finds a change in a stream of numbers: settings and pure functions over a record.

    The state is a record of float64 tensors, so that clients keep it and checkpoints hold it like any other
    state, and a threshold decides the same after a run was resumed. A backbone or memory uses a detector by
    holding one among its settings, and its state among its own.
    """

    finds: ClassVar[Literal["rise", "fall"]] = "rise"
    """The change that it finds: pass the negatives of numbers that change the other way."""
    reference: ClassVar[str] = ""
    """The paper that introduced the method."""

    @abstractmethod
    def init(self) -> Record:
        """Return the state before the first number."""

    @abstractmethod
    def update(self, state: Record, values: Tensor) -> tuple[Record, int | None]:
        """Take the next numbers, oldest first.

        Args:
            state: The state so far; it is not changed.
            values: The numbers, ``(n,)``.

        Returns:
            The next state, and the position of the first number after a change, counted from the oldest one
            that the detector still compares with; ``None`` if there was no change. After a change, the
            detector starts anew with what follows it.
        """

"""The contract of a memory: observe the present, retain items, and recall them as a surrogate."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from torch import Generator

from chronofed.core.config import Kind
from chronofed.core.types import Batch, Objective, Record, Samples, Spans, Vector
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import RoundWeights, Timeline

Location: TypeAlias = Literal["client", "server", "none"]

SEVERAL = 2**63 - 1
"""The key of an item that stands for several data sets together; it is deleted with any of them."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """The part of a memory that represents one data set.

    Attributes:
        round: Round in which the data set was last seen.
        client: Client that it belongs to.
        key: Number of the data set on its client (:class:`~chronofed.scenarios.base.Visit`).
        size: Number of samples in the data set.
        record: The tensors to keep; empty if only the number of samples counts.
    """

    round: int
    client: int
    key: int
    size: int
    record: Record

    @property
    def represented_by(self) -> int:
        """Number of samples that stand for the data set: those that are kept, or else all of it."""
        labels = self.record.get("y")
        return self.size if labels is None else len(labels)


@dataclass(frozen=True, slots=True)
class Moment:
    """The present, as a memory needs it.

    Attributes:
        round: The current round.
        key: Number of the client's present data set; ``None`` on the server, which has no data.
        size: Number of present samples; on the server that of a typical client.
    """

    round: int
    key: int | None
    size: int


class Memory(Kind):
    """An approximation of past objectives by what is kept of them."""

    location: ClassVar[Location]
    """Place of the items. With ``"client"``, clients must come back; with ``"server"``, records are sent."""
    reference: ClassVar[str] = ""
    """The paper that introduced the method."""
    constants: ClassVar[tuple[str, ...]] = ()
    """Entries of a record that depend on the model alone, so that they are the same for every client."""
    synthetic: ClassVar[bool] = False
    """True if it replays synthetic samples, so that BatchNorm must be refreshed after training."""
    teaches: ClassVar[bool] = False
    """True if it recalls teachers (:class:`~chronofed.methods.surrogate.Teacher`)."""

    previews: ClassVar[bool] = False
    """True if it notes something of the present before training (:meth:`preview`)."""

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Raise :class:`~chronofed.core.errors.SpecError` before training if it does not fit the model."""

    @abstractmethod
    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Return what to keep of the present, after local training; empty to keep nothing."""

    def preview(self, objective: Objective, params: Vector, samples: Samples) -> Record:
        """Return what to add to the record from the model that arrived, if it ``previews``."""
        return {}

    def observe_together(
        self,
        objective: Objective,
        params: Vector,
        samples: Sequence[Samples],
        generators: Sequence[Generator],
    ) -> Sequence[Record] | None:
        """Observe many clients at once; used if :meth:`observe` is :func:`~chronofed.core.stacking.stacked`.

        Args:
            objective: An objective of ``(clients, d)`` and batches ``(clients, n, ...)`` that has only
                ``names``, ``loss_gradient``, ``squared_gradients`` and ``gradient_moments``.
            params: Parameters of every client, ``(clients, d)``; valid only during the call.
            samples: Samples of every client.
            generators: Generator of every client; afterwards in the same state as after :meth:`observe`.

        Returns:
            A record for every client; ``None``, with nothing drawn, to observe clients one by one.
        """
        return None

    def recalled(self, kept: tuple[MemoryItem, ...], moment: Moment) -> tuple[MemoryItem, ...]:
        """Return the items that :meth:`recall` weighs: of other data sets, with something left to recall."""
        return tuple(item for item in kept if item.record and item.key != moment.key)

    @abstractmethod
    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Return the surrogate of the kept items, before local training; a server sends it to clients."""

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: Generator
    ) -> tuple[MemoryItem, ...]:
        """Add items, oldest first; they replace earlier ones of the same data sets.

        ``new`` has one item on a client. On the server it has those of a round's clients, in order.
        """
        del generator
        again = {(item.client, item.key) for item in new}
        return (*(old for old in kept if (old.client, old.key) not in again), *new)

    def covered(self, objective: Objective, params: Vector) -> Spans:
        """Return the parameters whose past is approximated; by default all."""
        del objective
        return (slice(0, len(params)),)

    def approximate(
        self, objective: Objective, params: Vector, item: MemoryItem
    ) -> tuple[Spans, Vector]:
        r"""Compute the gradient :math:`\nabla\tilde f_\tau` of one item's surrogate at ``params``.

        Returns:
            The parameters that have a gradient, and the gradient; by default that of the kept samples.
        """
        spans = self.covered(objective, params)
        samples = Samples(item.record["x"], item.record["y"])
        return spans, objective.loss_gradient(params, Batch.mean(samples), spans)


def timeline(recalled: Sequence[MemoryItem], moment: Moment) -> Timeline:
    """Return the data sets to weigh, each recalled one with the number of samples that stand for it."""
    rounds = tuple(item.round for item in recalled)
    sizes = tuple(item.represented_by for item in recalled)
    return Timeline(rounds, sizes, moment.round, moment.size)

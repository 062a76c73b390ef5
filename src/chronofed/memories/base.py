"""The contract of a memory: what is kept of a round, where, and what it contributes later."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from torch import Generator

from chronofed.config import Kind
from chronofed.surrogate import Surrogate
from chronofed.types import Batch, Objective, Record, Samples, Spans, Vector
from chronofed.weights import RoundWeights

Home: TypeAlias = Literal["client", "server", "nowhere"]


@dataclass(frozen=True, slots=True)
class Keepsake:
    """What a memory keeps of one data set.

    Attributes:
        round: When it was seen last.
        client: Whose it was.
        key: Which of the client's data sets it was (:class:`~chronofed.scenarios.base.Visit`).
        size: Number of samples of that data set.
        record: The tensors kept.
    """

    round: int
    client: int
    key: int
    size: int
    record: Record


@dataclass(frozen=True, slots=True)
class Moment:
    """The present, as a memory needs to know it.

    Attributes:
        round: The current round.
        key: The data set that the client holds now; ``None`` on the server, which sees none.
        size: Number of present samples, on the server that of a typical client.
    """

    round: int
    key: int | None
    size: int


class Memory(Kind):
    """Approximates past objectives by what it chose to keep of them."""

    home: ClassVar[Home]
    """Who stores the keepsakes, and so who must come back."""
    reference: ClassVar[str] = ""
    """Where the method comes from."""
    constants: ClassVar[tuple[str, ...]] = ()
    """Entries of a record that follow from the model alone, and so are the same for every client."""
    pollutes: ClassVar[bool] = False
    """Whether what it replays is not real data, so that BatchNorm must be refreshed after training."""

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Raise :class:`~chronofed.errors.SpecError` unless it fits the model; before anything starts."""

    @abstractmethod
    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """What to keep of the present, at the end of local training; empty for nothing."""

    def observe_together(
        self,
        objective: Objective,  # noqa: ARG002
        params: Vector,  # noqa: ARG002
        samples: Sequence[Samples],  # noqa: ARG002
        generators: Sequence[Generator],  # noqa: ARG002
    ) -> Sequence[Record] | None:
        """What :meth:`observe` says, where that is :func:`~chronofed.stacking.stacked`, for many clients.

        Args:
            objective: For ``(clients, d)`` and batches ``(clients, n, ...)``; it has ``names``,
                ``loss_gradient``, ``squared_gradients`` and ``gradient_moments`` only.
            params: Every client's, ``(clients, d)``; only until the end of the call.
            samples: Of every client.
            generators: Of every client; left as :meth:`observe` would leave them.

        Returns:
            A record for every client; ``None``, with nothing drawn, if they have to be observed one by one.
        """
        return None

    @abstractmethod
    def recall(
        self, kept: tuple[Keepsake, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """The surrogate of what was kept, before local training; on the server it then travels."""

    def retain(
        self, kept: tuple[Keepsake, ...], new: Sequence[Keepsake], generator: Generator
    ) -> tuple[Keepsake, ...]:
        """Add keepsakes, oldest first; they replace earlier ones of the same data sets.

        ``new`` is one on a client, and those of a round's clients, in order, on the server.
        """
        del generator
        again = {(keepsake.client, keepsake.key) for keepsake in new}
        return (*(old for old in kept if (old.client, old.key) not in again), *new)

    def approximate(
        self, objective: Objective, params: Vector, keepsake: Keepsake
    ) -> tuple[Spans, Vector]:
        r"""Gradient of one keepsake's surrogate :math:`\nabla\tilde f_\tau` at ``params``.

        Returns:
            The parameters that it is about, and their gradient; by default that of the samples kept.
        """
        everything = (slice(0, len(params)),)
        samples = Samples(keepsake.record["x"], keepsake.record["y"])
        return everything, objective.loss_gradient(params, Batch.mean(samples), everything)

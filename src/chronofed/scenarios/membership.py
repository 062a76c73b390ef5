"""Memberships: the clients that are available in a round. Any stream goes with any membership."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from chronofed.core.bounds import LARGEST_INTEGER
from chronofed.core.config import Count, Kind, Natural
from chronofed.core.errors import SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.scenarios.base import Indices

# The round before which a client leaves, if it never leaves.
NEVER = -1

Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Span = tuple[Natural, Natural, Annotated[int, msgspec.Meta(ge=NEVER, le=LARGEST_INTEGER)]]


class Membership(Kind):
    """Base of all memberships; satisfies :class:`~chronofed.scenarios.base.Presence`."""

    persistent: ClassVar[bool] = True
    """True if clients may come back."""

    @abstractmethod
    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Return the candidates that are available in this round, ascending."""

    def rounds(self, clients: int) -> int | None:
        """Number of rounds until no new client is left; ``None`` for no limit."""
        return None

    def most(self, clients: int) -> int:
        """Largest number of clients that can be available at once."""
        return clients

    def check(self, clients: int) -> None:
        """Raise :class:`~chronofed.core.errors.SpecError` if it does not fit this number of clients."""


class Everyone(Membership, tag="everyone"):
    """All clients, in every round."""

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """All candidates."""
        return candidates


class FixedClients(Membership, tag="fixed-clients"):
    """The same clients in every round; the data of the others are never used.

    Attributes:
        clients: The clients that take part.
    """

    clients: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """The named clients."""
        return candidates[np.isin(candidates, self.clients)]

    def most(self, clients: int) -> int:
        """The named clients."""
        return len(set(self.clients))

    def check(self, clients: int) -> None:
        """Check that all named clients exist."""
        check_names("fixed-clients", max(self.clients), clients)


class Schedule(Membership, tag="schedule"):
    """Clients join and leave at given rounds, once or several times.

    Attributes:
        spans: ``(client, joins at round, leaves before round)``, -1 to stay. A client that
            is not listed is always available.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for client, joins, leaves in self.spans:
            if leaves != NEVER and leaves <= joins:
                msg = (
                    f"Schedule.spans: client {client} joins at round {joins} and leaves before "
                    f"round {leaves}; leave later, or write {NEVER} to stay"
                )
                raise ValueError(msg)

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Clients in one of their spans, and clients without spans."""
        here = {i for i, joins, leaves in self.spans if _within(round_, joins, leaves)}
        away = {i for i, _, _ in self.spans} - here
        return candidates[~np.isin(candidates, list(away))]

    def rounds(self, clients: int) -> int | None:
        """The round at which the last client has left, if all leave."""
        listed = {i for i, _, _ in self.spans}
        leaves = [end for _, _, end in self.spans]
        return None if len(listed) < clients or NEVER in leaves else max(leaves)

    def check(self, clients: int) -> None:
        """Check that all listed clients exist."""
        check_names("schedule", max((i for i, _, _ in self.spans), default=0), clients)


class Available(Membership, tag="available"):
    """Each client is available with a given probability, independently of other clients and rounds.

    Attributes:
        probability: Probability of being available in a round.
    """

    probability: Probability

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Draw for every client and round."""
        draws = numpy_generator(seed, "available", round_).random(len(candidates))
        return candidates[draws < self.probability]


class OneShot(Membership, tag="one-shot"):
    """Each client takes part once: the first ``per_round`` clients, then the next, and so on.

    Attributes:
        per_round: Number of clients in a round.
    """

    persistent: ClassVar[bool] = False
    per_round: Count

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """The next clients."""
        return candidates[round_ * self.per_round :][: self.per_round]

    def rounds(self, clients: int) -> int:
        """Full rounds that the clients last."""
        return clients // self.per_round

    def most(self, clients: int) -> int:
        """Number of clients in a round."""
        return min(self.per_round, clients)

    def check(self, clients: int) -> None:
        """Check that the clients suffice for one round."""
        if clients < self.per_round:
            msg = (
                f"membership 'one-shot' asks {self.per_round} clients a round, but there are "
                f"{clients}: lower per_round"
            )
            raise SpecError(msg)


def _within(round_: int, joins: int, leaves: int) -> bool:
    return joins <= round_ and (leaves == NEVER or round_ < leaves)


def check_names(kind: str, highest: int, clients: int) -> None:
    """Raise :class:`~chronofed.core.errors.SpecError` if a membership names a client that does not exist."""
    if highest >= clients:
        msg = (
            f"membership '{kind}' names client {highest}, but there are {clients}: "
            f"use numbers 0 .. {clients - 1}"
        )
        raise SpecError(msg)

"""Who is there in a round: settings that any stream can be combined with."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from chronofed.config import Count, Kind, Natural
from chronofed.errors import SpecError
from chronofed.scenarios.base import Indices
from chronofed.seeds import numpy_generator

NEVER = -1
"""The round before which a client leaves, if it stays for ever."""

Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Span = tuple[Natural, Natural, Annotated[int, msgspec.Meta(ge=NEVER)]]


class Membership(Kind):
    """Base of all memberships; satisfies :class:`~chronofed.scenarios.base.Presence`."""

    persistent: ClassVar[bool] = True
    """Whether a client that was seen may come back."""

    @abstractmethod
    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Those of the candidates that are there in this round, ascending."""

    def rounds(self, clients: int) -> int | None:  # noqa: ARG002
        """Number of rounds until nobody new is left, or ``None`` for ever."""
        return None

    def most(self, clients: int) -> int:
        """The most clients that can be there at once."""
        return clients

    def check(self, clients: int) -> None:
        """Raise :class:`~chronofed.errors.SpecError` unless it makes sense for so many clients."""


class Everyone(Membership, tag="everyone"):
    """All clients, in every round."""

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:  # noqa: ARG002
        """Everybody."""
        return candidates


class Fixed(Membership, tag="fixed"):
    """The same clients in every round; the data of the others are never seen.

    Attributes:
        clients: Who takes part.
    """

    clients: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:  # noqa: ARG002
        """Those that are named."""
        return candidates[np.isin(candidates, self.clients)]

    def most(self, clients: int) -> int:  # noqa: ARG002
        """Those that are named."""
        return len(set(self.clients))

    def check(self, clients: int) -> None:
        """All that are named must exist."""
        _check_names("fixed", max(self.clients), clients)


class Schedule(Membership, tag="schedule"):
    """Clients join and leave at given rounds, once or several times.

    Attributes:
        spans: ``(client, joins at round, leaves before round)``, -1 to stay for ever. A client that
            is not listed is always there.
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

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:  # noqa: ARG002
        """Those in one of their spans, and those without any."""
        here = {i for i, joins, leaves in self.spans if _within(round_, joins, leaves)}
        away = {i for i, _, _ in self.spans} - here
        return candidates[~np.isin(candidates, list(away))]

    def rounds(self, clients: int) -> int | None:
        """The round at which the last client has left, if all of them do."""
        listed = {i for i, _, _ in self.spans}
        leaves = [end for _, _, end in self.spans]
        return None if len(listed) < clients or NEVER in leaves else max(leaves)

    def check(self, clients: int) -> None:
        """All that are listed must exist."""
        _check_names("schedule", max((i for i, _, _ in self.spans), default=0), clients)


class Available(Membership, tag="available"):
    """Each client is there with a given probability, whoever else is or was there.

    Attributes:
        probability: Of being there in a round.
    """

    probability: Probability

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """A coin for every client and round."""
        coins = numpy_generator(seed, "available", round_).random(len(candidates))
        return candidates[coins < self.probability]


class OneShot(Membership, tag="one-shot"):
    """Each client takes part once: the first ``per_round`` clients, then the next, and so on.

    Attributes:
        per_round: Clients in a round.
    """

    persistent: ClassVar[bool] = False
    per_round: Count

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:  # noqa: ARG002
        """The next clients in line."""
        return candidates[round_ * self.per_round :][: self.per_round]

    def rounds(self, clients: int) -> int:
        """Full rounds that the clients last."""
        return clients // self.per_round

    def most(self, clients: int) -> int:
        """Clients in a round."""
        return min(self.per_round, clients)

    def check(self, clients: int) -> None:
        """There must be enough clients for a round."""
        if clients < self.per_round:
            msg = (
                f"membership 'one-shot' asks {self.per_round} clients a round, but there are "
                f"{clients}: lower per_round"
            )
            raise SpecError(msg)


def _within(round_: int, joins: int, leaves: int) -> bool:
    return joins <= round_ and (leaves == NEVER or round_ < leaves)


def _check_names(kind: str, highest: int, clients: int) -> None:
    if highest >= clients:
        msg = (
            f"membership '{kind}' names client {highest}, but there are {clients}: "
            f"use numbers 0 .. {clients - 1}"
        )
        raise SpecError(msg)

"""A scenario: who takes part in round t, and with which data. Pure, with random access.

A scenario combines three independent choices:

* a *stream*: the data of a client in round ``t`` (:class:`Stream`);
* a *membership*: the clients that are available in round ``t`` (:mod:`chronofed.scenarios.membership`);
* a *cohort*: the number of available clients that are asked.

``Scenario.at`` depends on the round and the seed alone. Engines may ask for any round in any order, and a
resumed run does not have to replay random numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import IncompatibleError
from chronofed.core.seeds import numpy_generator

Indices = NDArray[np.int64]

NO_LOCAL_DATA = (
    "scenario: its clients are on other machines, with data of their own, so it cannot be trained here; "
    "run it on Flower: chronofed flower new APP SPEC, then flwr run APP (see: Run on real machines)"
)


@dataclass(frozen=True, slots=True)
class Visit:
    """The data of one client in one round.

    Attributes:
        indices: Positions in the training data; empty for a remote client, which has data of its own.
        key: Identifies this data set among the client's own. The same key means the same samples, so a memory
            that sees a key again replaces what it kept for it.
    """

    indices: Indices
    key: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: the clients that take part, in ascending order, and their samples."""

    round: int
    visits: Mapping[int, Visit]


class Stream(Protocol):
    """The data of every client over time: a pure function of the client and the round.

    A stream holds positions in the training data, never samples, so it is cheap to build and to query.
    """

    @property
    def clients(self) -> int:
        """Number of clients that exist at the same time."""
        ...

    @property
    def rounds(self) -> int | None:
        """Number of rounds that the data last; ``None`` for no limit."""
        ...

    @property
    def persistent(self) -> bool:
        """True if clients come back."""
        ...

    def candidates(self, round_: int) -> Indices:
        """Clients that exist in this round, ascending; a membership chooses among them."""
        ...

    def visit(self, client: int, round_: int) -> Visit | None:
        """Return the client's data in this round; ``None`` if it has none."""
        ...


class ResidentStream(ABC):
    """Base of streams whose clients stay: numbered from 0 and available in every round, without end."""

    __slots__ = ()

    @property
    @abstractmethod
    def clients(self) -> int:
        """Number of clients that exist at the same time."""

    @property
    def rounds(self) -> int | None:
        """Number of rounds that the data last; ``None`` for no limit."""
        return None

    @property
    def persistent(self) -> bool:
        """True: clients come back."""
        return True

    def candidates(self, round_: int) -> Indices:
        """All clients, in every round."""
        return np.arange(self.clients)


class Presence(Protocol):
    """The clients that are available over time."""

    @property
    def persistent(self) -> bool:
        """True if clients may come back."""
        ...

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Return the candidates that are available in this round, ascending."""
        ...

    def rounds(self, clients: int) -> int | None:
        """Number of rounds until no new client is left; ``None`` for no limit."""
        ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """Federated data that change over time.

    Attributes:
        stream: The data of every client.
        membership: The clients that are available.
        cohort: Number of available clients that are asked each round; ``None`` for all.
        seed: Root of the scenario's randomness.
        remote: True if the data are on the clients' own machines and unknown here.
    """

    stream: Stream
    membership: Presence
    cohort: int | None = None
    seed: int = 0
    remote: bool = False

    @property
    def clients(self) -> int:
        """Number of clients that exist at the same time.

        Clients that stay have numbers below it. In a stateless scenario it is the number of clients in one
        round, and the clients of later rounds have higher numbers.
        """
        return self.stream.clients

    @property
    def persistent(self) -> bool:
        """True if clients come back, so that they can use what they kept."""
        return self.stream.persistent and self.membership.persistent

    @property
    def rounds(self) -> int | None:
        """Number of rounds that the scenario lasts; ``None`` for no limit."""
        ends = (self.stream.rounds, self.membership.rounds(self.clients))
        return min((end for end in ends if end is not None), default=None)

    def at(self, round_: int) -> Plan:
        """Return the plan of one round, counted from 0."""
        candidates = self.stream.candidates(round_)
        present = self.membership.present(candidates, round_, self.seed)
        if self.cohort is not None and self.cohort < len(present):
            rng = numpy_generator(self.seed, "cohort", round_)
            present = np.sort(rng.choice(present, self.cohort, replace=False))
        visits = {int(i): self.stream.visit(int(i), round_) for i in present}
        return Plan(round_, {i: v for i, v in visits.items() if v is not None and self._holds(v)})

    def check_here(self) -> None:
        """Refuse to train on this machine if the data are not here.

        Raises:
            IncompatibleError: If the clients are remote.
        """
        if self.remote:
            raise IncompatibleError(NO_LOCAL_DATA)

    def _holds(self, visit: Visit) -> bool:
        """Return True if the client has samples, as far as is known here."""
        return self.remote or len(visit.indices) > 0

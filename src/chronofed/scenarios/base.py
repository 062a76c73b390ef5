"""A scenario: who takes part in round t, and with which data. Pure, with random access.

A scenario is made of three independent choices:

* a *stream*: what a client holds in round ``t`` (:mod:`chronofed.scenarios.stream`);
* a *membership*: which clients are there in round ``t`` (:mod:`chronofed.scenarios.membership`);
* a *cohort*: how many of those are asked.

``Scenario.at`` depends on nothing but the round and the seed, so any engine may ask for any round
in any order, and a resumed run needs no replaying of random numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chronofed.errors import IncompatibleError
from chronofed.seeds import numpy_generator

Indices = NDArray[np.int64]

ELSEWHERE = (
    "scenario: its clients are elsewhere, with data of their own, so that nothing can be trained here; "
    "run it on Flower: chronofed flower new APP SPEC, then flwr run APP (see: Run on real machines)"
)


@dataclass(frozen=True, slots=True)
class Visit:
    """What one client holds in one round.

    Attributes:
        indices: Positions in the training data; none where the client is elsewhere, with data of its own.
        key: Name of this data set among the client's own: the same key means the same samples, so a
            memory that sees a key again replaces what it kept of it.
    """

    indices: Indices
    key: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: who takes part, and with which samples; clients in ascending order."""

    round: int
    visits: Mapping[int, Visit]


class Stream(Protocol):
    """What each client holds over time."""

    @property
    def clients(self) -> int:
        """Number of clients that exist side by side."""
        ...

    @property
    def rounds(self) -> int | None:
        """Number of rounds that the data last, or ``None`` for ever."""
        ...

    @property
    def persistent(self) -> bool:
        """Whether a client that was seen comes back."""
        ...

    def candidates(self, round_: int) -> Indices:
        """Clients that exist in this round, ascending; a membership chooses among them."""
        ...

    def visit(self, client: int, round_: int) -> Visit | None:
        """The client's data in this round; ``None`` if it has none."""
        ...


class Presence(Protocol):
    """Which clients are there."""

    @property
    def persistent(self) -> bool:
        """Whether a client that was seen may come back."""
        ...

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Those of the candidates that are there in this round, ascending."""
        ...

    def rounds(self, clients: int) -> int | None:
        """Number of rounds until nobody new is left, or ``None`` for ever."""
        ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """Federated data that evolve over time.

    Attributes:
        stream: What each client holds.
        membership: Who is there.
        cohort: How many of those present are asked each round; ``None`` for all.
        seed: Root of the scenario's randomness.
        elsewhere: Whether the clients' data are on machines of their own, unknown here.
    """

    stream: Stream
    membership: Presence
    cohort: int | None = None
    seed: int = 0
    elsewhere: bool = False

    @property
    def clients(self) -> int:
        """Number of clients that exist side by side.

        Clients that stay are numbered below it; where every round brings new ones (stateless), it
        is the number of clients in one round, and the numbers of later clients lie beyond it.
        """
        return self.stream.clients

    @property
    def persistent(self) -> bool:
        """Whether clients come back, so that what they keep can be of use."""
        return self.stream.persistent and self.membership.persistent

    @property
    def rounds(self) -> int | None:
        """Number of rounds that the scenario can serve, or ``None`` for any."""
        ends = (self.stream.rounds, self.membership.rounds(self.clients))
        return min((end for end in ends if end is not None), default=None)

    def at(self, round_: int) -> Plan:
        """The plan of one round, counted from 0."""
        candidates = self.stream.candidates(round_)
        present = self.membership.present(candidates, round_, self.seed)
        if self.cohort is not None and self.cohort < len(present):
            rng = numpy_generator(self.seed, "cohort", round_)
            present = np.sort(rng.choice(present, self.cohort, replace=False))
        visits = {int(i): self.stream.visit(int(i), round_) for i in present}
        return Plan(round_, {i: v for i, v in visits.items() if v is not None and self._holds(v)})

    def check_here(self) -> None:
        """Refuse to train on this machine what has no data here.

        Raises:
            IncompatibleError: If the clients are elsewhere.
        """
        if self.elsewhere:
            raise IncompatibleError(ELSEWHERE)

    def _holds(self, visit: Visit) -> bool:
        """Whether the client has something to train on, as far as is known here."""
        return self.elsewhere or len(visit.indices) > 0

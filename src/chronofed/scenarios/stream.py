"""What each client holds over time: pure functions of the client and the round.

A stream knows positions in the training data only, never the samples, so it is cheap to build, to
keep and to ask.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from chronofed.errors import DataError, SpecError
from chronofed.scenarios.base import Indices, Visit
from chronofed.scenarios.partition import Prior, split
from chronofed.seeds import numpy_generator
from chronofed.tasks.dataset import Codes


class Residents(ABC):
    """Base of the streams whose clients stay: numbered from 0, there in every round, for ever."""

    __slots__ = ()

    @property
    @abstractmethod
    def clients(self) -> int:
        """Number of clients that exist side by side."""

    @property
    def rounds(self) -> int | None:
        """Number of rounds that the data last, or ``None`` for ever."""
        return None

    @property
    def persistent(self) -> bool:
        """Clients come back."""
        return True

    def candidates(self, round_: int) -> Indices:  # noqa: ARG002
        """All clients, in every round."""
        return np.arange(self.clients)


@dataclass(frozen=True, slots=True, eq=False)
class RandomSubset(Residents):
    """Every round each client draws one of its own subsets at random: the paper's main scenario.

    Attributes:
        subsets: ``subsets[client][number]``, see :func:`~chronofed.scenarios.partition.two_level`.
        seed: Root of the draws; the number of the subset is the visit's key.
    """

    subsets: Sequence[Sequence[Indices]]
    seed: int = 0

    @property
    def clients(self) -> int:
        """Number of clients that exist side by side."""
        return len(self.subsets)

    def visit(self, client: int, round_: int) -> Visit:
        """The subset that the client drew in this round."""
        own = self.subsets[client]
        number = int(numpy_generator(self.seed, "subset", client, round_).integers(len(own)))
        return Visit(own[number], number)


@dataclass(frozen=True, slots=True, eq=False)
class SlidingWindow(Residents):
    """A window moves along each client's samples and starts again at the end.

    Windows of consecutive rounds share ``size - step`` samples (none if that is negative), also
    across the end of the track, as long as the track has at least ``size + step`` samples.

    Attributes:
        tracks: Each client's samples in time order.
        size: Samples in the window.
        step: Samples by which it moves in a round; the start of the window is the visit's key.
    """

    tracks: Sequence[Indices]
    size: int
    step: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.step < 1:
            msg = f"window of {self.size} samples, step of {self.step}: both must be at least 1"
            raise SpecError(msg)
        shortest = min(map(len, self.tracks), default=self.size)
        if shortest < self.size:
            msg = f"window of {self.size} samples, but a client has only {shortest}: shorten it"
            raise SpecError(msg)

    @property
    def clients(self) -> int:
        """Number of clients that exist side by side."""
        return len(self.tracks)

    def visit(self, client: int, round_: int) -> Visit:
        """The client's window in this round."""
        track = self.tracks[client]
        start = round_ * self.step % len(track)
        return Visit(track[(start + np.arange(self.size)) % len(track)], start)


@dataclass(frozen=True, slots=True)
class Unknown(Residents):
    """What clients hold is known to them alone.

    Attributes:
        number: Of clients.
    """

    number: int

    @property
    def clients(self) -> int:
        """Number of clients that exist side by side."""
        return self.number

    def visit(self, client: int, round_: int) -> Visit:  # noqa: ARG002
        """Nothing that is known here."""
        return Visit(np.zeros(0, dtype=np.int64), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Stateless:
    """Every round brings clients that nobody saw before and that never return.

    The data are shared out afresh for every round, in two levels: among ``clients_per_round``
    clients, then one of the client's ``subsets``. Client ``k`` of round ``t`` is number
    ``t * clients_per_round + k``: there is no end of clients, unless ``registered`` says so. Nothing is
    stored of a client, so that only those of a round cost memory. Those of one round are disjoint.

    Attributes:
        labels: Class of every training sample.
        clients_per_round: New clients in every round.
        size: Samples of a client.
        client_alpha: Concentration of the split among clients.
        time_alpha: Concentration of a client's own draw.
        seed: Root of the draws.
        prior: Meaning of the concentrations, see :func:`~chronofed.scenarios.partition.split`.
        subsets: A client could have been given ``subsets`` data sets of this size; it gets one.
        registered: Number of clients in all; ``None`` for no end.
    """

    labels: Indices
    clients_per_round: int
    size: int
    client_alpha: float
    time_alpha: float
    seed: int = 0
    prior: Prior = "shares"
    subsets: int = 1
    registered: int | None = None

    @property
    def clients(self) -> int:
        """Number of clients in one round."""
        return self.clients_per_round

    @property
    def rounds(self) -> int | None:
        """Full rounds that the registered clients last; without a number for ever."""
        return None if self.registered is None else self.registered // self.clients_per_round

    @property
    def persistent(self) -> bool:
        """Nobody comes back."""
        return False

    def candidates(self, round_: int) -> Indices:
        """The round's own clients."""
        return round_ * self.clients_per_round + np.arange(self.clients_per_round)

    def visit(self, client: int, round_: int) -> Visit | None:
        """The client's only data set, in its only round."""
        own_round, place = divmod(client, self.clients_per_round)
        return Visit(_fresh(self, round_)[place], 0) if own_round == round_ else None


@lru_cache(maxsize=2)  # a pure function of its arguments: the clients of a round ask one by one
def _fresh(stream: Stateless, round_: int) -> list[Indices]:
    """One data set for each client of the round."""
    rng = numpy_generator(stream.seed, "fresh", round_)
    labels, size, prior = stream.labels, stream.size, stream.prior
    reach = size * stream.subsets
    owned = split(labels, stream.clients_per_round, reach, stream.client_alpha, rng, prior)
    return [part[split(labels[part], 1, size, stream.time_alpha, rng, prior)[0]] for part in owned]


@dataclass(frozen=True, slots=True, eq=False)
class Periods:
    """The user's own data: every row says which client it came from, and when.

    Round ``t`` shows a client its rows of period ``t // rounds_per_period`` and of the
    ``window - 1`` periods before it. Rows are sorted once; a visit is one slice of that order.

    Attributes:
        client: Client of every training row.
        period: Period of every training row, numbered in time order.
        clients: Number of clients.
        periods: Number of periods.
        rounds_per_period: Rounds that a period lasts.
        window: Periods that a client still holds, with the present one, which is the visit's key.
    """

    client: Codes
    period: Codes
    clients: int
    periods: int
    rounds_per_period: int = 1
    window: int = 1
    _order: Indices = field(init=False, repr=False)
    _places: Indices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.rounds_per_period, self.window) < 1:
            msg = (
                f"rounds_per_period = {self.rounds_per_period}, window = {self.window}: "
                "both must be at least 1"
            )
            raise SpecError(msg)
        _check_codes("client", self.client, self.clients)
        _check_codes("period", self.period, self.periods)
        if len(self.client) != len(self.period):
            msg = (
                f"{len(self.client)} client and {len(self.period)} period codes: give each row one"
            )
            raise DataError(msg)
        places = self.client * self.periods + self.period
        order = np.argsort(places, kind="stable")
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_places", places[order])

    @property
    def rounds(self) -> int:
        """Number of rounds until the last period is over."""
        return self.periods * self.rounds_per_period

    @property
    def persistent(self) -> bool:
        """Clients come back."""
        return True

    def candidates(self, round_: int) -> Indices:  # noqa: ARG002
        """All clients; those without rows in this round have nothing to show."""
        return np.arange(self.clients)

    def visit(self, client: int, round_: int) -> Visit | None:
        """The client's rows of the period and the window before it; ``None`` if there are none."""
        period = round_ // self.rounds_per_period
        if period >= self.periods:
            return None
        oldest = max(0, period - self.window + 1)
        edges = client * self.periods + np.array([oldest, period + 1])
        start, stop = np.searchsorted(self._places, edges)
        return Visit(self._order[start:stop], period) if start < stop else None


def _check_codes(name: str, codes: Codes, kinds: int) -> None:
    """A code out of range would be taken for a row of the neighbour."""
    wrong = np.flatnonzero((codes < 0) | (codes >= kinds))
    if len(wrong):
        row = wrong[0]
        msg = f"row {row}: {name} code {codes[row]} is not one of 0 .. {kinds - 1}"
        raise DataError(msg)

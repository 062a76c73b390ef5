"""Stateless clients: every round brings clients that never come back."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from chronofed.core.config import Count
from chronofed.core.errors import SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import Indices, Scenario, Visit
from chronofed.scenarios.membership import Available, Everyone
from chronofed.scenarios.partition import Prior, split, subset_size
from chronofed.scenarios.settings import TwoLevel


class Stateless(TwoLevel, tag="stateless"):
    """Every round brings new clients that never come back; ``clients`` is their number in a round.

    Attributes:
        registered: Total number of clients, of which each comes once: the scenario ends with their last full
            round. It costs neither RAM nor time. ``None`` for no limit.
    """

    registered: Count | None = None

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Split the training samples anew for every round."""
        self._check()
        size = subset_size(len(dataset.train), self.clients, self.subsets)
        stream = StatelessStream(
            dataset.labels,
            self.clients,
            size,
            *self.alphas,
            seed,
            self.prior,
            self.subsets,
            self.registered,
        )
        return self._scenario(stream, seed)

    def _check(self) -> None:
        if not isinstance(self.membership, Everyone | Available):
            msg = (
                "a stateless scenario has new clients in every round: "
                "its membership can only be 'everyone' or 'available'"
            )
            raise SpecError(msg)
        if self.registered is not None and self.registered < self.clients:
            msg = (
                f"clients = {self.clients} a round, but only {self.registered} are registered: "
                "lower clients, or leave registered out"
            )
            raise SpecError(msg)


@dataclass(frozen=True, slots=True, eq=False)
class StatelessStream:
    """Every round brings new clients that never come back.

    The data are split anew for every round, in two levels: among ``clients_per_round`` clients, then into the
    client's ``subsets``, of which it gets one. Client ``k`` of round ``t`` has number
    ``t * clients_per_round + k``; ``registered`` may limit them. Nothing is stored for a client, so only the
    clients of one round cost RAM. The data sets of one round are disjoint.

    Attributes:
        labels: Class of every training sample.
        clients_per_round: New clients in every round.
        size: Samples of a client.
        client_alpha: Concentration of the split among clients.
        time_alpha: Concentration of a client's own draw.
        seed: Root of the draws.
        prior: Prior of the class shares, see :func:`~chronofed.scenarios.partition.split`.
        subsets: Data sets of this size that a client could be given; it gets one.
        registered: Total number of clients; ``None`` for no limit.
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
        """Full rounds that the registered clients last; ``None`` for no limit."""
        return None if self.registered is None else self.registered // self.clients_per_round

    @property
    def persistent(self) -> bool:
        """False: clients never come back."""
        return False

    def candidates(self, round_: int) -> Indices:
        """The clients of this round."""
        return round_ * self.clients_per_round + np.arange(self.clients_per_round)

    def visit(self, client: int, round_: int) -> Visit | None:
        """Return the client's only data set, in its only round."""
        own_round, place = divmod(client, self.clients_per_round)
        return Visit(_data_sets(self, round_)[place], 0) if own_round == round_ else None


# A pure function, cached because the clients of a round ask one by one.
@lru_cache(maxsize=2)
def _data_sets(stream: StatelessStream, round_: int) -> list[Indices]:
    """Return one data set for each client of the round."""
    rng = numpy_generator(stream.seed, "fresh", round_)
    labels, size, prior = stream.labels, stream.size, stream.prior
    reach = size * stream.subsets
    owned = split(labels, stream.clients_per_round, reach, stream.client_alpha, rng, prior)
    return [part[split(labels[part], 1, size, stream.time_alpha, rng, prior)[0]] for part in owned]

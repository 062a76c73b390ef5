"""Bases of the scenarios that a specification can name; the same classes serve Python and TOML."""

from abc import abstractmethod
from typing import ClassVar

from chronofed.core.config import Count, Kind, Positive
from chronofed.core.errors import SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import Indices, Scenario, Stream
from chronofed.scenarios.membership import Everyone, Membership
from chronofed.scenarios.partition import Prior, two_level


class ScenarioSettings(Kind, kw_only=True):
    """Base of all scenario settings.

    Attributes:
        membership: The clients that are available in a round.
        cohort: Number of available clients that are asked; ``None`` for all.
    """

    remote: ClassVar[bool] = False
    """True if clients bring data of their own, beside those of the specification."""

    follows_periods: ClassVar[bool] = False
    """True if rounds follow the periods of a table."""

    membership: Membership = Everyone()
    cohort: Count | None = None

    @abstractmethod
    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Return the scenario on a data set; ``seed`` is the root of all its randomness."""

    def _scenario(self, stream: Stream, seed: int) -> Scenario:
        """Combine the stream with the membership, after a check that they fit."""
        self.membership.check(stream.clients)
        most = self.membership.most(stream.clients)
        if self.cohort is not None and self.cohort > most:
            msg = f"cohort = {self.cohort}, but at most {most} clients are available: lower the cohort"
            raise SpecError(msg)
        return Scenario(stream, self.membership, self.cohort, seed, self.remote)


class TwoLevel(ScenarioSettings):
    """Base of scenarios that split the data by label, among clients and over time.

    Attributes:
        clients: Number of clients; in a stateless scenario, of one round.
        subsets: Subsets of a client.
        client_alpha: Dirichlet concentration of the split among clients: small means few classes each.
        time_alpha: Dirichlet concentration of the split over time; ``None`` for the same.
        prior: ``"shares"`` or ``"symmetric"``, see :func:`~chronofed.scenarios.partition.split`.
    """

    clients: Count = 7
    subsets: Count = 30
    client_alpha: Positive = 0.1
    time_alpha: Positive | None = None
    prior: Prior = "shares"

    @property
    def alphas(self) -> tuple[float, float]:
        """Concentrations among clients and over time."""
        time_alpha = self.client_alpha if self.time_alpha is None else self.time_alpha
        return self.client_alpha, time_alpha

    def _subsets(self, labels: Indices, seed: int) -> list[list[Indices]]:
        rng = numpy_generator(seed, "partition")
        return two_level(labels, self.clients, self.subsets, *self.alphas, rng, self.prior)

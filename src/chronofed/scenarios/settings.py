"""Scenarios as a specification may name them; the same classes serve Python and TOML."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from chronofed.config import Count, Kind, Positive
from chronofed.errors import SpecError
from chronofed.scenarios.base import Indices, Scenario, Stream
from chronofed.scenarios.membership import Available, Everyone, Membership
from chronofed.scenarios.partition import Prior, subset_size, two_level
from chronofed.scenarios.stream import Periods, RandomSubset, SlidingWindow, Stateless, Unknown
from chronofed.seeds import numpy_generator
from chronofed.tasks.dataset import Dataset

Overlap = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class ScenarioSettings(Kind, kw_only=True):
    """Base of all scenario settings.

    Attributes:
        membership: Which clients are there in a round.
        cohort: How many of those are asked; ``None`` for all.
    """

    elsewhere: ClassVar[bool] = False
    """Whether clients bring their own data, which are not those of the specification."""

    membership: Membership = Everyone()
    cohort: Count | None = None

    @abstractmethod
    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """The scenario on a data set; everything random in it comes from ``seed``."""

    def _scenario(self, stream: Stream, seed: int) -> Scenario:
        """Join the stream with who is there, once they are known to fit."""
        self.membership.check(stream.clients)
        most = self.membership.most(stream.clients)
        if self.cohort is not None and self.cohort > most:
            msg = f"cohort = {self.cohort}, but at most {most} clients are there: lower the cohort"
            raise SpecError(msg)
        return Scenario(stream, self.membership, self.cohort, seed, self.elsewhere)


class TwoLevel(ScenarioSettings):
    """Base of the scenarios whose data are shared out by label, among clients and over time.

    Attributes:
        clients: Number of clients (of each round, if stateless).
        subsets: Subsets of a client.
        client_alpha: Concentration of the split among clients: small means few classes each.
        time_alpha: Concentration of the split over time; ``None`` for the same.
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


class Subsets(TwoLevel, tag="subsets"):
    """Every round each client draws one of its subsets at random: the paper's main scenario."""

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Share the training samples out."""
        return self._scenario(RandomSubset(self._subsets(dataset.labels, seed), seed), seed)


class Window(TwoLevel, tag="window"):
    """A window moves along each client's subsets, so that consecutive data sets overlap.

    Attributes:
        overlap: Share of its samples that a client keeps from one round to the next.
    """

    overlap: Overlap = 0.5

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Share the training samples out and lay each client's subsets in a row."""
        size = subset_size(len(dataset.train), self.clients, self.subsets)
        step = round((1 - self.overlap) * size)
        if not step:
            msg = (
                f"overlap = {self.overlap} of a window of {size} samples is all of it, so the data "
                "would never change: lower the overlap or use fewer subsets"
            )
            raise SpecError(msg)
        tracks = [np.concatenate(own) for own in self._subsets(dataset.labels, seed)]
        return self._scenario(SlidingWindow(tracks, size, step), seed)


class Fresh(TwoLevel, tag="stateless"):
    """Every round brings new clients that never return; ``clients`` is their number in a round.

    Attributes:
        registered: Number of clients in all, of which each comes once: with the last full round of them the
            scenario ends. It costs neither memory nor time. ``None`` for no end.
    """

    registered: Count | None = None

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Share the training samples out anew for every round."""
        self._check()
        size = subset_size(len(dataset.train), self.clients, self.subsets)
        stream = Stateless(
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


class Calendar(ScenarioSettings, tag="periods"):
    """The user's own clients and periods, as the columns of a table say.

    Attributes:
        rounds_per_period: Rounds that a period lasts.
        window: Periods that a client still holds, with the present one.
    """

    rounds_per_period: Count = 1
    window: Count = 1

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Follow the table's clients and periods."""
        origin = dataset.origin
        if origin is None:
            msg = (
                f"data set '{dataset.name}' does not say which client and period a row is from: "
                "use data.kind = \"table\" or another scenario than 'periods'"
            )
            raise SpecError(msg)
        stream = Periods(
            origin.train_client,
            origin.train_period,
            len(origin.clients),
            len(origin.periods),
            self.rounds_per_period,
            self.window,
        )
        return self._scenario(stream, seed)


class Elsewhere(ScenarioSettings, tag="elsewhere"):
    """Clients on machines of their own, with data of their own: who may be asked is known, and nothing else.

    It runs on Flower only, where every client says where its data are. The specification's own data are the
    server's, to test the model on.

    Attributes:
        clients: Number of clients, which are numbered from 0.
    """

    elsewhere: ClassVar[bool] = True

    clients: Count

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Ask clients whatever the data set holds."""
        del dataset  # which is for testing
        return self._scenario(Unknown(self.clients), seed)

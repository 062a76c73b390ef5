"""Periods of a table: clients with rows in a period take part in its rounds."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from chronofed.core.config import Count
from chronofed.core.errors import DataError, SpecError
from chronofed.data.dataset import Codes, Dataset
from chronofed.scenarios.base import Indices, Scenario, Visit
from chronofed.scenarios.settings import ScenarioSettings


class Periods(ScenarioSettings, tag="periods"):
    """The user's own clients and periods, from the columns of a table.

    Attributes:
        rounds_per_period: Rounds that a period lasts.
        window: Periods of data that a client holds, including the present one.
    """

    follows_periods: ClassVar[bool] = True

    rounds_per_period: Count = 1
    window: Count = 1

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Follow the table's clients and periods."""
        origin = dataset.origin
        if origin is None:
            msg = (
                f"data set '{dataset.name}' has no clients and periods of its own: "
                "use data.kind = \"table\" or another scenario than 'periods'"
            )
            raise SpecError(msg)
        stream = PeriodStream(
            origin.train_client,
            origin.train_period,
            len(origin.clients),
            # Later periods may hold test rows only, and have no rounds.
            int(origin.train_period.max(initial=0)) + 1,
            self.rounds_per_period,
            self.window,
        )
        return self._scenario(stream, seed)


@dataclass(frozen=True, slots=True, eq=False)
class PeriodStream:
    """The user's own data: every row has a client and a period.

    In round ``t`` a client holds its rows of period ``t // rounds_per_period`` and of the
    ``window - 1`` periods before it. Rows are sorted once; a visit is one slice of that order.

    Attributes:
        client: Client of every training row.
        period: Period of every training row, numbered in time order.
        clients: Number of clients.
        periods: Number of periods.
        rounds_per_period: Rounds that a period lasts.
        window: Periods of data that a client holds, including the present one, which is the visit's key.
    """

    follows_origin: ClassVar[bool] = True
    """Its clients and keys are those of the data's :class:`~chronofed.data.dataset.Origin`, with its names."""

    client: Codes
    period: Codes
    clients: int
    periods: int
    rounds_per_period: int = 1
    window: int = 1
    _order: Indices = field(init=False, repr=False)
    _places: Indices = field(init=False, repr=False)
    # (clients,): the first period with rows of each client
    _first: Indices = field(init=False, repr=False)

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
        first = np.full(self.clients, self.periods)
        np.minimum.at(first, self.client, self.period)
        object.__setattr__(self, "_first", first)

    @property
    def rounds(self) -> int:
        """Number of rounds until the last period is over."""
        return self.periods * self.rounds_per_period

    @property
    def persistent(self) -> bool:
        """True: clients come back."""
        return True

    def candidates(self, round_: int) -> Indices:
        """The clients that have had rows until now; :meth:`visit` leaves out those without rows in this round.

        A cohort is drawn among these, so that it does not depend on clients that appear later.
        """
        return np.flatnonzero(self._first <= round_ // self.rounds_per_period)

    def visit(self, client: int, round_: int) -> Visit | None:
        """Return the client's rows of the period and the window before it; ``None`` if there are none."""
        period = round_ // self.rounds_per_period
        if period >= self.periods:
            return None
        oldest = max(0, period - self.window + 1)
        edges = client * self.periods + np.array([oldest, period + 1])
        start, stop = np.searchsorted(self._places, edges)
        return Visit(self._order[start:stop], period) if start < stop else None


def _check_codes(name: str, codes: Codes, kinds: int) -> None:
    # A code out of range would count as a row of the next client.
    wrong = np.flatnonzero((codes < 0) | (codes >= kinds))
    if len(wrong):
        row = wrong[0]
        msg = f"row {row}: {name} code {codes[row]} is not one of 0 .. {kinds - 1}"
        raise DataError(msg)

"""Test, then train: after the last round of a period the model is evaluated on the period to come.

The rows of period ``t + 1`` are evaluated before anybody has trained on them, so nothing needs to be held out,
and an accuracy says how good the model was when it was needed. A pure function of the data and of the round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from chronofed.clients.deletion import Deletion
from chronofed.core.errors import SpecError
from chronofed.core.types import Samples
from chronofed.data.dataset import Codes, Dataset, Origin
from chronofed.data.holdout import Mask
from chronofed.data.periods import rank_within
from chronofed.models.supervised import SupervisedTask
from chronofed.scenarios.base import Scenario
from chronofed.scenarios.periods import PeriodStream

NEEDS_PERIODS = (
    "evaluate.protocol: 'next' needs a table with periods and the scenario 'periods' here"
)


@dataclass(frozen=True, slots=True)
class EvaluatedRows:
    """The samples of one evaluation.

    Attributes:
        samples: The samples.
        client: Client of each sample, if known.
        period: The period that they are from, if they are all of one.
        name: The name of that period.
    """

    samples: Samples
    client: Codes | None = None
    period: int | None = None
    name: str | None = None

    def of_client(self, client: int) -> Samples:
        """Return the samples of a client in the next period; otherwise all, which measure every client."""
        if self.period is None or self.client is None:
            return self.samples
        return self.samples[torch.from_numpy(self.client == client)]


@dataclass(frozen=True, slots=True)
class NextPeriod:
    """The rows that are evaluated after a round: those of the next period.

    Attributes:
        origin: Client and period of every training row.
        rounds_per_period: Rounds that a period lasts.
        every: Periods between evaluations.
        skip: Number of first periods that are not evaluated on.
        deletions: Data that are not used from some round on, not even for an evaluation.
    """

    origin: Origin
    rounds_per_period: int = 1
    every: int = 1
    skip: int = 0
    deletions: tuple[Deletion, ...] = ()
    _order: Codes = field(init=False, repr=False)
    _starts: Codes = field(init=False, repr=False)
    _overlaps: Mask = field(init=False, repr=False)

    def __post_init__(self) -> None:
        period = self.origin.train_period
        order = np.argsort(period, kind="stable")
        starts = np.searchsorted(period[order], np.arange(len(self.origin.periods) + 1))
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "_overlaps", _overlaps(self.origin))

    @property
    def client(self) -> Codes:
        """Client of every training row."""
        return self.origin.train_client

    def period(self, round_: int) -> int | None:
        """Return the period to evaluate on after so many rounds.

        ``None`` in the middle of a period, if the next one is not evaluated on or has no rows for that, and
        after the last one.
        """
        period, rest = divmod(round_, self.rounds_per_period)
        due = rest == 0 and period % self.every == 0 and period >= max(1, self.skip)
        return period if due and len(self.rows(period, round_)) else None

    @property
    def first(self) -> int:
        """The first period with rows to evaluate on."""
        return next(k for k in range(1, len(self.origin.periods)) if len(self.rows(k, 0)))

    def rows(self, period: int, round_: int) -> Codes:
        """Return the training rows of a period that are evaluated, in the order of the table.

        Rows that overlap with earlier ones of their client (``holdout_gap``) are left out.
        """
        rows = self.all_rows(period, round_)
        return rows[~self._overlaps[rows]]

    def all_rows(self, period: int, round_: int) -> Codes:
        """Return all training rows of a period that are not deleted by this round."""
        if not 0 <= period < len(self.origin.periods):
            return self._order[:0]
        rows = self._order[self._starts[period] : self._starts[period + 1]]
        due = [deletion for deletion in self.deletions if deletion.round <= round_]
        gone = [row for deletion in due for row in deletion.rows]
        who = [client for deletion in due for client in deletion.clients]
        return rows[~(np.isin(rows, gone) | np.isin(self.client[rows], who))] if due else rows

    def name(self, period: int) -> str:
        """Return the name of a period."""
        return self.origin.periods[period]


def evaluated_rows(
    task: SupervisedTask, upcoming: NextPeriod | None, round_: int, period: int | None = None
) -> EvaluatedRows:
    """Return the samples to evaluate on after a round: the test set, or those of a period.

    Args:
        task: Data and model.
        upcoming: The periods; ``None`` for the test set.
        round_: Rounds done.
        period: The period; by default the one after those that were trained on.
    """
    if upcoming is None:
        origin = task.data.origin
        return EvaluatedRows(task.data.test, None if origin is None else origin.test_client)
    if period is None:
        period = round_ // upcoming.rounds_per_period
    rows = upcoming.rows(period, round_)
    return EvaluatedRows(task.samples(rows), upcoming.client[rows], period, upcoming.name(period))


def next_period(
    data: Dataset,
    scenario: Scenario,
    every: int = 1,
    skip: int = 0,
    deletions: Sequence[Deletion] = (),
) -> NextPeriod:
    """Follow the periods of a scenario; the other arguments are those of :class:`NextPeriod`.

    Raises:
        SpecError: If data or scenario have no periods, or only one.
    """
    stream, origin = scenario.stream, data.origin
    if origin is None or scenario.remote or not isinstance(stream, PeriodStream):
        raise SpecError(f"{NEEDS_PERIODS}; use 'holdout'")
    if len(origin.periods) < 2:
        msg = f"data: all rows are in one period, {origin.periods[0]}, so there is no next one"
        raise SpecError(f"{msg}; shorten data.period, or use evaluate.protocol = 'holdout'")
    return NextPeriod(origin, stream.rounds_per_period, every, skip, tuple(deletions))


def _overlaps(origin: Origin) -> Mask:
    """Mark the first rows of a client in a period that overlap with its rows before that period."""
    client, period = origin.train_client, origin.train_period
    if not origin.overlap:
        return np.zeros(len(client), dtype=np.bool_)
    first = np.full(len(origin.clients), len(origin.periods))
    np.minimum.at(first, client, period)
    rank, _ = rank_within(period * len(origin.clients) + client)
    return (rank < origin.overlap) & (period > first[client])

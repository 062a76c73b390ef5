"""Split of rows into training, validation and test.

Within every client and period, ``random`` draws single rows, and ``blocks`` takes rows that follow each other.
``latest`` takes the last periods of all clients. ``gap`` rows of the same client beside held-out rows are left
out, so that windows which overlap are never split between training and test. Test rows are chosen first, and do
not depend on the share for validation.

No choice of the first two rules depends on later periods: a block leaves out rows after it in the client's next
period, but never in the one before. What is the latest does depend on them.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.seeds import numpy_generator
from chronofed.data.dataset import Codes, Dataset
from chronofed.data.periods import rank_within

Rule = Literal["blocks", "random", "latest"]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

TEST_SHARE = 0.2
"""Share of the rows that is held out for testing, if the settings do not say."""

_TRAIN, _VALIDATION, _TEST, _UNUSED = range(4)
# In floats 0.29 * 50 is less than 14.5.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Split:
    """The purpose of every row; a row beside a held-out block has none."""

    train: Mask  # (n,)
    validation: Mask  # (n,)
    test: Mask  # (n,)


@dataclass(frozen=True, slots=True)
class Holdout:
    """A rule that splits rows by purpose.

    Attributes:
        test: Share of the rows that is kept for testing; by the first two rules, of every client and period.
        validation: Share that is kept for validation, of the rows that are not for testing.
        rule: Rows that follow each other, random rows, or the latest.
        gap: Rows to leave out on either side of held-out rows.
    """

    test: float
    validation: float = 0.0
    rule: Rule = "blocks"
    gap: int = 0

    def split(self, client: Codes, period: Codes, seed: int) -> Split:
        """Choose a purpose for every row. Rows come in time order.

        Random numbers are drawn by period and then by client, so the choice depends neither on the order of the
        file (except among rows of one client at the same time) nor on periods that are added later.
        """
        group = period * (client.max(initial=0) + 1) + client
        if self.rule == "latest":
            return self._latest(client, period)
        if self.rule == "blocks":
            return self._blocks(client, group, seed)
        everything = np.ones(len(group), dtype=np.bool_)
        test = random_rows(group, self.test, everything, seed, "holdout")
        validation = random_rows(group, self.validation, ~test, seed, "validation")
        return Split(~(test | validation), validation, test)

    def _latest(self, client: Codes, period: Codes) -> Split:
        """Cut the time of all clients twice: training, validation, test."""
        purposes = np.full(len(period), _TRAIN)
        for purpose, share in ((_TEST, self.test), (_VALIDATION, self.validation)):
            free = purposes == _TRAIN
            start = _last_periods(period[free], share)
            later = free & (period >= start)
            before = free & ~later & np.isin(client, client[later])
            # In every client's own order of time, counted from the end.
            rank, size = rank_within(np.where(before, client, -1))
            purposes[before & (size - rank <= self.gap)] = _UNUSED
            purposes[later] = purpose
        return Split(*(purposes == purpose for purpose in (_TRAIN, _VALIDATION, _TEST)))

    def _blocks(self, client: Codes, group: Codes, seed: int) -> Split:
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        groups = np.split(order, starts[1:]) if len(order) else []
        purposes = np.full(len(group), _TRAIN)
        blocks = ((_TEST, self.test, "holdout"), (_VALIDATION, self.validation, "validation"))
        for purpose, share, name in blocks:
            draws = numpy_generator(seed, f"{name} block").random(len(groups))
            # Rows at the start of a client's next period that are too near to its last block.
            near: dict[int, int] = defaultdict(int)
            for rows, draw in zip(groups, draws, strict=True):
                who = int(client[rows[0]])
                part = purposes[rows]
                part[: near[who]][part[: near[who]] == _TRAIN] = _UNUSED
                end = _hold_out_block(
                    part, purpose, int(share * len(rows) + 0.5 + _ROUNDING), self.gap, draw
                )
                near[who] = max(0, near[who] - len(rows), end + self.gap - len(rows))
                purposes[rows] = part
        return Split(*(purposes == purpose for purpose in (_TRAIN, _VALIDATION, _TEST)))


def _last_periods(period: Codes, share: float) -> int:
    """Return the first of the last periods that hold about this share of the rows: one at least, never all."""
    numbers, sizes = np.unique(period, return_counts=True)
    if not share or len(numbers) < 2:
        return int(period.max(initial=-1)) + 1
    # (periods - 1,): rows from the second, third, ... period on
    rows = np.cumsum(sizes[::-1])[::-1][1:]
    return int(numbers[1 + np.argmin(np.abs(rows - share * len(period)))])


def _hold_out_block(part: Codes, purpose: int, quota: int, gap: int, draw: float) -> int:
    """Hold out a block in the longest run of training rows, but never all of them.

    Args:
        part: Purposes of the rows of one client and period, changed in place.
        purpose: Purpose of the block.
        quota: Length of the block, where there is room.
        gap: Rows to leave out on either side.
        draw: Its place among all possible ones, from 0 to below 1.

    Returns:
        The end of the block; far below 0 if there is none.
    """
    first, last = _longest_run(part == _TRAIN)
    # Inside, a run begins after rows that are left out already.
    before = gap if first == 0 else 0
    spare = int((part == _TRAIN).sum()) - 1 - before - gap
    length = min(quota, last - first - before, spare)
    if length < 1:
        return -len(part) - gap
    start = first + before + int(draw * (last - first - before - length + 1))
    stop = start + length
    around = part[max(0, start - gap) : stop + gap]
    around[around == _TRAIN] = _UNUSED
    part[start:stop] = purpose
    return stop


def _longest_run(free: Mask) -> tuple[int, int]:
    """Return start and end of the longest run of True."""
    edges = np.flatnonzero(np.diff(free, prepend=False, append=False)).reshape(-1, 2)
    if not len(edges):
        return 0, 0
    first, last = edges[np.argmax(edges[:, 1] - edges[:, 0])]
    return int(first), int(last)


def random_rows(group: Codes, share: float, free: Mask, seed: int, purpose: str) -> Mask:
    """Choose this share of every group among its free rows, but never all of these."""
    if not share:
        return np.zeros(len(group), dtype=np.bool_)
    draws: Floats = np.empty(len(group))
    draws[np.argsort(group, kind="stable")] = numpy_generator(seed, purpose).random(len(group))
    draws[~free] = np.inf
    order = np.argsort(draws, kind="stable")
    rank, size = rank_within(group[order])
    _, code = np.unique(group, return_inverse=True)
    left = np.bincount(code, weights=free)[code][order]
    chosen = np.empty(len(group), dtype=np.bool_)
    quota = np.floor(share * size + 0.5 + _ROUNDING)
    chosen[order] = rank < np.minimum(quota, left - 1)
    return chosen


def with_validation(data: Dataset, share: float, seed: int) -> Dataset:
    """Move this share of the training rows of every class to validation; test rows stay as they are."""
    everything = np.ones(len(data.train), dtype=np.bool_)
    held = random_rows(data.labels, share, everything, seed, "validation")
    train, validation = (data.train[torch.from_numpy(mask)] for mask in (~held, held))
    origin = data.origin and replace(
        data.origin,
        train_client=data.origin.train_client[~held],
        train_period=data.origin.train_period[~held],
        validation_client=data.origin.train_client[held],
        validation_period=data.origin.train_period[held],
    )
    return replace(data, train=train, validation=validation, origin=origin)

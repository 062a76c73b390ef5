"""Accuracy by client and data set over time, as compact as a page needs it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.reports.thin import spread

UNSEEN = 255
LEVELS = 200  # steps of half a per cent: one byte a value
Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class PeriodBook:
    """Takes recorded lines one by one and keeps a byte a value: 10,000 rounds fit into memory.

    Attributes:
        pairs: Client and data set, in the order they were seen.
        held: Main classes of a data set and their shares.
        rounds: When it was evaluated.
    """

    pairs: list[tuple[int, int]] = field(default_factory=list)
    held: dict[tuple[int, int], list[list[float]]] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    _rows: list[tuple[Bytes, Bytes]] = field(default_factory=list)  # now and best so far
    _place: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, lines: Iterable[Mapping[str, Any]]) -> "PeriodBook":
        """Take over recorded lines."""
        for line in lines:
            table = line["accuracy"]
            pairs = [(client, key) for client, key, _ in table]
            if pairs == self.pairs:  # as before, which is by far the most frequent case
                places: Any = slice(None)
            else:
                places = [self._at(pair) for pair in pairs]
            now = np.full(len(self.pairs), UNSEEN, dtype=np.uint8)
            accuracy = np.fromiter((a for _, _, a in table), np.float64, len(table))
            now[places] = np.rint(LEVELS * accuracy)
            self.rounds.append(int(line["round"]))
            self._rows.append((now, self._best(now)))
            for client, key, classes in line.get("held", ()):
                self.held[client, key] = classes
        return self

    def _at(self, pair: tuple[int, int]) -> int:
        if pair not in self._place:
            self._place[pair] = len(self.pairs)
            self.pairs.append(pair)
        return self._place[pair]

    def _best(self, now: Bytes) -> Bytes:
        """The best so far of every pair."""
        seen = np.where(now == UNSEEN, 0, now)
        if self._rows:
            before = self._rows[-1][1]
            seen[: len(before)] = np.maximum(seen[: len(before)], before)
        return seen

    def frames(self, most: int) -> tuple[list[int], Bytes, Bytes]:
        """Evenly spread evaluations: their rounds, accuracies and best accuracies ``(frames, pairs)``."""
        chosen = spread(len(self.rounds), most)
        now = np.full((len(chosen), len(self.pairs)), UNSEEN, dtype=np.uint8)
        best = now.copy()
        for row, number in enumerate(chosen):
            accuracy, top = self._rows[number]
            now[row, : len(accuracy)] = accuracy
            best[row, : len(top)] = np.where(accuracy == UNSEEN, UNSEEN, top)
        return [self.rounds[number] for number in chosen], now, best

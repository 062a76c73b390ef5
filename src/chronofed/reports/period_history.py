"""Accuracy by client and data set over time, a byte a value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.reports.downsample import evenly_spaced

UNSEEN = 255
# Steps of half a per cent: one byte a value.
LEVELS = 200
Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class PeriodHistory:
    """The lines of ``period_accuracy.jsonl`` with a byte a value, so that 10,000 rounds fit into memory.

    Attributes:
        pairs: Client and data set, in the order they were seen.
        held: Main classes of a data set and their shares.
        rounds: Rounds of the evaluations.
    """

    pairs: list[tuple[int, int]] = field(default_factory=list)
    held: dict[tuple[int, int], list[list[float]]] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    # accuracies and best accuracies so far, at each evaluation
    _rows: list[tuple[Bytes, Bytes]] = field(default_factory=list)
    _position: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, lines: Iterable[Mapping[str, Any]]) -> "PeriodHistory":
        """Add recorded lines."""
        for line in lines:
            table = line["accuracy"]
            pairs = [(client, key) for client, key, _ in table]
            # By far the most frequent case: the same pairs as before.
            same = pairs == self.pairs
            positions: Any = slice(None) if same else [self._position_of(pair) for pair in pairs]
            now = np.full(len(self.pairs), UNSEEN, dtype=np.uint8)
            accuracy = np.fromiter((a for _, _, a in table), np.float64, len(table))
            now[positions] = np.rint(LEVELS * accuracy)
            self.rounds.append(int(line["round"]))
            self._rows.append((now, self._best(now)))
            for client, key, classes in line.get("held", ()):
                self.held[client, key] = classes
        return self

    def _position_of(self, pair: tuple[int, int]) -> int:
        if pair not in self._position:
            self._position[pair] = len(self.pairs)
            self.pairs.append(pair)
        return self._position[pair]

    def _best(self, now: Bytes) -> Bytes:
        """Return the best accuracy so far of every pair."""
        seen = np.where(now == UNSEEN, 0, now)
        if self._rows:
            before = self._rows[-1][1]
            seen[: len(before)] = np.maximum(seen[: len(before)], before)
        return seen

    def downsample(self, most: int) -> tuple[list[int], Bytes, Bytes]:
        """Choose at most ``most`` evenly spaced evaluations.

        Returns:
            Their rounds, accuracies and best accuracies so far, the latter two ``(evaluations, pairs)``.
        """
        chosen = evenly_spaced(len(self.rounds), most)
        now = np.full((len(chosen), len(self.pairs)), UNSEEN, dtype=np.uint8)
        best = now.copy()
        for row, number in enumerate(chosen):
            accuracy, top = self._rows[number]
            now[row, : len(accuracy)] = accuracy
            best[row, : len(top)] = np.where(accuracy == UNSEEN, UNSEEN, top)
        return [self.rounds[number] for number in chosen], now, best

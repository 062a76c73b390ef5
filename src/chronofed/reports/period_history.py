"""Accuracy by client and data set over time, two bytes a value."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.reports.downsample import evenly_spaced

UNSEEN = 65535
# Steps of a hundredth of a point.
LEVELS = 10_000
Levels = NDArray[np.uint16]


def encoded(levels: Levels) -> str:
    """Encode levels of accuracy as text, two bytes each, the lower one first."""
    return base64.b64encode(levels.astype("<u2").tobytes()).decode()


@dataclass(slots=True)
class PeriodHistory:
    """The lines of ``period_accuracy.jsonl`` with two bytes a value, so that 10,000 rounds fit into memory.

    Attributes:
        pairs: Client and data set, in the order they were seen.
        held: Main classes of a data set and their shares.
        tested: The number of test samples behind the accuracy of a pair.
        rounds: Rounds of the evaluations.
        basis: ``rows`` if accuracies are measured on test rows of a pair's own, ``classes`` if they are those
            of its classes in the common test set.
        seen: The number of pairs seen by the last round; more than are followed if those are a sample.
        followed: The number of pairs of the last line.
    """

    pairs: list[tuple[int, int]] = field(default_factory=list)
    held: dict[tuple[int, int], list[list[float]]] = field(default_factory=dict)
    tested: dict[tuple[int, int], int] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    basis: str = "classes"
    seen: int = 0
    followed: int = 0
    # accuracies at each evaluation
    _rows: list[Levels] = field(default_factory=list)
    _position: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, lines: Iterable[Mapping[str, Any]]) -> "PeriodHistory":
        """Add recorded lines; those of version 0.1, which do not say what was measured, are left out."""
        for line in lines:
            if "basis" not in line:
                continue
            table = line["accuracy"]
            pairs = [(client, key) for client, key, _ in table]
            # By far the most frequent case: the same pairs as before.
            same = pairs == self.pairs
            positions: Any = slice(None) if same else [self._position_of(pair) for pair in pairs]
            now = np.full(len(self.pairs), UNSEEN, dtype=np.uint16)
            accuracy = np.fromiter((a for _, _, a in table), np.float64, len(table))
            now[positions] = np.rint(LEVELS * accuracy)
            self.rounds.append(int(line["round"]))
            self._rows.append(now)
            self.basis, self.seen, self.followed = line["basis"], line["pairs"], len(table)
            for (client, key, classes), tested in zip(line["held"], line["tested"], strict=True):
                self.held[client, key], self.tested[client, key] = classes, tested
        return self

    def _position_of(self, pair: tuple[int, int]) -> int:
        if pair not in self._position:
            self._position[pair] = len(self.pairs)
            self.pairs.append(pair)
        return self._position[pair]

    def downsample(self, most: int) -> tuple[list[int], Levels, Levels]:
        """Choose at most ``most`` evenly spaced evaluations.

        Returns:
            Their rounds, accuracies and best accuracies so far, the latter two ``(evaluations, pairs)``.
        """
        chosen = evenly_spaced(len(self.rounds), most)
        now = np.full((len(chosen), len(self.pairs)), UNSEEN, dtype=np.uint16)
        best = now.copy()
        for row, number in enumerate(chosen):
            now[row, : len(self._rows[number])] = self._rows[number]
        # All evaluations count for the best, also those that are not chosen.
        top = np.zeros(len(self.pairs), dtype=np.uint16)
        place = {number: row for row, number in enumerate(chosen)}
        for number, accuracy in enumerate(self._rows):
            seen = top[: len(accuracy)]
            np.maximum(seen, np.where(accuracy == UNSEEN, 0, accuracy), out=seen)
            if number in place:
                row = place[number]
                best[row] = np.where(now[row] == UNSEEN, UNSEEN, top)
        return [self.rounds[number] for number in chosen], now, best

"""Pairs of client and data set to follow: all, or a random sample of those seen so far."""

import heapq
from dataclasses import dataclass, field

from chronofed.core.seeds import entropy
from chronofed.training.period_accuracy import Pair


@dataclass(slots=True)
class FollowedPairs:
    """A sample of the pairs seen so far in which each is as likely as any other.

    Every pair has a random number of its own, and those with the least are followed. So a pair is followed from
    its first round on or never, and the sample depends on the seed and on the pairs alone, not on their order.

    Attributes:
        seed: Root of the run's randomness.
        most: Pairs to follow at most; ``None`` for all.
        seen: The number of pairs seen so far.
        pairs: Those that are followed, in the order of arrival.

    >>> followed = FollowedPairs(seed=0, most=2)
    >>> for client in range(5):
    ...     followed.add((client, 0))
    >>> len(followed.pairs), followed.seen
    (2, 5)
    """

    seed: int
    most: int | None
    seen: int = 0
    pairs: dict[Pair, None] = field(default_factory=dict)
    # Negative numbers of the pairs that are followed: a heap has its least first, and the largest is dropped.
    _numbers: list[tuple[int, Pair]] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        """Take note of a new pair; where there are too many, the one with the largest number is dropped."""
        self.seen += 1
        self.pairs[pair] = None
        heapq.heappush(self._numbers, (-entropy(self.seed, "followed-pair", *pair), pair))
        if self.most is not None and len(self.pairs) > self.most:
            _, dropped = heapq.heappop(self._numbers)
            del self.pairs[dropped]

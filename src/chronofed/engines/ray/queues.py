"""Which worker serves which clients next: every client has its own worker, and idle workers help out."""

from collections import deque
from collections.abc import Iterable, Sequence

from chronofed.clients.messages import Order

MOST = 64
"""Most clients of a batch."""
SHARE = 4
"""A batch is this part of what a worker has left, so that batches become small towards the end."""


def home(client: int, workers: int) -> int:
    """Return the worker that keeps a client's state, by a hash of the client's number."""
    # Fibonacci hashing: the numbers of a round's clients may be regular.
    return (client * 0x9E3779B97F4A7C15 % 2**64) * workers >> 64


class Queues:
    """The clients of one exchange that wait for a worker.

    Args:
        orders: The orders, those that take longest first.
        workers: Number of workers.
        sticky: Whether clients have a state, which their own worker keeps.
        most: Most clients of a batch.
    """

    def __init__(
        self, orders: Sequence[Order], workers: int, sticky: bool, most: int = MOST
    ) -> None:
        self._own: list[deque[Order]] = [deque() for _ in range(workers)]
        self._single: deque[Order] = deque()
        self._most = most
        for k, order in enumerate(orders):
            self._own[home(order.client, workers) if sticky else k % workers].append(order)

    def __len__(self) -> int:
        return len(self._single) + sum(map(len, self._own))

    def take(self, worker: int) -> list[Order]:
        """Return the next batch of a worker: of its own clients, or of the worker that has most left."""
        if self._single:
            return [self._single.popleft()]
        queue = self._own[worker] or max(self._own, key=len)
        count = min(max(len(queue) // SHARE, 1), self._most, len(queue))
        return [queue.popleft() for _ in range(count)]

    def put_back(self, orders: Iterable[Order]) -> None:
        """Queue orders again, one in a batch: if one of them brings its worker down, the others are spared."""
        self._single.extend(orders)

    def drop_above(self, client: int) -> None:
        """Leave out clients with higher numbers: a failure decides the outcome of the round."""
        for queue in (self._single, *self._own):
            kept = [order for order in queue if order.client < client]
            queue.clear()
            queue.extend(kept)

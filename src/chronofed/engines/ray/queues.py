"""Queues of clients: every client has its own worker, and idle workers help out."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from chronofed.clients.messages import Order

MOST = 64
"""Most clients of a batch."""
SHARE = 2
"""A batch is one of so many parts of what a worker has left, so that batches become small towards the end."""


def home(number: int, workers: int) -> int:
    """Return the worker that keeps a client's state, by a hash of the client's number, or of its part's."""
    # Fibonacci hashing: the numbers of a round's clients may be regular.
    return (number * 0x9E3779B97F4A7C15 % 2**64) * workers >> 64


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
        self._again: deque[list[Order]] = deque()
        self._most = most
        for k, order in enumerate(orders):
            self._own[home(order.client, workers) if sticky else k % workers].append(order)

    def __len__(self) -> int:
        return sum(map(len, self._again)) + sum(map(len, self._own))

    def take(self, worker: int) -> list[Order]:
        """Return the next batch of a worker: of its own clients, or of the worker that has most left."""
        if self._again:
            return self._again.popleft()
        queue = self._own[worker] or max(self._own, key=len)
        count = min(max(len(queue) // SHARE, 1), self._most, len(queue))
        return [queue.popleft() for _ in range(count)]

    def put_back(self, batch: Sequence[Order], *, apart: bool) -> None:
        """Queue a batch again, before all others.

        Args:
            batch: The orders.
            apart: Make each of them a batch of its own: if one brought its worker down, the others are spared.
        """
        self._again.extend([order] for order in batch) if apart else self._again.append(list(batch))

    def drop_above(self, client: int) -> None:
        """Leave out clients with higher numbers: a failure decides the outcome of the round."""
        for queue in self._own:
            kept = [order for order in queue if order.client < client]
            queue.clear()
            queue.extend(kept)
        self._again = deque(_below(self._again, client))


class PartQueues:
    """The parts of a partial sum that wait for a worker; a part is one batch.

    Args:
        parts: The orders of every part, in the order of clients.
        workers: Number of workers.
    """

    def __init__(self, parts: dict[int, list[Order]], workers: int) -> None:
        self._own: list[deque[list[Order]]] = [deque() for _ in range(workers)]
        for part, orders in parts.items():
            self._own[home(part, workers)].append(orders)

    def __len__(self) -> int:
        return sum(map(len, self._own))

    def take(self, worker: int) -> list[Order]:
        """Return the next part of a worker, or of the worker that has most left."""
        queue = self._own[worker] or max(self._own, key=len)
        return queue.popleft() if queue else []

    def put_back(self, batch: Sequence[Order], *, apart: bool) -> None:
        """Queue a part again, in any case all of it."""
        self._own[0].appendleft(list(batch))

    def drop_above(self, client: int) -> None:
        """Leave out clients with higher numbers: a failure decides the outcome of the round."""
        self._own = [deque(_below(queue, client)) for queue in self._own]


def _below(batches: Iterable[list[Order]], client: int) -> Iterator[list[Order]]:
    """Yield batches without the clients from a number on, and without those that are empty then."""
    for batch in batches:
        if below := [order for order in batch if order.client < client]:
            yield below

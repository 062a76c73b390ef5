"""The reference engine: this process, one client after another."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from chronofed.protocol import Locker, Method, Order, Result, serve
from chronofed.scenarios.base import Plan
from chronofed.types import Task


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block: faster for small models, and the same bits on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(slots=True)
class SerialEngine:
    """Serves every order in this process.

    Attributes:
        task: Where samples and models come from.
        lockers: What the simulated clients keep between their visits.
    """

    task: Task
    lockers: dict[int, Locker] = field(default_factory=dict)

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Serve the orders one by one.

        Yields:
            Results, in the order of the orders.
        """
        objective = self.task.objective()
        for order in orders:
            visit = plan.visits[order.client]
            samples = self.task.samples(visit.indices)
            with one_thread():
                locker = self.lockers.get(order.client)
                result, locker = serve(method, order, locker, objective, samples, visit.key)
            if method.stateful:
                self.lockers[order.client] = locker
            yield result

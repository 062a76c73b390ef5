"""The reference engine: this process, one client after another."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from chronofed.clock import Clock
from chronofed.protocol import Client, Locker, Method, Order, Result
from chronofed.scenarios.base import Plan
from chronofed.types import Objective, Task


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
        clock: Where time is booked.
    """

    task: Task
    lockers: dict[int, Locker] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    _objective: Objective | None = field(default=None, repr=False)

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Let the clients answer the exchange that begins a round.

        Yields:
            Answers, in the order of the orders.
        """
        for order in orders:
            with one_thread():
                answer = self._client(method, order, plan).prepare()
            yield answer

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Serve the orders one by one.

        Yields:
            Results, in the order of the orders.
        """
        for order in orders:
            with one_thread():
                result, locker = self._client(method, order, plan).serve()
            if method.stateful:
                self.lockers[order.client] = locker
            yield result

    def _client(self, method: Method, order: Order, plan: Plan) -> Client:
        if self._objective is None:
            self._objective = self.task.objective()
        visit, locker = plan.visits[order.client], self.lockers.get(order.client)
        with self.clock("data"):
            samples = self.task.samples(visit.indices)
        return Client(method, order, locker, self._objective, samples, visit.key, self.clock)

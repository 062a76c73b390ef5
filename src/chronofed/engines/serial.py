"""The reference engine: this process, one client after another."""

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field

from chronofed.clock import Clock
from chronofed.engines.base import Job, one_thread
from chronofed.engines.memory import keep_freed_memory
from chronofed.protocol import Client, Locker, Method, Order, Result
from chronofed.scenarios.base import Plan
from chronofed.types import Objective, Task

__all__ = ["SerialEngine", "one_thread"]


@dataclass(slots=True)
class SerialEngine:
    """Serves every order in this process.

    Attributes:
        task: Where samples and models come from.
        lockers: What the simulated clients keep between their visits; to limit the memory that it takes, a
            :class:`~chronofed.engines.lockers.LockerStore`.
        clock: Where time is booked.
    """

    task: Task
    lockers: MutableMapping[int, Locker] = field(default_factory=dict)
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

    def close(self) -> None:
        """There is nothing to end."""

    def _client(self, method: Method, order: Order, plan: Plan) -> Client:
        if self._objective is None:
            keep_freed_memory()
            self._objective = self.task.objective()
        job = Job(method, order, plan.visits[order.client], self.lockers.get(order.client))
        return job.client(self.task, self._objective, self.clock)

"""The reference engine: this process, one client after another."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from chronofed.clients.client import Client
from chronofed.clients.messages import Order, Result
from chronofed.core.types import Objective
from chronofed.engines.base import LocalEngine, keep_freed_memory, one_thread
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan


class SerialEngine(LocalEngine):
    """Train one client at a time in this process.

    Attributes:
        task: Source of samples and models.
        workers: Always 1.
        client_states: States that the simulated clients keep between their visits; to limit the memory that
            they take, a :class:`~chronofed.clients.cache.StateCache`.
        timer: Records the time spent in each phase.
    """

    max_workers: ClassVar[int | None] = 1
    summary: ClassVar[str] = "one client at a time"
    _objective: Objective | None = None

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Run the exchange that begins a round.

        Yields:
            The answers, in the order of ``orders``.
        """
        for order in orders:
            with one_thread():
                result = self._client(method, order, plan).prepare()
            yield result

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Train the clients one by one.

        Yields:
            The results, in the order of ``orders``.
        """
        for order in orders:
            with one_thread():
                result, client_state = self._client(method, order, plan).serve()
            self.store_state(method, order.client, client_state)
            yield result

    def _client(self, method: Method, order: Order, plan: Plan) -> Client:
        if self._objective is None:
            keep_freed_memory()
            self._objective = self.task.objective()
        return self.job(method, order, plan).build_client(self.task, self._objective, self.timer)

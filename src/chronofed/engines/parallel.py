"""Rounds of an engine with several workers: every idle worker gets the next client."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from chronofed.clients.messages import Exchange, Order, Result
from chronofed.engines.base import Answer, Job, LocalEngine, one_thread
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan

# Seconds of one wait. Ctrl-C may reach another thread than the waiting one, which notices only when it wakes.
POLL_S = 0.2

Outcome: TypeAlias = Answer | BaseException


def longest_first(orders: Iterable[Order], plan: Plan) -> list[Order]:
    """Sort clients by their number of samples, the most first, so that no long one is left for the end."""
    return sorted(orders, key=lambda o: (-len(plan.visits[o.client].indices), o.client))


class WholeRounds(LocalEngine):
    """An engine whose rounds succeed as a whole or not at all.

    Client states are replaced only after every client has answered. If clients fail, the error of the one with
    the lowest number is raised, for any number of workers.
    """

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Run the exchange that begins a round, several clients at a time.

        Yields:
            The answers, in the order in which they arrive.
        """
        for result, _ in self._collect("prepare", method, orders, plan):
            yield result

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Train the clients, several at a time.

        Yields:
            The results, in the order in which they arrive.
        """
        for result, client_state in self._collect("train", method, orders, plan):
            self.store_state(method, result.client, client_state)
            yield result

    @abstractmethod
    def close(self) -> None:
        """Stop all workers at once; the next order starts new ones."""

    @abstractmethod
    def _start_workers(self, count: int) -> None:
        """Have at least ``count`` workers, numbered from 0."""

    @abstractmethod
    def _outcomes(
        self, exchange: Exchange, method: Method, queue: list[Order], plan: Plan
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield client and outcome; after a failure start only clients with a lower number."""

    def _max_in_flight(self, clients: int) -> int:
        """Return how many of a round's clients may be in flight when only few remain to be started.

        While more remain, ``workers`` clients are.
        """
        return min(self.workers, clients)

    def _collect(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        """Return all answers; after an interrupt or the death of a worker, stop the others."""
        queue = longest_first(orders, plan)
        try:
            with one_thread():
                self._start_workers(self._max_in_flight(len(queue)))
                outcomes = dict(self._outcomes(exchange, method, queue, plan))
        except BaseException:
            self.close()
            raise
        for client in sorted(outcomes):
            outcome = outcomes[client]
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes.values() if not isinstance(outcome, BaseException)]


class ParallelEngine(WholeRounds):
    """An engine with several workers, each of which has one client at a time."""

    @abstractmethod
    def _submit(self, worker: int, exchange: Exchange, job: Job) -> None:
        """Give a job to an idle worker."""

    @abstractmethod
    def _next_outcome(self) -> tuple[int, int, Outcome]:
        """Wait for any busy worker; return its number, its client and the outcome."""

    def _outcomes(
        self, exchange: Exchange, method: Method, queue: list[Order], plan: Plan
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield client and outcome; after a failure start only clients with a lower number."""
        most = self._max_in_flight(len(queue))
        todo, idle = deque(queue), list(reversed(range(most)))
        while todo or len(idle) < most:
            while todo and self._may_start(len(todo), most - len(idle), most):
                job = self.job(method, todo.popleft(), plan)
                self._submit(idle.pop(), exchange, job)
            worker, client, outcome = self._next_outcome()
            idle.append(worker)
            if isinstance(outcome, BaseException):
                todo = deque(order for order in todo if order.client < client)
            yield client, outcome

    def _may_start(self, waiting: int, busy: int, most: int) -> bool:
        """Decide whether to start one more client."""
        return busy < (most if waiting + busy <= most else self.workers)

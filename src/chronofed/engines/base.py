"""What engines share: a client at work, and the rounds of an engine with several workers."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias

import torch

from chronofed.clock import Clock
from chronofed.errors import IncompatibleError
from chronofed.protocol import Client, Engine, Locker, Method, Order, Result
from chronofed.scenarios.base import ELSEWHERE, Plan, Visit
from chronofed.types import Objective, Task

# Seconds that are waited at a time. Ctrl-C may reach another thread than the one that waits, and is seen only
# when that one wakes.
PATIENCE = 0.2

Exchange: TypeAlias = Literal["prepare", "train"]
Answer: TypeAlias = tuple[Result, Locker | None]
Outcome: TypeAlias = Answer | BaseException


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block: faster for small models, and the same bits on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Job:
    """An order, with what its client brings along.

    Attributes:
        method: How to learn.
        order: What to do.
        visit: Which data the client holds.
        locker: What it kept from earlier visits; ``None`` on the first.
    """

    method: Method
    order: Order
    visit: Visit
    locker: Locker | None

    def client(
        self, task: Task, objective: Objective, clock: Clock, *, draws: bool = True
    ) -> Client:
        """The client with its samples; ``draws`` as in :class:`~chronofed.protocol.Client`.

        Raises:
            IncompatibleError: If its samples are not on this machine.
        """
        if not len(self.visit.indices):
            raise IncompatibleError(ELSEWHERE)
        with clock("data"):
            samples = task.samples(self.visit.indices)
        key = self.visit.key
        return Client(self.method, self.order, self.locker, objective, samples, key, clock, draws)


def answer(client: Client, exchange: Exchange) -> Answer:
    """What a client has to say in one of a round's two exchanges."""
    return (client.prepare(), None) if exchange == "prepare" else client.serve()


def longest_first(orders: Iterable[Order], plan: Plan) -> list[Order]:
    """Clients with many samples first, so that none of them is left to run alone at the end."""
    return sorted(orders, key=lambda o: (-len(plan.visits[o.client].indices), o.client))


class LocalEngine(Engine, Protocol):
    """An engine on this machine, which may hold threads or processes."""

    @property
    def task(self) -> Task:
        """What is learned; use it instead of one's own, so that data that workers share are there once."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class ParallelEngine(ABC):
    """An engine with several workers: hands every idle one the next client.

    A round succeeds as a whole or not at all: lockers are replaced only when every client has
    answered. Where clients fail, the error is that of the first by number, whatever the number of workers.

    Attributes:
        task: Where samples and models come from.
        workers: Clients that are served at a time; by default as many as there are usable cores.
        lockers: What the simulated clients keep between their visits.
        clock: Where time is booked: that of all workers together, which is more than passes.
    """

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        lockers: MutableMapping[int, Locker] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers: expected at least 1, not {workers}")
        self.task = task
        self.workers = workers or usable_cores()
        self.lockers: MutableMapping[int, Locker] = {} if lockers is None else lockers
        self.clock = clock or Clock()

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Let the clients answer the exchange that begins a round.

        Yields:
            Answers, as they came.
        """
        for result, _ in self._gather("prepare", method, orders, plan):
            yield result

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Serve the orders, several at a time.

        Yields:
            Results, as they came.
        """
        for result, locker in self._gather("train", method, orders, plan):
            if method.stateful and locker is not None:
                self.lockers[result.client] = locker
            yield result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End all workers, at once; the next order would start new ones."""

    @abstractmethod
    def _hire(self, count: int) -> None:
        """Have at least so many workers, numbered from 0."""

    @abstractmethod
    def _hand(self, worker: int, exchange: Exchange, job: Job) -> None:
        """Give an idle worker something to do."""

    @abstractmethod
    def _next(self) -> tuple[int, int, Outcome]:
        """Wait for any worker that is busy: its number, its client and what came of it."""

    def _places(self, clients: int) -> int:
        """Most clients of a round's that are under way at a time: while more remain, ``workers`` are."""
        return min(self.workers, clients)

    def _gather(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        """All answers; after an interrupt, or the death of a worker, nobody is left at work."""
        queue = longest_first(orders, plan)
        try:
            with one_thread():
                self._hire(self._places(len(queue)))
                outcomes = dict(self._outcomes(exchange, method, queue, plan))
        except BaseException:
            self.close()
            raise
        for client in sorted(outcomes):
            outcome = outcomes[client]
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes.values() if not isinstance(outcome, BaseException)]

    def _outcomes(
        self, exchange: Exchange, method: Method, queue: list[Order], plan: Plan
    ) -> Iterator[tuple[int, Outcome]]:
        """By client; after a failure only clients with a lower number are still served."""
        places = self._places(len(queue))
        todo, idle = deque(queue), list(reversed(range(places)))
        while todo or len(idle) < places:
            while todo and self._room(len(todo), places - len(idle), places):
                order = todo.popleft()
                locker = self.lockers.get(order.client)
                job = Job(method, order, plan.visits[order.client], locker)
                self._hand(idle.pop(), exchange, job)
            worker, client, outcome = self._next()
            idle.append(worker)
            if isinstance(outcome, BaseException):
                todo = deque(order for order in todo if order.client < client)
            yield client, outcome

    def _room(self, waiting: int, busy: int, places: int) -> bool:
        """Whether to start one more client."""
        return busy < (places if waiting + busy <= places else self.workers)

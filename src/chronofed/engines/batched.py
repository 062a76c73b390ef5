"""All clients of a round as a few batched programs, for linear models and MLPs."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import local as ThreadLocal
from typing import Self, TypeVar, cast

import torch

from chronofed.backbones.wrapper import parts
from chronofed.clock import Clock
from chronofed.engines.base import Job, usable_cores
from chronofed.engines.memory import keep_freed_memory
from chronofed.engines.stacked import Group, Trainee, own, train_together
from chronofed.errors import IncompatibleError
from chronofed.local import Train
from chronofed.protocol import Client, Locker, Method, Observed, Order, Result
from chronofed.scenarios.base import Plan
from chronofed.stacking import works_stacked
from chronofed.tasks.batched_loop import compiled
from chronofed.tasks.batched_mlp import BatchedMlp, Layout, Workspace, layout
from chronofed.tasks.batched_objective import BatchedObjective
from chronofed.types import Objective, Task, Vector

MOST_CLIENTS = 32  # that train as one: more only cost memory
FEW = 4  # clients: not worth sharing among workers
CACHE = 2**23  # bytes of parameters and inputs that train as one: more are slower, not faster
Answer = TypeVar("Answer")


def unsupported(method: Method, task: Task) -> str | None:
    """Why a method on a task cannot be batched, in one line; ``None`` if it can."""
    form = layout(task.objective())
    return form if isinstance(form, str) else _unstackable(method)


def _unstackable(method: Method) -> str | None:
    for part in parts(method.backbone):
        for name in ("gradient", "direction"):
            if not works_stacked(getattr(part, name)):
                where = f"{type(part).__name__}.{name}"
                return f"{where} is not declared to work on stacked clients (@stacked)"
    return None


@dataclass(frozen=True, slots=True)
class Desk:
    """What a worker has for itself."""

    objective: Objective
    kernel: BatchedMlp


@dataclass(slots=True)
class BatchedEngine:
    """Serves the orders of a round some clients at a time, all of them as one program.

    What a client does once a round (recalling, remembering, probing) it does by itself. Results agree with
    :class:`~chronofed.engines.serial.SerialEngine` up to rounding, and are the same bits for any number of
    workers, but not for any ``chunk``.

    Attributes:
        task: Where samples and models come from.
        workers: Threads; by default one for each processor.
        lockers: What the simulated clients keep between their visits.
        clock: Where time is booked; that of workers is added up.
        chunk: Clients that train as one; by default as many as fit into the cache.
    """

    task: Task
    workers: int | None = None
    lockers: MutableMapping[int, Locker] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    chunk: int | None = None
    _desks: ThreadLocal = field(default_factory=ThreadLocal, init=False, repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Let the clients answer the exchange that begins a round.

        Yields:
            Answers.
        """
        for answers in self._spread(self._answer, method, list(orders), plan):
            yield from answers

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Serve the orders.

        Yields:
            Results, those of clients with much data first.

        Raises:
            IncompatibleError: If method or model cannot be batched.
        """
        for answers in self._spread(self._serve, method, list(orders), plan):
            for result, locker in answers:
                if method.stateful:
                    self.lockers[result.client] = locker
                yield result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the workers go."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _spread(
        self,
        work: Callable[[list[Job]], Answer],
        method: Method,
        orders: list[Order],
        plan: Plan,
    ) -> Iterator[Answer]:
        """Do work in chunks; only as many as there are workers, and one more, are under way."""
        reason = _unstackable(method)
        if reason is not None:
            raise IncompatibleError(f"engine batched: {reason}")
        workers = self.workers or usable_cores()
        pending: deque[Future[Answer]] = deque()
        try:
            for chunk in self._chunks(orders, plan):
                jobs = [
                    Job(method, o, plan.visits[o.client], self.lockers.get(o.client)) for o in chunk
                ]
                pending.append(self._threads(workers).submit(work, jobs))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _threads(self, workers: int) -> ThreadPoolExecutor:
        if self._pool is None:
            keep_freed_memory()
            compiled()  # here, since warnings are silenced for all threads or none
            self._pool = ThreadPoolExecutor(workers, "batched", torch.set_num_threads, (1,))
        return self._pool

    def _chunks(self, orders: list[Order], plan: Plan) -> Iterator[list[Order]]:
        """Clients with about as much data together, those with most first, in chunks of equal length.

        Newcomers have nothing to replay, and so smaller last mini-batches than others: they come last.
        """
        sizes = {order.client: len(plan.visits[order.client].indices) for order in orders}
        orders = sorted(orders, key=lambda o: (-sizes[o.client], o.client not in self.lockers))
        form = self._desk().kernel.form
        most = self.chunk or chunk_size(form, orders[0].train, max(sizes.values()))
        shares = 1 if self.chunk or len(orders) < FEW else 2 if len(orders) < 3 * FEW else 4
        number = shares * math.ceil(len(orders) / most / shares)  # 2 or 4 workers do as much each
        ends = [len(orders) * k // number for k in range(number + 1)]
        return (orders[start:end] for start, end in pairwise(ends))

    def _answer(self, jobs: list[Job]) -> list[Result]:
        return [client.prepare() for client in self._clients(jobs)]

    def _serve(self, jobs: list[Job]) -> list[tuple[Result, Locker]]:
        clients = self._clients(jobs)
        lockers = [client.opened() for client in clients]
        both = list(zip(clients, lockers, strict=True))
        trainees = [Trainee(locker.state, client.recall(locker)) for client, locker in both]
        with self.clock("train"):
            backbone, server = jobs[0].method.backbone, jobs[0].order.server
            groups = list(train_together(backbone, server, trainees, self._desk().kernel))
        with self.clock("memory"):
            observed = self._observed(clients, groups)
        trained = {
            i: end for group in groups for i, end in zip(group.members, group.trained, strict=True)
        }
        return [
            _kept_apart(
                client.conclude(locker, trained[i], observed.get(i)),
                trained[i].params,
                client.order.round,
            )
            for i, (client, locker) in enumerate(both)
        ]

    def _observed(self, clients: list[Client], groups: list[Group]) -> dict[int, Observed]:
        """What the memory makes of many clients at once, if it can; by their places."""
        memory, desk, found = clients[0].method.memory, self._desk(), dict[int, Observed]()
        if not works_stacked(memory.observe):
            return found
        for group in groups:
            some = [clients[i] for i in group.members]
            generators = [client.observer() for client in some]
            objective = cast(Objective, BatchedObjective(desk.kernel, desk.objective.names))
            samples = [client.samples for client in some]
            records = memory.observe_together(objective, group.params, samples, generators)
            if records is not None:
                found.update(zip(group.members, map(Observed, records, generators), strict=True))
        return found

    def _clients(self, jobs: list[Job]) -> list[Client]:
        objective = self._desk().objective
        return [job.client(self.task, objective, self.clock, draws=False) for job in jobs]

    def _desk(self) -> Desk:
        """This thread's own model and kernel."""
        desk: Desk | None = getattr(self._desks, "desk", None)
        if desk is None:
            objective = self.task.objective()
            form = layout(objective)
            if isinstance(form, str):
                raise IncompatibleError(f"engine batched: {form}")
            desk = self._desks.desk = Desk(objective, BatchedMlp(form, Workspace()))
        return desk


def _kept_apart(
    answer: tuple[Result, Locker], params: Vector, round_: int
) -> tuple[Result, Locker]:
    """An answer that holds no view of ``params``, whatever the memory thought fit to keep this round."""
    result, locker = answer
    if result.kept:
        result = replace(result, kept=own(result.kept, params))
    if any(keepsake.round == round_ for keepsake in locker.kept):
        kept = tuple(
            replace(keepsake, record=own(keepsake.record, params))
            if keepsake.round == round_
            else keepsake
            for keepsake in locker.kept
        )
        locker = replace(locker, kept=kept)
    return result, locker


def chunk_size(form: Layout, train: Train, samples: int) -> int:
    """How many clients with so many samples train as one."""
    rows = samples if train.batch_size == "full" else min(train.batch_size, samples)
    numbers = form.size + rows * form.width
    return max(1, min(MOST_CLIENTS, CACHE // (numbers * form.dtype.itemsize)))

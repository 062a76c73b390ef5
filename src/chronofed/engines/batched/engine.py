"""All clients of a round as a few batched programs, for linear models and MLPs."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import local as ThreadLocal
from typing import ClassVar, TypeVar

import torch

from chronofed.clients.client import Client, Observed
from chronofed.clients.messages import Order, Result
from chronofed.clients.state import ClientState
from chronofed.core.errors import IncompatibleError
from chronofed.core.stacking import works_stacked
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Objective, Task, Vector
from chronofed.engines.base import Job, LocalEngine, keep_freed_memory
from chronofed.engines.batched.kernel import BatchedMlp
from chronofed.engines.batched.layout import Layout, layout_of
from chronofed.engines.batched.loop import compiled
from chronofed.engines.batched.objective import BatchedObjective
from chronofed.engines.batched.stack import Group, Trainee, clone_views, train_together
from chronofed.engines.batched.support import unsupported, unsupported_method, unsupported_orders
from chronofed.engines.batched.workspace import Workspace
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan

# Most clients that train as one; more only cost memory.
MAX_CLIENTS = 32
# Fewer clients than this are not worth sharing among workers.
MIN_SHARED_CLIENTS = 4
# Parameters and inputs of clients that train as one; more do not fit into the cache and are slower.
CACHE_BYTES = 2**23
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A worker's own model and kernel."""

    objective: Objective
    kernel: BatchedMlp


class BatchedEngine(LocalEngine):
    """Train groups of clients as one program each.

    What a client does once per round (recalling, remembering, probing) it does by itself. Results agree with
    :class:`~chronofed.engines.serial.SerialEngine` up to rounding, and are the same bits for any number of
    workers, but not for any ``chunk``.

    Attributes:
        task: Source of samples and models.
        workers: Number of threads; by default the number of usable cores.
        client_states: States that the simulated clients keep between their visits.
        timer: Records the time spent in each phase; the times of all workers are added up.
        chunk: Number of clients that train as one; by default as many as fit into the cache.
    """

    summary: ClassVar[str] = "all clients of a round train as one program"

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        client_states: MutableMapping[int, ClientState] | None = None,
        timer: PhaseTimer | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(task, workers, client_states, timer)
        self.chunk = chunk
        self._contexts = ThreadLocal()
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def unsupported(cls, method: Method, task: Task, train: Train) -> str | None:
        """Refuse what the kernel does not compute exactly as a single client would."""
        return unsupported(method, task, train)

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Run the exchange that begins a round.

        Yields:
            The answers.
        """
        for answers in self._spread(self._answer, method, list(orders), plan):
            yield from answers

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Train the clients.

        Yields:
            The results, those of clients with most data first.

        Raises:
            IncompatibleError: If the method or the model cannot be batched.
        """
        for answers in self._spread(self._serve, method, list(orders), plan):
            for result, client_state in answers:
                self.store_state(method, result.client, client_state)
                yield result

    def close(self) -> None:
        """Stop the threads; the next order starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _spread(
        self,
        work: Callable[[list[Job]], Found],
        method: Method,
        orders: list[Order],
        plan: Plan,
    ) -> Iterator[Found]:
        """Work in chunks; at most one more than there are workers is in flight."""
        reason = unsupported_method(method) or unsupported_orders(orders)
        if reason is not None:
            raise IncompatibleError(f"engine batched: {reason}")
        pending: deque[Future[Found]] = deque()
        try:
            for chunk in self._chunks(orders, plan):
                jobs = [self.job(method, order, plan) for order in chunk]
                pending.append(self._threads().submit(work, jobs))
                if len(pending) > self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            keep_freed_memory()
            # Compile here: warnings are silenced for all threads or for none.
            compiled()
            self._pool = ThreadPoolExecutor(self.workers, "batched", torch.set_num_threads, (1,))
        return self._pool

    def _chunks(self, orders: list[Order], plan: Plan) -> Iterator[list[Order]]:
        """Group clients of similar size, the largest first, into chunks of equal length.

        Newcomers replay nothing, and so have smaller last mini-batches than others: they come last.
        """
        sizes = {order.client: len(plan.visits[order.client].indices) for order in orders}
        orders = sorted(
            orders, key=lambda o: (-sizes[o.client], o.client not in self.client_states)
        )
        layout, few = self._context().kernel.layout, MIN_SHARED_CLIENTS
        most = self.chunk or chunk_size(layout, orders[0].train, max(sizes.values()))
        shares = 1 if self.chunk or len(orders) < few else 2 if len(orders) < 3 * few else 4
        # A multiple of the shares, so that 2 or 4 workers have equally many.
        number = shares * math.ceil(len(orders) / most / shares)
        ends = [len(orders) * k // number for k in range(number + 1)]
        return (orders[start:end] for start, end in pairwise(ends))

    def _answer(self, jobs: list[Job]) -> list[Result]:
        return [client.prepare() for client in self._clients(jobs)]

    def _serve(self, jobs: list[Job]) -> list[tuple[Result, ClientState]]:
        clients = self._clients(jobs)
        client_states = [client.starting_state() for client in clients]
        both = list(zip(clients, client_states, strict=True))
        trainees = [
            Trainee(client_state.backbone_state, client.local(client_state))
            for client, client_state in both
        ]
        with self.timer("train"):
            backbone, server = jobs[0].method.composed, jobs[0].order.server
            groups = list(train_together(backbone, server, trainees, self._context().kernel))
        with self.timer("memory"):
            observed = self._observed(clients, groups)
        trained = {
            i: end for group in groups for i, end in zip(group.members, group.trained, strict=True)
        }
        return [
            _without_views(
                client.conclude(client_state, trained[i], observed.get(i)),
                trained[i].params,
                client.order.round,
            )
            for i, (client, client_state) in enumerate(both)
        ]

    def _observed(self, clients: list[Client], groups: list[Group]) -> dict[int, Observed]:
        """Let the memory observe many clients at once, if it can; by their positions."""
        memory, found = clients[0].method.memory, dict[int, Observed]()
        if not works_stacked(memory.observe):
            return found
        for group in groups:
            some = [clients[i] for i in group.members]
            generators = [client.observe_generator() for client in some]
            objective = BatchedObjective(self._context().kernel, len(some))
            samples = [client.samples for client in some]
            records = memory.observe_together(objective, group.params, samples, generators)
            if records is not None:
                found.update(zip(group.members, map(Observed, records, generators), strict=True))
        return found

    def _clients(self, jobs: list[Job]) -> list[Client]:
        task, objective, timer = self.task, self._context().objective, self.timer
        return [job.build_client(task, objective, timer, uses_global_rng=False) for job in jobs]

    def _context(self) -> WorkerContext:
        """Return this thread's own model and kernel."""
        context: WorkerContext | None = getattr(self._contexts, "context", None)
        if context is None:
            objective = self.task.objective()
            layout = layout_of(objective)
            if isinstance(layout, str):
                raise IncompatibleError(f"engine batched: {layout}")
            context = WorkerContext(objective, BatchedMlp(layout, Workspace()))
            self._contexts.context = context
        return context


def _without_views(
    answer: tuple[Result, ClientState], params: Vector, round_: int
) -> tuple[Result, ClientState]:
    """Copy views of ``params`` that the memory kept this round."""
    result, client_state = answer
    if result.record:
        result = replace(result, record=clone_views(result.record, params))
    if any(item.round == round_ for item in client_state.items):
        kept = tuple(
            replace(item, record=clone_views(item.record, params)) if item.round == round_ else item
            for item in client_state.items
        )
        client_state = replace(client_state, items=kept)
    return result, client_state


def chunk_size(layout: Layout, train: Train, samples: int) -> int:
    """Return how many clients with so many samples train as one."""
    rows = samples if train.batch_size == "full" else min(train.batch_size, samples)
    numbers = layout.size + rows * layout.width
    return max(1, min(MAX_CLIENTS, CACHE_BYTES // (numbers * layout.dtype.itemsize)))

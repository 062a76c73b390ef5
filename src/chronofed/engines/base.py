"""The contract of an engine, and the base class of all engines on one machine.

An engine maps orders to results. It trains the clients of a round, in any order and wherever it likes, and
must return the results that :class:`~chronofed.engines.serial.SerialEngine` returns, bit for bit.

To write an engine, subclass :class:`LocalEngine`:

* A run builds it with the keyword arguments ``task``, ``workers``, ``client_states`` and ``timer``, and closes
  it in the end.
* :meth:`~LocalEngine.prepare` and :meth:`~LocalEngine.map` receive the method, the orders of one round and the
  round's plan. They yield one :class:`~chronofed.clients.messages.Result` per order, in any order.
* :meth:`~LocalEngine.job` joins an order with its client's data and state, :meth:`Job.build_client` builds the
  :class:`~chronofed.clients.client.Client`, and that client does all the work: ``prepare()`` or ``serve()``.
* :meth:`~LocalEngine.store_state` keeps a client's state for its next visit. ``prepare`` must not store any.
* A client computes inside :func:`one_thread`, because the number of torch threads changes the rounding.
* An objective serves one client at a time: every thread or process needs one of its own
  (``task.objective()``).
* ``max_workers`` and :meth:`~LocalEngine.unsupported` declare what the engine cannot do.

A specification names such a class as ``engine = "package.module:Class"``; nothing has to be registered.
"""

import ctypes
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol, Self, TypeAlias, runtime_checkable

import torch

from chronofed.clients.client import Client
from chronofed.clients.messages import Exchange, Order, Result
from chronofed.clients.state import ClientState
from chronofed.core.errors import IncompatibleError
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Objective, Record, Task
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.scenarios.base import NO_LOCAL_DATA, Plan, Visit

Answer: TypeAlias = tuple[Result, ClientState | None]

# Parameters of glibc's mallopt.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


class Engine(Protocol):
    """Map orders to results; all that the training loop needs of an engine."""

    @property
    def client_states(self) -> MutableMapping[int, ClientState]:
        """Client states by client number; empty if the clients keep them on other machines."""
        ...

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Run the exchange that begins a round; yield the answers in any order."""
        ...

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Train the clients; yield the results in any order."""
        ...


class ManagedEngine(Engine, Protocol):
    """An engine that a run builds, uses and closes."""

    @property
    def task(self) -> Task:
        """The task; callers use this one instead of their own, so that shared data exist once."""
        ...

    def close(self) -> None:
        """Stop all workers."""
        ...


@runtime_checkable
class StatefulEngine(Protocol):
    """An engine that learns about its clients; a resumed run gives it back its state."""

    def state_dict(self) -> Record:
        """Return the state to write to a checkpoint."""
        ...

    def load_state_dict(self, state_dict: Record) -> None:
        """Continue from the state that :meth:`state_dict` returned."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """An order with everything that its client needs.

    Attributes:
        method: The method.
        order: The order.
        visit: The data that the client holds.
        client_state: The state that it kept from earlier visits; ``None`` on the first.
    """

    method: Method
    order: Order
    visit: Visit
    client_state: ClientState | None

    def build_client(
        self, task: Task, objective: Objective, timer: PhaseTimer, *, uses_global_rng: bool = True
    ) -> Client:
        """Load the samples and build the client.

        Args:
            task: Source of the samples.
            objective: The model; no other client may use it until this one is done.
            timer: Records the time spent.
            uses_global_rng: As in :class:`~chronofed.clients.client.Client`.

        Returns:
            The client, ready to ``prepare()`` or ``serve()``.

        Raises:
            IncompatibleError: If its samples are not on this machine.
        """
        if not len(self.visit.indices):
            raise IncompatibleError(NO_LOCAL_DATA)
        with timer("data"):
            samples = task.samples(self.visit.indices)
        return Client(
            self.method,
            self.order,
            self.client_state,
            objective,
            samples,
            self.visit.key,
            timer,
            uses_global_rng,
        )


def answer(client: Client, exchange: Exchange) -> Answer:
    """Let a client do its part in one of the two exchanges of a round."""
    return (client.prepare(), None) if exchange == "prepare" else client.serve()


class LocalEngine(ABC):
    """Base of the engines on this machine.

    Attributes:
        task: Source of samples and models.
        workers: Number of clients to train in parallel; by default the number of usable cores.
        client_states: States that the simulated clients keep between their visits; to limit the memory that
            they take, a :class:`~chronofed.clients.cache.StateCache`.
        timer: Records the time spent in each phase; the times of all workers are added up.

    Raises:
        ValueError: If ``workers`` is less than 1.
    """

    max_workers: ClassVar[int | None] = None
    """Most workers that the engine can use; ``None`` for any number."""
    clustered: ClassVar[bool] = False
    """True if it uses several machines; then it is built with the keyword argument ``cluster``, too."""
    summary: ClassVar[str] = ""
    """The way it runs clients, in a few words; recorded as the reason when ``auto`` chooses it."""

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        client_states: MutableMapping[int, ClientState] | None = None,
        timer: PhaseTimer | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers: expected at least 1, not {workers}")
        self.task = task
        self.workers = min(workers or usable_cores(), self.max_workers or sys.maxsize)
        self.client_states: MutableMapping[int, ClientState] = (
            {} if client_states is None else client_states
        )
        self.timer = timer or PhaseTimer()

    @classmethod
    def unsupported(cls, method: Method, task: Task, train: Train) -> str | None:
        """Return the reason, in one line, why the engine cannot train this; ``None`` if it can."""
        return None

    @abstractmethod
    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Run the exchange that begins a round; no client state changes.

        Yields:
            The clients' answers, in any order.
        """

    @abstractmethod
    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Train the clients and store their states.

        Yields:
            The clients' results, in any order.
        """

    def close(self) -> None:  # noqa: B027, an engine without workers has nothing to stop
        """Stop all workers; the next order starts new ones."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def job(self, method: Method, order: Order, plan: Plan) -> Job:
        """Join an order with its client's data and state."""
        client = order.client
        return Job(method, order, plan.visits[client], self.client_states.get(client))

    def store_state(self, method: Method, client: int, state: ClientState | None) -> None:
        """Keep a client's state for its next visit, if the method or its optimiser needs one."""
        if state is not None and (method.stateful or state.optimizer_state):
            self.client_states[client] = state


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread inside the block: faster for small models, and the same bits on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next round's updates, because new pages are slow.

    Returns:
        Whether it does; only glibc has this setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {M_TRIM_THRESHOLD: 2**30, M_TOP_PAD: 2**26, M_MMAP_THRESHOLD: 2**25}
    return all(mallopt(*setting) == 1 for setting in settings.items())

"""An engine of threads: they share this process's data, and torch computes without Python's lock."""

import weakref
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, ClassVar, cast

import numpy as np
import torch

from chronofed.clients.messages import Exchange, Order
from chronofed.clients.state import ClientState
from chronofed.core.errors import IncompatibleError
from chronofed.core.seeds import global_torch_seed
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Batch, Objective, Task
from chronofed.engines.base import Answer, Job, answer, keep_freed_memory
from chronofed.engines.parallel import POLL_S, Outcome, ParallelEngine
from chronofed.engines.scheduler import Scheduler, Slot
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan

# The slow calls of an objective. A client can be paused before each of them.
STEPS = frozenset(
    {
        "gradient",
        "loss_gradient",
        "squared_gradients",
        "gradient_moments",
        "hessian_product",
        "gradient_and_products",
        "input_gradient",
    }
)

MODEL_DRAWS = "the model draws random numbers while it trains (dropout?)"


class ThreadEngine(ParallelEngine):
    """Train several clients at a time in this process, each in a thread with a model of its own.

    If the clients of a round do not divide evenly among the workers, the last ones share them: of 7 equal
    clients on 2 workers, the last 3 are in flight at once, and 2 of them compute. So there are up to
    ``2 * workers - 1`` models.

    All threads share torch's global generator. Code that draws from it is refused: a model at once, anything
    else, such as a custom backbone, after its first round.

    Attributes:
        task: Source of samples and models.
        workers: Number of clients that compute at a time; by default the number of usable cores.
        client_states: States that the simulated clients keep between their visits.
        timer: Records the time spent in each phase; the times of all threads are added up.

    Raises:
        IncompatibleError: If the model draws from the global generator, as dropout does.
    """

    summary: ClassVar[str] = "clients in parallel"

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        client_states: MutableMapping[int, ClientState] | None = None,
        timer: PhaseTimer | None = None,
    ) -> None:
        super().__init__(task, workers, client_states, timer)
        if uses_global_rng(task):
            raise _refusal(MODEL_DRAWS)
        keep_freed_memory()
        self._open()

    @classmethod
    def unsupported(cls, method: Method, task: Task, train: Train) -> str | None:
        """Refuse a model that draws from the global generator."""
        return MODEL_DRAWS if uses_global_rng(task) else None

    def close(self) -> None:
        """Stop all threads; a client in training stops at its next gradient."""
        self._pool.stop()
        self._at_exit.detach()
        self._open()

    def _open(self) -> None:
        self._pool = WorkerPool(self.task, self.timer, self.workers)
        self._at_exit = weakref.finalize(self, self._pool.stop)

    def _collect(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        before = torch.default_generator.get_state()
        answers = super()._collect(exchange, method, orders, plan)
        if not torch.equal(before, torch.default_generator.get_state()):
            torch.default_generator.set_state(before)
            raise _refusal("something drew from torch's global generator while clients trained")
        return answers

    def _max_in_flight(self, clients: int) -> int:
        return min(self.workers + clients % self.workers, clients)

    def _start_workers(self, count: int) -> None:
        while len(self._pool.threads) < count:
            self._pool.start_worker()

    def _submit(self, worker: int, exchange: Exchange, job: Job) -> None:
        self._pool.submit(worker, exchange, job)

    def _next_outcome(self) -> tuple[int, int, Outcome]:
        while True:
            with suppress(Empty):
                return self._pool.outbox.get(timeout=POLL_S)


def _refusal(what: str) -> IncompatibleError:
    reason = "the order of draws in threads cannot be reproduced; use processes"
    return IncompatibleError(f"threads: {what}, and {reason}")


def uses_global_rng(task: Task) -> bool:
    """Decide whether a task draws from torch's global generator while it trains, as dropout does.

    Augments samples and computes one gradient as in training, and looks whether the generator moved. There
    are two samples, because BatchNorm cannot train on one. The generator is restored.
    """
    objective, (params, buffers) = task.objective(), task.initial(0)
    batch = Batch.mean(task.samples(np.zeros(2, dtype=np.int64)))
    objective.buffers = buffers
    with global_torch_seed(0, "draws"):
        before = torch.default_generator.get_state()
        x = objective.augment(batch.x, torch.Generator().manual_seed(0))
        objective.gradient(params, Batch(x, batch.y, batch.weight))
        return not torch.equal(before, torch.default_generator.get_state())


class WorkerPool:
    """Threads with an inbox each.

    The pool holds no reference to its engine, so that an engine that nobody closes can be collected.
    """

    def __init__(self, task: Task, timer: PhaseTimer, workers: int) -> None:
        self.task = task
        self.timer = timer
        self.scheduler = Scheduler(workers)
        self.slots: list[Slot] = []
        self.threads: list[Thread] = []
        self.inboxes: list[SimpleQueue[tuple[Exchange, Job] | None]] = []
        self.outbox: SimpleQueue[tuple[int, int, Outcome]] = SimpleQueue()

    def start_worker(self) -> None:
        """Start one more thread. Its model is built here, because initialisers use the global generator."""
        slot = Slot(self.scheduler)
        # A proxy: it has every attribute of the objective that it wraps.
        objective = cast("Objective", _PausableObjective(self.task.objective(), slot))
        self.slots.append(slot)
        self.inboxes.append(SimpleQueue())
        number = len(self.threads)
        # A daemon, because Python joins other threads before it calls the finalizers.
        thread = Thread(target=self._loop, args=(number, objective, slot), daemon=True)
        self.threads.append(thread)
        thread.start()

    def submit(self, number: int, exchange: Exchange, job: Job) -> None:
        """Give a thread a job, to start when the scheduler grants it."""
        self.slots[number].request(*_work(job))
        self.inboxes[number].put((exchange, job))

    def stop(self) -> None:
        """Stop every thread as soon as possible and join it: torch must not outlive Python."""
        self.scheduler.close()
        for inbox in self.inboxes:
            inbox.put(None)
        for thread in self.threads:
            # The garbage collector may close an engine in one of its own threads.
            if thread is not current_thread():
                thread.join()

    def _loop(self, number: int, objective: Objective, slot: Slot) -> None:
        inbox = self.inboxes[number]
        while (work := inbox.get()) is not None:
            outcome = self._outcome(*work, objective, slot)
            self.outbox.put((number, work[1].order.client, outcome))

    def _outcome(self, exchange: Exchange, job: Job, objective: Objective, slot: Slot) -> Outcome:
        # For this thread; the waiting thread has set it for the process.
        torch.set_num_threads(1)
        timer = PhaseTimer(slot.clock_s)
        try:
            with slot.computing():
                client = job.build_client(self.task, objective, timer, uses_global_rng=False)
                return answer(client, exchange)
        except BaseException as error:
            return error
        finally:
            for phase, spent in timer.drain().items():
                self.timer.add(phase, spent)


def _work(job: Job) -> tuple[int, int]:
    """Return a client's steps, and the samples of a step, as far as they are known in advance."""
    train, samples = job.order.train, len(job.visit.indices)
    size = samples if train.batch_size == "full" else train.batch_size
    return train.count(samples, samples), size


class _PausableObjective:
    """An objective that pauses at its slow calls, and stops once the scheduler is closed.

    A thread cannot be paused or killed from outside.
    """

    __slots__ = ("_objective", "_slot")

    def __init__(self, objective: Objective, slot: Slot) -> None:
        object.__setattr__(self, "_objective", objective)
        object.__setattr__(self, "_slot", slot)

    def __getattr__(self, name: str) -> Any:
        self._slot.raise_if_closed()
        if name in STEPS:
            self._slot.step()
        return getattr(self._objective, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._objective, name, value)

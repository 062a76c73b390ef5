"""An engine of threads: they share this process's data, and torch computes without Python's lock."""

import weakref
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, cast

import torch

from chronofed.clock import Clock
from chronofed.engines.base import PATIENCE, Answer, Exchange, Job, Outcome, ParallelEngine, answer
from chronofed.engines.draws import draws_globally
from chronofed.engines.memory import keep_freed_memory
from chronofed.engines.turns import Turn, Turns
from chronofed.errors import IncompatibleError
from chronofed.protocol import Locker, Method, Order
from chronofed.scenarios.base import Plan
from chronofed.types import Objective, Task

# What takes long: the moments at which a client may be paused are those before it.
STEPS = frozenset(
    {
        "gradient",
        "loss_gradient",
        "squared_gradients",
        "gradient_moments",
        "hessian_product",
        "input_gradient",
    }
)


class ThreadEngine(ParallelEngine):
    """Serves several orders at a time in this process, each in a thread with a model of its own.

    Where a round does not come out even, its last clients take turns: with 7 equal ones on 2 workers, the last
    3 are under way at once, and 2 of them compute. So there are up to ``2 * workers - 1`` models.

    All threads share torch's global generator, so what draws from it is refused: a model at once, and anything
    else, such as a backbone of one's own, after its first round.

    Attributes:
        task: Where samples and models come from.
        workers: Clients that compute at a time; by default as many as there are usable cores.
        lockers: What the simulated clients keep between their visits.
        clock: Where time is booked: that of all threads together, which is more than passes.

    Raises:
        IncompatibleError: If the model draws from the global generator, as dropout does.
    """

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        lockers: MutableMapping[int, Locker] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(task, workers, lockers, clock)
        if draws_globally(task):
            raise _refusal("the model draws random numbers while it trains (dropout?)")
        keep_freed_memory()
        self._open()

    def close(self) -> None:
        """End all threads; a client that is being trained gets no further than its next gradient."""
        self._crew.dismiss()
        self._at_exit.detach()
        self._open()

    def _open(self) -> None:
        self._crew = _Crew(self.task, self.clock, self.workers)
        self._at_exit = weakref.finalize(self, self._crew.dismiss)

    def _gather(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        before = torch.default_generator.get_state()
        answers = super()._gather(exchange, method, orders, plan)
        if not torch.equal(before, torch.default_generator.get_state()):
            torch.default_generator.set_state(before)
            raise _refusal("something drew from torch's global generator while clients trained")
        return answers

    def _places(self, clients: int) -> int:
        return min(self.workers + clients % self.workers, clients)

    def _hire(self, count: int) -> None:
        while len(self._crew.threads) < count:
            self._crew.hire()

    def _hand(self, worker: int, exchange: Exchange, job: Job) -> None:
        self._crew.hand(worker, exchange, job)

    def _next(self) -> tuple[int, int, Outcome]:
        while True:
            with suppress(Empty):
                return self._crew.outbox.get(timeout=PATIENCE)


def _refusal(what: str) -> IncompatibleError:
    why = "threads would do so in an order that nobody can repeat; use processes"
    return IncompatibleError(f"threads: {what}, and {why}")


class _Crew:
    """Threads with an inbox each; it knows nothing of its engine, which may be forgotten unclosed."""

    def __init__(self, task: Task, clock: Clock, workers: int) -> None:
        self.task = task
        self.clock = clock
        self.turns = Turns(workers)
        self.places: list[Turn] = []
        self.threads: list[Thread] = []
        self.inboxes: list[SimpleQueue[tuple[Exchange, Job] | None]] = []
        self.outbox: SimpleQueue[tuple[int, int, Outcome]] = SimpleQueue()

    def hire(self) -> None:
        """Start one more thread. Its model is built here: initialisers use the global generator."""
        turn = Turn(self.turns)
        objective = cast("Objective", _Pausable(self.task.objective(), turn))
        self.places.append(turn)
        self.inboxes.append(SimpleQueue())
        number = len(self.threads)
        # A daemon: Python waits for others before it calls what is to be done at exit.
        thread = Thread(target=self._labour, args=(number, objective, turn), daemon=True)
        self.threads.append(thread)
        thread.start()

    def hand(self, number: int, exchange: Exchange, job: Job) -> None:
        """Give a thread something to do when its turn comes."""
        self.places[number].ask(*_work(job))
        self.inboxes[number].put((exchange, job))

    def dismiss(self) -> None:
        """Let every thread end as soon as it can, and wait: torch must not outlive Python."""
        self.turns.close()
        for inbox in self.inboxes:
            inbox.put(None)
        for thread in self.threads:
            if thread is not current_thread():  # which may be the one to clear an engine away
                thread.join()

    def _labour(self, number: int, objective: Objective, turn: Turn) -> None:
        inbox = self.inboxes[number]
        while (work := inbox.get()) is not None:
            outcome = self._outcome(*work, objective, turn)
            self.outbox.put((number, work[1].order.client, outcome))

    def _outcome(self, exchange: Exchange, job: Job, objective: Objective, turn: Turn) -> Outcome:
        torch.set_num_threads(1)  # of this thread; whoever waits has set it for the process
        clock = Clock(turn.time)
        try:
            with turn.taken():
                return answer(job.client(self.task, objective, clock, draws=False), exchange)
        except BaseException as error:
            return error
        finally:
            for phase, spent in clock.read().items():
                self.clock.add(phase, spent)


def _work(job: Job) -> tuple[int, int]:
    """Steps of a client, and samples of a step, as far as they are known beforehand."""
    train, samples = job.order.train, len(job.visit.indices)
    size = samples if train.batch_size == "full" else train.batch_size
    return train.count(samples, samples), size


class _Pausable:
    """An objective that answers when it is its thread's turn, and no longer once all is over.

    A thread cannot be paused or killed from outside.
    """

    __slots__ = ("_objective", "_turn")

    def __init__(self, objective: Objective, turn: Turn) -> None:
        object.__setattr__(self, "_objective", objective)
        object.__setattr__(self, "_turn", turn)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        self._turn.check()
        if name in STEPS:
            self._turn.step()
        return getattr(self._objective, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._objective, name, value)

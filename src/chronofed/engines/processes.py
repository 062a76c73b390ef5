"""An engine of processes: any model, the same bits, and one copy of the data for all workers."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import NoReturn

import torch

from chronofed.clock import Clock
from chronofed.engines.base import PATIENCE, Answer, Exchange, Job, Outcome, ParallelEngine, answer
from chronofed.engines.memory import keep_freed_memory
from chronofed.engines.parcels import Parcel, pack, unpack
from chronofed.errors import ChronofedError
from chronofed.protocol import Locker, Method, Order
from chronofed.scenarios.base import Plan
from chronofed.types import Objective, Task

COMMON = tuple(f.name for f in fields(Order) if f.name != "client")


class ProcessEngine(ParallelEngine):
    """Serves several orders at a time, in processes that stay.

    Workers share one copy of the data. What is the same for all clients of a round is sent to a worker once a
    round; lockers stay here and travel with their client's order. A script starts processes only under
    ``if __name__ == "__main__":``, because each of them imports it.

    Attributes:
        task: The task, with its data in the shared memory; use it instead of one's own to hold them once.
        workers: Number of processes; by default as many as there are usable cores.
        lockers: What the simulated clients keep between their visits.
        clock: Where time is booked: that of all processes together, which is more than passes.

    Raises:
        IncompatibleError: If the task cannot be sent to another process.
    """

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        lockers: MutableMapping[int, Locker] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._parcel = Parcel.of(task, "task")
        super().__init__(self._parcel.open(), workers, lockers, clock)
        self._crew: list[_Hand] = []
        self._brief: tuple[Exchange, Job, bytes] | None = None

    def close(self) -> None:
        """Kill all workers: they hold nothing that is not here too."""
        crew, self._crew = self._crew, []
        for hand in crew:
            hand.pipe.close()
            hand.process.kill()
        for hand in crew:
            hand.process.join()
            hand.process.close()

    def _gather(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        try:
            return super()._gather(exchange, method, orders, plan)
        finally:
            self._brief = None
            for hand in self._crew:
                hand.brief = b""

    def _hire(self, count: int) -> None:
        while len(self._crew) < count:
            self._crew.append(_Hand(*_start(self._parcel)))

    def _hand(self, worker: int, exchange: Exchange, job: Job) -> None:
        hand, brief = self._crew[worker], self._packed_brief(exchange, job)
        errand = pack((job.order.client, job.visit, job.locker), f"client {job.order.client}")
        known = hand.brief is brief
        hand.job, hand.brief = job, brief
        try:
            hand.pipe.send_bytes(b"" if known else brief)
            hand.pipe.send_bytes(errand)
        except OSError as error:
            self._mourn(hand, job, error)

    def _next(self) -> tuple[int, int, Outcome]:
        busy = {hand.pipe: number for number, hand in enumerate(self._crew) if hand.job}
        ready = wait(list(busy), PATIENCE)
        while not ready:
            ready = wait(list(busy), PATIENCE)
        pipe = ready[0]
        number = busy[pipe]  # type: ignore[index]
        hand = self._crew[number]
        job, hand.job = hand.job, None
        assert job is not None
        try:
            packed = hand.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self._mourn(hand, job, error)
        outcome, seconds = unpack(packed)
        for phase, spent in seconds.items():
            self.clock.add(phase, spent)
        return number, job.order.client, outcome

    def _packed_brief(self, exchange: Exchange, job: Job) -> bytes:
        """What this order has in common with others; packed once for all workers."""
        if self._brief is None or not _alike(self._brief[:2], (exchange, job)):
            packed = pack((exchange, job.method, job.order), "method")
            self._brief = exchange, job, packed
        return self._brief[2]

    def _mourn(self, hand: "_Hand", job: Job, error: Exception) -> NoReturn:
        hand.process.join(timeout=5)  # until the exit code is known
        code, order = hand.process.exitcode, job.order
        if code is not None and code < 0:
            cause = (
                f"was killed (signal {-code}), by the system if memory ran out; use fewer workers"
            )
        else:
            cause = (
                f"ended (exit code {code}), perhaps with a message above; a script must start its "
                "engine under: if __name__ == '__main__'"
            )
        msg = f"round {order.round}, client {order.client}: the worker process {cause}"
        raise ChronofedError(msg) from error


@dataclass(slots=True)
class _Hand:
    """A worker, as seen from here.

    Attributes:
        process: Where it works.
        pipe: How to reach it.
        job: What it works on, if anything.
        brief: What it knows already of this round's orders.
    """

    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    brief: bytes = b""


def _alike(one: tuple[Exchange, Job], other: tuple[Exchange, Job]) -> bool:
    """Whether two orders are the same but for the client."""
    (exchange, a), (again, b) = one, other
    same = (getattr(a.order, name) is getattr(b.order, name) for name in COMMON)
    return exchange == again and a.method is b.method and all(same)


def _start(parcel: Parcel) -> tuple[BaseProcess, Connection]:
    """A new worker, forked from a server that has this module, and torch, imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe()
    dtype = torch.get_default_dtype()
    process = context.Process(target=_work, args=(there, parcel, dtype), daemon=True)
    process.start()
    there.close()
    return process, here


def _work(pipe: Connection, parcel: Parcel, dtype: torch.dtype) -> None:
    """A worker's life: until its parent closes the pipe or is no more."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C goes to the parent, which ends its workers
    end_with_parent()
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    keep_freed_memory()
    worker = _Worker(parcel)
    while True:
        try:
            brief, errand = pipe.recv_bytes(), pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(worker.reply(brief, errand))


def end_with_parent() -> None:
    """From now on this process ends as soon as the one that started it is no more."""
    Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Worker:
    """A worker, as seen by itself: one objective, reused from client to client."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._task: Task | None = None
        self._objective: Objective | None = None
        self._packed = b""
        self._brief: tuple[Exchange, Method, Order] | None = None
        self._clock = Clock()

    def reply(self, brief: bytes, errand: bytes) -> bytes:
        """Serve an order: the outcome and the seconds that it took, packed."""
        outcome: Outcome
        try:
            outcome = self._serve(brief, errand)
        except Exception as error:
            outcome = _explained(error)
        return pack((outcome, self._clock.read()), "result")

    def _serve(self, brief: bytes, errand: bytes) -> Answer:
        if brief:
            self._packed, self._brief = brief, None
        if self._brief is None:
            self._brief = unpack(self._packed)
        if self._task is None or self._objective is None:
            self._task = self._parcel.open()
            self._objective = self._task.objective()
        exchange, method, order = self._brief
        client, visit, locker = unpack(errand)
        job = Job(method, replace(order, client=client), visit, locker)
        return answer(job.client(self._task, self._objective, self._clock), exchange)


def _explained(error: Exception) -> Exception:
    """The error if it can travel; with the traceback, unless its message is meant for the user."""
    trace = traceback.format_exc()
    try:
        unpack(pack(error, "error"))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, ChronofedError):
        error.add_note(f"In a worker process:\n{trace}")
    return error

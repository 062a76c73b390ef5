"""An engine of processes: any model, the same bits, and one copy of the data for all workers."""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import ClassVar, NoReturn

import torch

from chronofed.clients.messages import Exchange, Order
from chronofed.clients.state import ClientState
from chronofed.core.errors import ChronofedError
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Objective, Task
from chronofed.core.user_code import CARRIED, in_one_line, user_traceback
from chronofed.engines.base import Answer, Job, answer, keep_freed_memory
from chronofed.engines.parallel import POLL_S, Outcome, ParallelEngine
from chronofed.engines.shared_memory import SharedObject, dumps, loads
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan

# Pause before another fork server is started.
DEAD_S = 0.2
COMMON_FIELDS = tuple(f.name for f in fields(Order) if f.name != "client")


class ProcessEngine(ParallelEngine):
    """Train several clients at a time, in processes that live as long as the engine.

    Workers share one copy of the data. What all orders of a round have in common is sent to each worker once
    per round; client states stay in the parent and travel with the client's order. A script must start
    processes under ``if __name__ == "__main__":``, because each of them imports it.

    Attributes:
        task: The task with its data in shared memory; use it instead of your own to hold the data once.
        workers: Number of processes; by default the number of usable cores.
        client_states: States that the simulated clients keep between their visits.
        timer: Records the time spent in each phase; the times of all processes are added up.

    Raises:
        IncompatibleError: If the task cannot be sent to another process.
    """

    summary: ClassVar[str] = "clients in parallel, in processes"

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        client_states: MutableMapping[int, ClientState] | None = None,
        timer: PhaseTimer | None = None,
    ) -> None:
        self._shared_task = SharedObject.of(task, "task")
        super().__init__(self._shared_task.load(), workers, client_states, timer)
        self._pool: list[_Worker] = []
        self._common: tuple[Exchange, Job, bytes] | None = None

    def close(self) -> None:
        """Kill all workers; they hold nothing that the parent does not have."""
        pool, self._pool = self._pool, []
        for worker in pool:
            worker.pipe.close()
            worker.process.kill()
        for worker in pool:
            worker.process.join()
            worker.process.close()

    def _collect(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        try:
            return super()._collect(exchange, method, orders, plan)
        finally:
            self._common = None
            for worker in self._pool:
                worker.common = b""

    def _start_workers(self, count: int) -> None:
        while len(self._pool) < count:
            self._pool.append(_Worker(*_start_process(self._shared_task)))

    def _submit(self, worker: int, exchange: Exchange, job: Job) -> None:
        chosen, common = self._pool[worker], self._pickled_common(exchange, job)
        client = job.order.client
        request = dumps((client, job.visit, job.client_state), f"client {client}")
        known = chosen.common is common
        chosen.job, chosen.common = job, common
        try:
            chosen.pipe.send_bytes(b"" if known else common)
            chosen.pipe.send_bytes(request)
        except OSError as error:
            _raise_died(chosen, job, error)

    def _next_outcome(self) -> tuple[int, int, Outcome]:
        busy = {worker.pipe: number for number, worker in enumerate(self._pool) if worker.job}
        ready = wait(list(busy), POLL_S)
        while not ready:
            ready = wait(list(busy), POLL_S)
        pipe = ready[0]
        number = busy[pipe]  # type: ignore[index]
        worker = self._pool[number]
        job, worker.job = worker.job, None
        assert job is not None
        try:
            reply = worker.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            _raise_died(worker, job, error)
        outcome, seconds = loads(reply)
        for phase, spent in seconds.items():
            self.timer.add(phase, spent)
        return number, job.order.client, outcome

    def _pickled_common(self, exchange: Exchange, job: Job) -> bytes:
        """Return what this order has in common with others; pickled once for all workers."""
        if self._common is None or not _alike(self._common[:2], (exchange, job)):
            pickled = dumps((exchange, job.method, job.order), "method")
            self._common = exchange, job, pickled
        return self._common[2]


@dataclass(slots=True)
class _Worker:
    """A worker, as seen by the parent.

    Attributes:
        process: The process.
        pipe: The connection to it.
        job: The job that it works on, if any.
        common: The common part of this round's orders that it has received.
    """

    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    common: bytes = b""


def _raise_died(worker: _Worker, job: Job, error: Exception) -> NoReturn:
    # Wait until the exit code is known.
    worker.process.join(timeout=5)
    code, order = worker.process.exitcode, job.order
    if code is not None and code < 0:
        cause = f"was killed (signal {-code}), by the system if memory ran out; use fewer workers"
    else:
        cause = (
            f"ended (exit code {code}), perhaps with a message above; a script must start its "
            "engine under: if __name__ == '__main__'"
        )
    msg = f"round {order.round}, client {order.client}: the worker process {cause}"
    raise ChronofedError(msg) from error


def _alike(one: tuple[Exchange, Job], other: tuple[Exchange, Job]) -> bool:
    """Decide whether two orders differ in nothing but the client."""
    (exchange, a), (again, b) = one, other
    same = (getattr(a.order, name) is getattr(b.order, name) for name in COMMON_FIELDS)
    return exchange == again and a.method is b.method and all(same)


def _start_process(shared_task: SharedObject) -> tuple[BaseProcess, Connection]:
    """Fork a worker from a server that has already imported this module, and torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe()
    dtype = torch.get_default_dtype()
    process = context.Process(target=_loop, args=(there, shared_task, dtype), daemon=True)
    start(process)
    there.close()
    return process, here


def start(process: BaseProcess) -> None:
    """Start a process from the fork server; if that died unnoticed, from another one.

    Raises:
        ChronofedError: If the fork server dies again.
    """
    try:
        _start_again(process)
    except (EOFError, OSError) as error:
        msg = (
            f"cannot start a worker process: the fork server died ({in_one_line(error)}), killed by the "
            "system if memory ran out; use fewer workers, or --engine serial"
        )
        raise ChronofedError(msg) from error


def _start_again(process: BaseProcess) -> None:
    try:
        process.start()
    except (EOFError, OSError):
        # Until the system has buried the fork server, multiprocessing takes it to be alive.
        time.sleep(DEAD_S)
        process.start()


def _loop(pipe: Connection, shared_task: SharedObject, dtype: torch.dtype) -> None:
    """Serve orders in a worker, until its parent closes the pipe or dies."""
    # Ctrl-C goes to the parent, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    keep_freed_memory()
    server = _JobServer(shared_task)
    while True:
        try:
            common, request = pipe.recv_bytes(), pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(server.reply(common, request))


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone."""
    Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _JobServer:
    """The worker's side: one objective, reused from client to client."""

    def __init__(self, shared_task: SharedObject) -> None:
        self._shared_task = shared_task
        self._task: Task | None = None
        self._objective: Objective | None = None
        self._pickled = b""
        self._common: tuple[Exchange, Method, Order] | None = None
        self._timer = PhaseTimer()

    def reply(self, common: bytes, request: bytes) -> bytes:
        """Serve an order; return the outcome and the seconds that it took, pickled.

        Args:
            common: The common part of this round's orders; empty if this worker has it already.
            request: The client, its visit and its state.
        """
        outcome: Outcome
        try:
            outcome = self._serve(common, request)
        except Exception as error:
            outcome = explained(error)
        return dumps((outcome, self._timer.drain()), "result")

    def _serve(self, common: bytes, request: bytes) -> Answer:
        if common:
            self._pickled, self._common = common, None
        if self._common is None:
            self._common = loads(self._pickled)
        if self._task is None or self._objective is None:
            self._task = self._shared_task.load()
            self._objective = self._task.objective()
        exchange, method, order = self._common
        client, visit, client_state = loads(request)
        job = Job(method, replace(order, client=client), visit, client_state)
        return answer(job.build_client(self._task, self._objective, self._timer), exchange)


def explained(error: Exception) -> Exception:
    """Return an error that can be pickled; with the traceback, unless its message is meant for the user."""
    trace = traceback.format_exc()
    frames = user_traceback(error)
    try:
        loads(dumps(error, "error"))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, ChronofedError):
        error.add_note(f"In a worker process:\n{trace}")
        error.__dict__[CARRIED] = frames
    return error

"""Which engine to use, and why."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chronofed.clock import Clock
from chronofed.engines.base import LocalEngine, usable_cores
from chronofed.engines.batched import BatchedEngine, unsupported
from chronofed.engines.draws import draws_globally
from chronofed.engines.processes import ProcessEngine
from chronofed.engines.serial import SerialEngine
from chronofed.engines.threads import ThreadEngine
from chronofed.errors import IncompatibleError
from chronofed.protocol import Locker, Method
from chronofed.types import Task

Chosen: TypeAlias = Literal["serial", "threads", "processes", "batched"]
EngineKind: TypeAlias = Literal["auto"] | Chosen


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine that was chosen.

    Attributes:
        engine: Which.
        workers: Clients, or with ``batched`` groups of clients, that train side by side.
        why: In a few words.
    """

    engine: Chosen
    workers: int
    why: str

    def build(
        self,
        task: Task,
        lockers: MutableMapping[int, Locker] | None = None,
        clock: Clock | None = None,
    ) -> LocalEngine:
        """The engine, ready to be used; to be closed in the end."""
        lockers = {} if lockers is None else lockers
        clock = clock or Clock()
        if self.engine == "serial":
            return SerialEngine(task, lockers, clock)
        if self.engine == "batched":
            return BatchedEngine(task, self.workers, lockers, clock)
        kind = ThreadEngine if self.engine == "threads" else ProcessEngine
        return kind(task, self.workers, lockers, clock)


def choose(
    kind: EngineKind, workers: int | None, task: Task, method: Method, cohort: int
) -> Choice:
    """The engine that was asked for, or the fastest one.

    What is batched rounds differently from what is not, so that this does not depend on the machine: the same
    specification gives the same bits everywhere.

    Args:
        kind: What was asked for.
        workers: Most clients side by side; by default as many as there are usable cores.
        task: What is learned.
        method: How.
        cohort: Clients of a round.

    Returns:
        The choice.

    Raises:
        IncompatibleError: If what was asked for cannot be done.
    """
    most = workers or usable_cores()
    if kind == "auto":
        return _fastest(min(most, cohort), task, method)
    reason = unsupported(method, task) if kind == "batched" else None
    if reason is not None:
        raise IncompatibleError(f"engine batched: {reason}; use auto")
    return Choice(kind, 1 if kind == "serial" else most, "as asked for")


def _fastest(workers: int, task: Task, method: Method) -> Choice:
    reason = unsupported(method, task)
    if reason is None:
        return Choice("batched", workers, "all clients of a round train as one program")
    if workers == 1:
        return Choice("serial", 1, f"one client at a time; not batched: {reason}")
    if draws_globally(task):
        why = f"the model draws random numbers, so no threads; not batched: {reason}"
        return Choice("processes", workers, why)
    return Choice("threads", workers, f"clients side by side; not batched: {reason}")

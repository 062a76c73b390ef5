"""The table of engines, and the choice of the fastest one that can train a method.

An engine of this package is one row of :data:`ENGINES`. Any other is named by its path,
``package.module:Class`` (see :mod:`chronofed.engines.base`).
"""

import difflib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from chronofed.clients.state import ClientState
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Task
from chronofed.core.user_code import import_name
from chronofed.engines.base import LocalEngine, usable_cores
from chronofed.engines.batched.engine import BatchedEngine
from chronofed.engines.cluster import Cluster
from chronofed.engines.processes import ProcessEngine
from chronofed.engines.ray.engine import RayEngine
from chronofed.engines.serial import SerialEngine
from chronofed.engines.threads import ThreadEngine
from chronofed.methods.local import Train
from chronofed.methods.method import Method

ENGINES: Mapping[str, type[LocalEngine]] = {
    "batched": BatchedEngine,
    "serial": SerialEngine,
    "threads": ThreadEngine,
    "processes": ProcessEngine,
    "ray": RayEngine,
}
"""Engines by name; ``auto`` takes the first one that supports the method and the number of workers.

It never takes one that uses several machines: nobody has said that they are to be trusted.
"""

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine that was chosen.

    Attributes:
        engine: Its name, or its path.
        workers: Number of clients, with ``batched`` groups of clients, to train in parallel; ``None`` for all
            cores of a cluster.
        reason: The reason, in one line.
    """

    engine: str
    workers: int | None
    reason: str

    def build(
        self,
        task: Task,
        client_states: MutableMapping[int, ClientState] | None = None,
        timer: PhaseTimer | None = None,
        cluster: Cluster | None = None,
    ) -> LocalEngine:
        """Build the engine; the caller closes it."""
        cls = find_engine(self.engine)
        # Any other engine, also a user's own, knows nothing of clusters.
        more = {"cluster": cluster} if cls.clustered else {}
        return cls(
            task=task, workers=self.workers, client_states=client_states, timer=timer, **more
        )


def check_name(name: str) -> str:
    """Return the name of an engine if it is known, or has the form of a path.

    Raises:
        SpecError: If it does not.
    """
    known = (AUTO, *ENGINES)
    if name in known or ":" in name:
        return name
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    raise SpecError(
        f"engine: unknown value {name!r}; {nearest}known: {', '.join(known)}, or package.module:Class"
    )


def find_engine(name: str) -> type[LocalEngine]:
    """Return an engine's class by its name, or import it by its path.

    Raises:
        SpecError: If there is none.
    """
    if name in ENGINES:
        return ENGINES[name]
    found = import_name(check_name(name), "engine")
    if not (isinstance(found, type) and issubclass(found, LocalEngine)):
        raise SpecError(f"engine: {name!r} is not a subclass of chronofed.engines.base.LocalEngine")
    return found


def choose(
    name: str,
    workers: int | None,
    task: Task,
    method: Method,
    cohort: int,
    train: Train | None = None,
    cluster: Cluster | None = None,
) -> EngineChoice:
    """Return the requested engine, or for ``auto`` the fastest one.

    The batched engine rounds differently from the others. So whether ``auto`` takes it does not depend on the
    machine: the same specification gives the same bits everywhere.

    Args:
        name: The requested engine.
        workers: Most clients to train in parallel; by default the number of usable cores.
        task: The task.
        method: The method.
        cohort: Number of clients of a round.
        train: How clients train; by default the default settings.
        cluster: The machines to use, if they are given.

    Returns:
        The choice.

    Raises:
        IncompatibleError: If the requested engine cannot do it.
        SpecError: If there is no such engine.
    """
    most, train = workers or usable_cores(), train or Train()
    if cluster is not None and (name == AUTO or not find_engine(name).clustered):
        raise IncompatibleError(
            f"engine {name}: runs on this machine alone; leave out what says cluster or --address, or use ray"
        )
    if name == AUTO:
        return _fastest(min(most, cohort), task, method, train)
    cls = find_engine(name)
    reason = cls.unsupported(method, task, train)
    if reason is not None:
        raise IncompatibleError(f"engine {name}: {reason}; use auto")
    if cls.clustered:
        return EngineChoice(name, workers, "as requested")
    return EngineChoice(name, min(most, cls.max_workers or most), "as requested")


def _fastest(workers: int, task: Task, method: Method, train: Train) -> EngineChoice:
    passed_over: list[str] = []
    for name, cls in ENGINES.items():
        if cls.clustered or (cls.max_workers is not None and workers > cls.max_workers):
            continue
        reason = cls.unsupported(method, task, train)
        if reason is None:
            return EngineChoice(name, workers, "; ".join([cls.summary, *passed_over]))
        passed_over.append(f"not {name}: {reason}")
    raise IncompatibleError(f"engine auto: {'; '.join(passed_over)}")

"""The main loop: rounds of orders and results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from chronofed.backbones.base import weighted_mean
from chronofed.engines.serial import SerialEngine
from chronofed.errors import DivergedError, IncompatibleError, SpecError
from chronofed.local import Train
from chronofed.protocol import Engine, Locker, Method, Order, Result, shares
from chronofed.scenarios.base import Scenario
from chronofed.types import Record, Task, Vector


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything after ``round`` rounds; all that a checkpoint must hold."""

    round: int
    server: Record
    buffers: Vector
    lockers: Mapping[int, Locker]

    @property
    def params(self) -> Vector:
        """The global model."""
        return self.server["params"]


def check(method: Method, scenario: Scenario, rounds: int | None = None) -> None:
    """Refuse what cannot work before anything starts.

    Raises:
        IncompatibleError: If the method needs clients to come back where they never do.
        SpecError: If the scenario ends before the run does.
    """
    if method.stateful and not scenario.persistent:
        place = "memory" if method.memory.home == "client" else "backbone"
        part = type(getattr(method, place)).__name__
        msg = (
            f"method.{place}: {part} keeps its state on the client, but in this scenario a client "
            "never comes back; choose one that needs no returning clients (see: chronofed methods)"
        )
        raise IncompatibleError(msg)
    if rounds is not None and scenario.rounds is not None and rounds > scenario.rounds:
        msg = (
            f"rounds: the scenario ends after {scenario.rounds} rounds, but {rounds} were asked for"
        )
        raise SpecError(msg)


def run(
    method: Method,
    scenario: Scenario,
    task: Task,
    *,
    rounds: int | None = None,
    train: Train | None = None,
    engine: Engine | None = None,
    seed: int = 0,
    start: Snapshot | None = None,
) -> Iterator[Snapshot]:
    """Train: yield the state after every round.

    Args:
        method: How to learn.
        scenario: Who takes part when, with which data.
        task: What to learn.
        rounds: Last round; by default the scenario's own end, or for ever.
        train: How clients train.
        engine: Where clients run; by default in this process.
        seed: Root of the run's randomness.
        start: Where to go on from; by default from the task's initial model.

    Returns:
        One snapshot a round.

    Raises:
        IncompatibleError: If the scenario cannot serve the method.
    """
    check(method, scenario, rounds)
    if engine is None:
        engine = SerialEngine(task)
    if start is None:
        params, buffers = task.initial(seed)
        start = Snapshot(0, method.backbone.init_server(params), buffers, {})
    engine.lockers.clear()
    engine.lockers.update(start.lockers)
    last = scenario.rounds if rounds is None else rounds
    return _rounds(method, scenario, train or Train(), engine, seed, start, last)


def _rounds(
    method: Method,
    scenario: Scenario,
    train: Train,
    engine: Engine,
    seed: int,
    now: Snapshot,
    last: int | None,
) -> Iterator[Snapshot]:
    while last is None or now.round < last:
        plan = scenario.at(now.round)
        orders = [Order(now.round, i, now.server, now.buffers, train, seed) for i in plan.visits]
        results = sorted(engine.map(method, orders, plan), key=lambda result: result.client)
        server, buffers = _aggregate(method, now, results)
        now = Snapshot(now.round + 1, server, buffers, dict(engine.lockers))
        yield now


def _aggregate(method: Method, now: Snapshot, results: list[Result]) -> tuple[Record, Vector]:
    """Next server state and buffers; a round in which nobody came changes nothing."""
    if not results:
        return now.server, now.buffers
    weight = shares(results, method.average)
    server = method.backbone.aggregate(now.server, [(weight[r.client], r.upload) for r in results])
    if not torch.isfinite(server["params"]).all():
        msg = f"round {now.round}: the model is no longer finite; try a smaller train.lr"
        raise DivergedError(msg)
    return server, weighted_mean([(weight[r.client], {"b": r.buffers}) for r in results], "b")

"""The main loop: rounds of orders and results."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from chronofed.backbones.base import Uploads, weighted_mean
from chronofed.clock import Clock
from chronofed.deletion import Deletion, apply_deletions, without
from chronofed.engines.lockers import refill, snapshot_of
from chronofed.engines.serial import SerialEngine, one_thread
from chronofed.errors import DivergedError, IncompatibleError, SpecError
from chronofed.local import Train
from chronofed.memories import Keepsake, Moment
from chronofed.protocol import Engine, Experienced, Locker, Method, Order, Result, shares
from chronofed.scenarios.base import Plan, Scenario
from chronofed.seeds import torch_generator
from chronofed.surrogate import Surrogate
from chronofed.traffic import Traffic
from chronofed.types import Record, Task, Vector


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything after ``round`` rounds; all that a checkpoint must hold.

    Attributes:
        round: Rounds done.
        server: The backbone's server state.
        buffers: The model's buffers.
        lockers: What the clients keep, by client.
        past: What the server's memory keeps.
        weights: What weights that learn have learned.
        traffic: Bytes sent so far.
        engine: What an engine has learned about its clients, if it does.
    """

    round: int
    server: Record
    buffers: Vector
    lockers: Mapping[int, Locker] = field(default_factory=dict)
    past: tuple[Keepsake, ...] = ()
    weights: Record = field(default_factory=dict)
    traffic: Traffic = Traffic()  # noqa: RUF009 - immutable
    engine: Record = field(default_factory=dict)

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


def check_buffers(method: Method, buffers: Vector) -> None:
    """Refuse a model whose buffers, which are averaged as they are, would break a promise of privacy.

    Raises:
        IncompatibleError: If it has any, and the backbone is private.
    """
    if method.backbone.private and buffers.numel():
        msg = (
            "model: its buffers (BatchNorm's statistics) are not covered by a private backbone; "
            "choose a model without them"
        )
        raise IncompatibleError(msg)


def run(  # noqa: PLR0913 - one place for all that a run is made of
    method: Method,
    scenario: Scenario,
    task: Task,
    *,
    rounds: int | None = None,
    train: Train | None = None,
    engine: Engine | None = None,
    seed: int = 0,
    start: Snapshot | None = None,
    deletions: Sequence[Deletion] = (),
    clock: Clock | None = None,
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
        deletions: Data to be forgotten from some round on.
        clock: Where time is booked.

    Returns:
        One snapshot a round.

    Raises:
        IncompatibleError: If the scenario cannot serve the method.
    """
    check(method, scenario, rounds)
    clock = clock or Clock()
    engine = engine or SerialEngine(task, clock=clock)
    if start is None:
        params, buffers = task.initial(seed)
        state = method.backbone.init_server(params, scenario.clients)
        start = Snapshot(0, state, buffers, weights=method.weights.init())
    check_buffers(method, start.buffers)
    refill(engine.lockers, start.lockers)
    if isinstance(engine, Experienced):
        engine.recall(start.engine)
    last = scenario.rounds if rounds is None else rounds
    server = _Server(method, engine, train or Train(), seed, tuple(deletions), clock)
    return server.rounds(scenario, start, last)


@dataclass(frozen=True, slots=True)
class _Server:
    """One side of the protocol: plan, orders, results, next state."""

    method: Method
    engine: Engine
    train: Train
    seed: int
    deletions: tuple[Deletion, ...]
    clock: Clock

    def rounds(self, scenario: Scenario, now: Snapshot, last: int | None) -> Iterator[Snapshot]:
        now = replace(now, lockers={})  # they are the engine's from here on
        now = self._forget(now, [d for d in self.deletions if d.round < now.round])
        while last is None or now.round < last:
            now = self._forget(now, [d for d in self.deletions if d.round == now.round])
            plan = without(scenario.at(now.round), self.deletions)
            with one_thread():
                now = self._round(now, plan) if plan.visits else replace(now, round=now.round + 1)
            known = self.engine.remembered() if isinstance(self.engine, Experienced) else {}
            yield replace(now, lockers=snapshot_of(self.engine.lockers), engine=known)

    def _round(self, now: Snapshot, plan: Plan) -> Snapshot:
        with self.clock("memory"):
            past = self._past(now)
        now = replace(now, server=self.method.backbone.draw(now.server, self.seed, now.round))
        orders = self._orders(now, plan, now.server, past)
        traffic = now.traffic
        if self.method.backbone.prepares:
            answers = _sorted(self.engine.prepare(self.method, orders, plan))
            server = self.method.backbone.begin(now.server, self._uploads(answers))
            traffic = traffic.after(orders, answers)
            orders = self._orders(now, plan, server, past)
            now = replace(now, server=server)
        results = _sorted(self.engine.map(self.method, orders, plan))
        with self.clock("aggregate"):
            return replace(self._next(now, results), traffic=traffic.after(orders, results))

    def _forget(self, now: Snapshot, due: Sequence[Deletion]) -> Snapshot:
        """Carry out the deletions that are due; at the start, also those that came too late for a run."""
        if not due:
            return now
        apply_deletions(self.engine.lockers, due)
        gone = {client for deletion in due for client in deletion.clients}
        return replace(now, past=tuple(k for k in now.past if k.client not in gone))

    def _past(self, now: Snapshot) -> Surrogate | None:
        """The server's memory, ready to travel; ``None`` if it is not the server that remembers."""
        if self.method.memory.home != "server":
            return None
        weights = self.method.weights.resolve(now.weights)
        sizes = [keepsake.size for keepsake in now.past]
        typical = round(sum(sizes) / len(sizes)) if sizes else 1
        return self.method.memory.recall(now.past, weights, Moment(now.round, None, typical))

    def _orders(
        self, now: Snapshot, plan: Plan, server: Record, past: Surrogate | None
    ) -> list[Order]:
        weights = self.method.weights.resolve(now.weights)
        sent = self.method.backbone.broadcast(server)
        return [
            Order(now.round, i, sent, now.buffers, weights, past, self.train, self.seed)
            for i in plan.visits
        ]

    def _uploads(self, results: list[Result]) -> Uploads:
        weight = shares(results, self.method.average)
        return [(weight[result.client], result.upload) for result in results]

    def _next(self, now: Snapshot, results: list[Result]) -> Snapshot:
        method = self.method
        server = method.backbone.aggregate(now.server, self._uploads(results))
        if not math.isfinite(server["params"].sum(dtype=torch.float64)):  # one pass
            msg = f"round {now.round}: the model is no longer finite; try a smaller train.lr"
            raise DivergedError(msg)
        buffers = results[0].buffers
        if buffers.numel():
            weight = shares(results, method.average)
            buffers = weighted_mean([(weight[r.client], {"b": r.buffers}) for r in results], "b")
        new = [Keepsake(now.round, r.client, r.key, r.size, r.kept) for r in results if r.kept]
        generator = torch_generator(self.seed, "retain", now.round)
        past = method.memory.retain(now.past, new, generator) if new else now.past
        learned = method.weights.update(
            now.weights, {r.client: r.probe for r in results if r.probe}
        )
        return replace(
            now, round=now.round + 1, server=server, buffers=buffers, past=past, weights=learned
        )


def _sorted(results: Iterable[Result]) -> list[Result]:
    """By client, so that sums do not depend on who answered first."""
    return sorted(results, key=lambda result: result.client)

"""The training loop: send orders, collect results, update the server."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from chronofed.clients.cache import replace_all, snapshot_of
from chronofed.clients.deletion import Deletion, apply_deletions, without
from chronofed.clients.messages import Order, Result, shares
from chronofed.clients.partial_sums import SummedRound, SummingEngine, check_summable, summed_here
from chronofed.clients.state import ClientState
from chronofed.core.errors import DivergedError
from chronofed.core.seeds import torch_generator
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Record, Task, Vector
from chronofed.engines.base import Engine, StatefulEngine, one_thread
from chronofed.engines.serial import SerialEngine
from chronofed.methods.backbones.base import (
    SERVED,
    Bench,
    Upload,
    Uploads,
    first_server_state,
    weighted_mean,
)
from chronofed.methods.local import Train
from chronofed.methods.memories import MemoryItem, Moment
from chronofed.methods.method import Method, check, check_buffers, check_samples
from chronofed.methods.surrogate import Surrogate
from chronofed.scenarios.base import Plan, Scenario
from chronofed.training.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after ``round`` rounds: everything that a checkpoint must hold.

    Attributes:
        round: Rounds done.
        server: The backbone's server state.
        buffers: The model's buffers.
        client_states: The state of every client.
        past: The items of the server's memory.
        weighting_state: The state of round weights that learn.
        traffic: Bytes sent so far.
        engine: The state of an engine that has one.
    """

    round: int
    server: Record
    buffers: Vector
    client_states: Mapping[int, ClientState] = field(default_factory=dict)
    past: tuple[MemoryItem, ...] = ()
    weighting_state: Record = field(default_factory=dict)
    traffic: Traffic = Traffic()
    engine: Record = field(default_factory=dict)

    @property
    def params(self) -> Vector:
        """The global model that is evaluated: the trained one, or a mean, or one with a head of its own."""
        return self.server.get(SERVED, self.server["params"])


def run(  # noqa: PLR0913 - one place for all parts of a run
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
    timer: PhaseTimer | None = None,
    checked: bool = False,
    server_samples: Tensor | None = None,
    partial_sums: int | None = None,
) -> Iterator[Snapshot]:
    """Train, and yield the state after every round.

    Args:
        method: Backbone, memory and round weights.
        scenario: Who takes part when, with which data.
        task: The model and its data.
        rounds: Last round; by default the scenario's own end, or never.
        train: Local training of a client.
        engine: Runs the clients; by default one after another in this process.
        seed: Root of the run's randomness.
        start: Snapshot to continue from; by default the task's initial model.
        deletions: Data to forget from some round on.
        timer: Measures the time of each phase.
        checked: Skip the compatibility checks, because the caller has made them.
        server_samples: Unlabelled samples on the server, for a backbone that refines the model with them.
        partial_sums: Number of parts in which uploads are added up first; by default one client after another.

    Returns:
        One snapshot per round.

    Raises:
        IncompatibleError: If the scenario cannot serve the method.
    """
    check_samples(method, server_samples)
    if partial_sums is not None:
        check_summable(method.composed)
    if not checked:
        check(method, scenario, rounds, train)
    timer = timer or PhaseTimer()
    engine = engine or SerialEngine(task, timer=timer)
    if start is None:
        params, buffers = task.initial(seed)
        state = first_server_state(method.composed, params, scenario.clients, task.objective())
        start = Snapshot(0, state, buffers, weighting_state=method.weights.init())
    else:
        start = replace(start, server=method.composed.enrol(start.server, scenario.clients))
    if not checked:
        check_buffers(method, start.buffers)
    replace_all(engine.client_states, start.client_states)
    if isinstance(engine, StatefulEngine):
        engine.load_state_dict(start.engine)
    last = scenario.rounds if rounds is None else rounds
    server = _Server(
        method,
        engine,
        train or Train(),
        seed,
        tuple(deletions),
        timer,
        task,
        server_samples,
        partial_sums,
    )
    return server.rounds(scenario, start, last)


@dataclass(frozen=True, slots=True)
class _Server:
    """The server's side of a run: plan, orders, results, next state."""

    method: Method
    engine: Engine
    train: Train
    seed: int
    deletions: tuple[Deletion, ...]
    timer: PhaseTimer
    task: Task
    samples: Tensor | None
    partial_sums: int | None

    def rounds(self, scenario: Scenario, now: Snapshot, last: int | None) -> Iterator[Snapshot]:
        # From here on the engine holds the client states.
        now = replace(now, client_states={})
        now = self._forget(now, [d for d in self.deletions if d.round < now.round])
        while last is None or now.round < last:
            now = self._forget(now, [d for d in self.deletions if d.round == now.round])
            plan = without(scenario.at(now.round), self.deletions)
            with one_thread():
                now = self._round(now, plan) if plan.visits else replace(now, round=now.round + 1)
            known = self.engine.state_dict() if isinstance(self.engine, StatefulEngine) else {}
            yield replace(now, client_states=snapshot_of(self.engine.client_states), engine=known)

    def _round(self, now: Snapshot, plan: Plan) -> Snapshot:
        with self.timer("memory"):
            past = self._past(now)
        # An engine whose clients are elsewhere may not get enough answers; nothing changes then.
        skipped = replace(now, round=now.round + 1)
        trained = {name: tensor for name, tensor in now.server.items() if name != SERVED}
        now = replace(now, server=self.method.composed.draw(trained, self.seed, now.round))
        orders = self._orders(now, plan, now.server, past)
        traffic = now.traffic
        if self.method.composed.two_phase:
            answers = _sorted(self.engine.prepare(self.method, orders, plan))
            if not answers:
                return skipped
            server = self.method.composed.begin(now.server, self._uploads(now, answers))
            traffic = traffic.after(orders, answers)
            orders = self._orders(now, plan, server, past)
            now = replace(now, server=server)
        results, summed = self._results(orders, plan)
        if not results:
            return skipped
        with self.timer("aggregate"):
            left_out = summed.left_out_bytes if summed else 0
            traffic = traffic.after(orders, results, left_out)
            return replace(self._next(now, results, summed), traffic=traffic)

    def _results(self, orders: list[Order], plan: Plan) -> tuple[list[Result], SummedRound | None]:
        """Train the clients; with partial sums return these, too."""
        if self.partial_sums is None:
            return _sorted(self.engine.map(self.method, orders, plan)), None
        if isinstance(self.engine, SummingEngine):
            summed = self.engine.map_summed(self.method, orders, plan, self.partial_sums)
        else:
            results = _sorted(self.engine.map(self.method, orders, plan))
            with self.timer("aggregate"):
                summed = summed_here(results, self.partial_sums, self.method)
        return summed.results, summed

    def _forget(self, now: Snapshot, due: Sequence[Deletion]) -> Snapshot:
        """Apply the deletions that are due; at the start also older ones, added after the run had started."""
        if not due:
            return now
        apply_deletions(self.engine.client_states, due)
        gone = {client for deletion in due for client in deletion.clients}
        server = self.method.composed.forget(now.server, sorted(gone)) if gone else now.server
        return replace(now, server=server, past=tuple(k for k in now.past if k.client not in gone))

    def _past(self, now: Snapshot) -> Surrogate | None:
        """Recall the server's memory as a surrogate; ``None`` if the memory is not on the server."""
        if self.method.memory.location != "server":
            return None
        weights = self.method.weights.resolve(now.weighting_state)
        sizes = [item.size for item in now.past]
        typical = round(sum(sizes) / len(sizes)) if sizes else 1
        return self.method.memory.recall(now.past, weights, Moment(now.round, None, typical))

    def _orders(
        self, now: Snapshot, plan: Plan, server: Record, past: Surrogate | None
    ) -> list[Order]:
        weights = self.method.weights.resolve(now.weighting_state)
        backbone, train = self.method.composed, self.train.at(now.round)
        sent, address = backbone.broadcast(server), backbone.address
        return [
            Order(now.round, i, address(sent, i), now.buffers, weights, past, train, self.seed)
            for i in plan.visits
        ]

    def _uploads(self, now: Snapshot, results: list[Result]) -> Uploads:
        weight, backbone = shares(results, self.method.average), self.method.composed
        return [
            Upload(
                weight[r.client],
                backbone.unpack(r.upload, now.server["params"]),
                None if backbone.private else r.client,
            )
            for r in results
        ]

    def _bench(self, now: Snapshot, buffers: Vector, results: list[Result]) -> Bench:
        objective = self.task.objective()
        objective.buffers = buffers
        samples = torch.empty(0) if self.samples is None else self.samples
        generator = torch_generator(self.seed, "refine", now.round)
        return Bench(objective, samples, now.server, [r.buffers for r in results], generator)

    def _buffers(self, results: list[Result]) -> Vector:
        if not results[0].buffers.numel():
            return results[0].buffers
        weight = shares(results, self.method.average)
        return weighted_mean([(weight[r.client], {"b": r.buffers}) for r in results], "b")

    def _next(self, now: Snapshot, results: list[Result], summed: SummedRound | None) -> Snapshot:
        method = self.method
        uploads = self._uploads(now, results) if summed is None else summed.uploads
        backbone = method.composed
        server = backbone.aggregate(now.server, uploads)
        _check_finite(now.round, server)
        buffers = self._buffers(results) if summed is None else summed.buffers
        if backbone.refines:
            bench = self._bench(now, buffers, results)
            server = backbone.refine(server, uploads, bench)
            _check_finite(now.round, server)
        server = method.serve(server)
        new = [
            MemoryItem(now.round, r.client, r.key, r.size, r.record) for r in results if r.record
        ]
        generator = torch_generator(self.seed, "retain", now.round)
        past = method.memory.retain(now.past, new, generator) if new else now.past
        probes = {r.client: r.probe for r in results if r.probe}
        learned = method.weights.update(now.weighting_state, probes, now.round)
        return replace(
            now,
            round=now.round + 1,
            server=server,
            buffers=buffers,
            past=past,
            weighting_state=learned,
        )


def _check_finite(round_: int, server: Record) -> None:
    # The sum is finite only if every parameter is, and takes one pass.
    if not math.isfinite(server["params"].sum(dtype=torch.float64)):
        msg = f"round {round_}: the model is no longer finite; try a smaller train.lr"
        raise DivergedError(msg)


def _sorted(results: Iterable[Result]) -> list[Result]:
    """Sort by client, so that sums do not depend on who answered first."""
    return sorted(results, key=lambda result: result.client)

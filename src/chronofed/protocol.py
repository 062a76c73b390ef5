"""What travels between server and client, and what a client does with an order."""

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Generator

from chronofed.backbones import Backbone, FedAvg
from chronofed.clock import Clock
from chronofed.config import Config
from chronofed.local import Local, Train
from chronofed.memories import Forget, Keepsake, Memory, Moment
from chronofed.probe import probe
from chronofed.scenarios.base import Plan
from chronofed.seeds import global_torch_seed, torch_generator
from chronofed.surrogate import Surrogate
from chronofed.types import Objective, Record, Samples, Vector
from chronofed.weights import Merged, RoundWeights


class Method(Config):
    """A point of the product space that the paper explores: backbone x memory x round weights.

    Attributes:
        backbone: The federated optimiser.
        memory: The approximation of past objectives.
        weights: How much the present and each remembered round count.
        average: Whether clients count by their number of samples, or all the same (the paper's 1/S).

    >>> from chronofed import CoreSet, FedProx, Method, Optimal
    >>> Method(FedProx(mu=0.1), CoreSet(size=100), Optimal(drift=1.0, loss=0.5)).stateful
    True
    """

    backbone: Backbone = FedAvg()
    memory: Memory = Forget()
    weights: RoundWeights = Merged()
    average: Literal["samples", "clients"] = "samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        leak = _leak(self) if self.backbone.private else None
        if leak is not None:
            raise ValueError(leak)

    @property
    def stateful(self) -> bool:
        """Whether the same client must come back (``Applicable Scenarios for Different Algorithms``)."""
        return self.backbone.stateful or self.memory.home == "client"


def _leak(method: Method) -> str | None:
    """What would leave a client beside what a private backbone covers, in one line."""
    if method.average == "samples":
        return "average: Private needs clients that count the same; set average = 'clients'"
    uncovered = "go to the server, which Private does not cover; choose"
    if method.memory.home == "server":
        return f"memory: records of {type(method.memory).__name__} {uncovered} another memory"
    if method.weights.probes:
        return f"weights: reports for {type(method.weights).__name__} {uncovered} other weights"
    return None


@dataclass(frozen=True, slots=True)
class Order:
    """Server to client: train from this state, with this past.

    Attributes:
        round: The round, counted from 0.
        client: Whom it is for.
        server: The backbone's server state.
        buffers: The model's buffers.
        weights: Round weights, with all constants known.
        past: The past, where the server remembers it.
        train: How to train.
        seed: Root of the run's randomness.
    """

    round: int
    client: int
    server: Record
    buffers: Vector
    weights: RoundWeights
    past: Surrogate | None
    train: Train
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """Client to server.

    Attributes:
        client: Who answers.
        key: Which of its data sets it held.
        size: Number of present samples.
        upload: What the backbone sends.
        buffers: The model's buffers after training.
        kept: For the server's memory; empty if the memory lives elsewhere.
        probe: For weights that learn their constants; empty for others.
    """

    client: int
    key: int
    size: int
    upload: Record
    buffers: Vector
    kept: Record = field(default_factory=dict)
    probe: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Locker:
    """What stays with a client between its visits."""

    state: Record = field(default_factory=dict)
    kept: tuple[Keepsake, ...] = ()


@dataclass(frozen=True, slots=True)
class Trained:
    """What is left of local training.

    Attributes:
        upload: What the backbone sends.
        state: What it keeps on the client.
        params: The model at the end.
    """

    upload: Record
    state: Record
    params: Vector


@dataclass(frozen=True, slots=True)
class Observed:
    """What a memory made of the present, and the randomness with which it goes on."""

    record: Record
    generator: Generator


class Engine(Protocol):
    """Carries orders to clients and results back: a map, nothing more."""

    @property
    def lockers(self) -> MutableMapping[int, Locker]:
        """What the clients keep; empty where it is not this engine's to see."""
        ...

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Answers to the exchange that begins a round, in any order."""
        ...

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Results of training, in any order."""
        ...


@dataclass(frozen=True, slots=True)
class Client:
    """A client at work on one order.

    Attributes:
        method: How to learn.
        order: What to do.
        locker: What it kept from earlier visits; ``None`` on the first.
        objective: The model.
        samples: The present data.
        key: Which of its data sets they are.
        clock: Where time is booked.
        draws: Whether the model may draw from torch's global generator, which is then seeded; threads, which
            share that generator, serve only models that do not.
    """

    method: Method
    order: Order
    locker: Locker | None
    objective: Objective
    samples: Samples
    key: int
    clock: Clock = field(default_factory=Clock)
    draws: bool = True

    def prepare(self) -> Result:
        """Answer the exchange that begins a round; nothing is kept."""
        self.objective.buffers = self.order.buffers
        with self._seeded("prepare"):
            local = self.recall(self.opened())
            upload = self.method.backbone.prepare(self.order.server, local)
        return Result(self.order.client, self.key, len(self.samples), upload, self.order.buffers)

    def serve(self) -> tuple[Result, Locker]:
        """Train (``CFL Algorithm Framework``, the inner loop): the result and the next locker."""
        locker = self.opened()
        local = self.recall(locker)
        with self.clock("train"), self._seeded("layers"):
            trained = self._train(local, locker)
        return self.conclude(locker, trained)

    def opened(self) -> Locker:
        """What it kept; on the first visit what the backbone starts with."""
        if self.locker is not None:
            return self.locker
        return Locker(self.method.backbone.init_client(self.order.server["params"]))

    def recall(self, locker: Locker) -> Local:
        """Before training: the past, and all that the client can compute."""
        with self.clock("memory"):
            return self._local(locker)

    def conclude(
        self, locker: Locker, trained: Trained, observed: Observed | None = None
    ) -> tuple[Result, Locker]:
        """After training: remember, report, answer; ``observed`` if it was already, with others."""
        order, buffers = self.order, self.objective.buffers
        with self.clock("memory"):
            locker, kept = self._remember(
                Locker(trained.state, locker.kept), trained.params, observed
            )
        with self.clock("probe"):
            report = self._probe(kept)
        if self.method.memory.home != "server":
            kept = {}
        size, upload = len(self.samples), trained.upload
        return Result(order.client, self.key, size, upload, buffers, kept, report), locker

    @property
    def _place(self) -> tuple[int, int]:
        return self.order.round, self.order.client

    def _seeded(self, purpose: str) -> AbstractContextManager[None]:
        if not self.draws:
            return nullcontext()
        return global_torch_seed(self.order.seed, purpose, *self._place)

    def _local(self, locker: Locker) -> Local:
        order = self.order
        past = order.past
        if past is None:
            moment = Moment(order.round, self.key, len(self.samples))
            past = self.method.memory.recall(locker.kept, order.weights, moment)
        generator = torch_generator(order.seed, "train", *self._place)
        pace = 1.0
        if order.train.slow:
            pace = order.train.pace(torch_generator(order.seed, "pace", *self._place))
        return Local(self.objective, self.samples, past, order.train, generator, pace)

    def _train(self, local: Local, locker: Locker) -> Trained:
        backbone, server = self.method.backbone, self.order.server

        def direction(params: Vector) -> Vector:
            gradient = backbone.gradient(params, server, local)
            return backbone.direction(gradient, params, server, locker.state)

        self.objective.buffers = self.order.buffers
        params = local.descend(server["params"], direction)
        if self.method.memory.pollutes and local.past.replay is not None:
            self.objective.refresh(params, self.samples)
        upload, state = backbone.finish(params, server, locker.state, local)
        return Trained(upload, state, params)

    def observer(self) -> Generator:
        """The randomness with which the present is observed and kept."""
        return torch_generator(self.order.seed, "observe", *self._place)

    def _observe(self, params: Vector) -> Observed:
        generator = self.observer()
        record = self.method.memory.observe(self.objective, params, self.samples, generator)
        return Observed(record, generator)

    def _remember(
        self, locker: Locker, params: Vector, observed: Observed | None
    ) -> tuple[Locker, Record]:
        """Observe the present; a memory on the client keeps it, one on the server sends it."""
        memory, order = self.method.memory, self.order
        if memory.home == "nowhere":
            return locker, {}
        observed = observed or self._observe(params)
        record = observed.record
        if memory.home != "client" or not record:
            return locker, record
        new = Keepsake(order.round, order.client, self.key, len(self.samples), record)
        return Locker(locker.state, memory.retain(locker.kept, [new], observed.generator)), record

    def _probe(self, record: Record) -> Record:
        """What weights need to learn their constants: the present gradient at the server's model."""
        method, order = self.method, self.order
        if not method.weights.probes:
            return {}
        self.objective.buffers = order.buffers
        new = Keepsake(order.round, order.client, self.key, len(self.samples), record)
        memory = method.memory if record else None
        return probe(memory, self.objective, order.server["params"], self.samples, new)


def shares(results: list[Result], average: Literal["samples", "clients"]) -> dict[int, float]:
    """Weight of every client in the round's mean, before it is divided by the sum."""
    return {r.client: float(r.size) if average == "samples" else 1.0 for r in results}

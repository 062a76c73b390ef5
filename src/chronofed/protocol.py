"""What travels between server and client, and what a client does with an order."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from chronofed.backbones import Backbone, FedAvg
from chronofed.config import Config
from chronofed.local import Local, Train
from chronofed.memories import Forget, Keepsake, Memory, Moment
from chronofed.scenarios.base import Plan
from chronofed.seeds import global_torch_seed, torch_generator
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

    @property
    def stateful(self) -> bool:
        """Whether the same client must come back (``Applicable Scenarios for Different Algorithms``)."""
        return self.backbone.stateful or self.memory.home == "client"


@dataclass(frozen=True, slots=True)
class Order:
    """Server to client: train from this state."""

    round: int
    client: int
    server: Record
    buffers: Vector
    train: Train
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """Client to server."""

    client: int
    size: int  # number of present samples
    upload: Record
    buffers: Vector


@dataclass(frozen=True, slots=True)
class Locker:
    """What stays with a client between its visits."""

    state: Record = field(default_factory=dict)
    kept: tuple[Keepsake, ...] = ()


class Engine(Protocol):
    """Carries orders to clients and results back: a map, nothing more."""

    @property
    def lockers(self) -> MutableMapping[int, Locker]:
        """What the clients keep; empty where it is not this engine's to see."""
        ...

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Results, in any order."""
        ...


def serve(
    method: Method,
    order: Order,
    locker: Locker | None,
    objective: Objective,
    samples: Samples,
    key: int,
) -> tuple[Result, Locker]:
    """Carry out an order (``CFL Algorithm Framework``, the inner loop): the result and the next locker."""
    backbone, memory, server = method.backbone, method.memory, order.server
    if locker is None:
        locker = Locker(backbone.init_client(server["params"]))
    place = (order.round, order.client)
    past = memory.recall(locker.kept, method.weights, Moment(order.round, key, len(samples)))
    generator = torch_generator(order.seed, "train", *place)
    local = Local(objective, samples, past, order.train, generator)

    def direction(params: Vector) -> Vector:
        grad = local.stochastic_gradient(params)
        return backbone.direction(grad, params, server, locker.state)

    objective.buffers = order.buffers
    with global_torch_seed(order.seed, "layers", *place):
        params = local.descend(server["params"], direction)
        upload, state = backbone.finish(params, server, locker.state, local)
    buffers = objective.buffers
    record = memory.observe(
        objective, params, samples, torch_generator(order.seed, "observe", *place)
    )
    kept = memory.retain(locker.kept, Keepsake(order.round, key, record))
    return Result(order.client, len(samples), upload, buffers), Locker(state, kept)


def shares(results: list[Result], average: Literal["samples", "clients"]) -> Mapping[int, float]:
    """Weight of every client in the round's mean, before it is divided by the sum."""
    return {r.client: float(r.size) if average == "samples" else 1.0 for r in results}

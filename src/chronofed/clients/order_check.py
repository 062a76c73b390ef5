"""Check every order on the client before it costs anything: a hostile server must not occupy or crash a client.

An order must have the tensors that the client's own method expects on its own model, with finite numbers, and
its training must stay within the client's own limits. :class:`~chronofed.clients.screening.Screen` is the same
for replies, on the server.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from chronofed.clients.client import Client
from chronofed.clients.messages import Exchange, Order
from chronofed.clients.screening import TensorSpec, tensor_spec
from chronofed.clients.state import ClientState
from chronofed.core.config import Config, Count, Positive
from chronofed.core.errors import RunError
from chronofed.core.types import Batch, Objective, Record, Samples, Vector
from chronofed.methods.backbones.base import Upload, first_server_state
from chronofed.methods.heads.base import ASKED, WHEN_ASKED
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.methods.surrogate import Quadratic, Surrogate, Teacher
from chronofed.models.objective import TorchObjective


class OrderLimits(Config):
    """Limits beyond which a client refuses to work on an order.

    Attributes:
        max_steps: Maximum number of local steps in a round.
        max_round_s: Maximum seconds that one order may take; the client then stops with an error.
    """

    max_steps: Count = 100_000
    max_round_s: Positive = 86_400.0


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """Decides whether a client works on an order.

    Attributes:
        method: The client's own method.
        train: Local training in the client's own specification.
        objective: The client's model.
        samples: The client's present data.
        limits: The client's limits.
    """

    method: Method
    train: Train
    objective: TorchObjective
    samples: Samples
    limits: OrderLimits

    def problem(self, order: Order, exchange: Exchange, state: ClientState | None) -> str | None:
        """Say in one line why an order must be refused; ``None`` if it may be served."""
        return (
            self._too_much(order.train, state)
            or self._wrong_tensor(order, exchange)
            or self._wrong_state(state, order.train)
            or (None if order.past is None else self._wrong_past(order.past))
        )

    def _too_much(self, train: Train, state: ClientState | None) -> str | None:
        kept = [item.record["y"] for item in state.items if "y" in item.record] if state else []
        samples = len(self.samples) + sum(map(len, kept))
        limit = self.limits.max_steps
        # An infinite number of epochs has no number of steps.
        if train.epochs > limit or train.count(samples, samples) > limit:
            return f"train: more than {limit} local steps; max_steps in the node's settings allows more"
        own = self.train.batch_size
        largest = max(samples, own) if isinstance(own, int) else samples
        if isinstance(train.batch_size, int) and train.batch_size > largest:
            return f"train.batch_size: {train.batch_size} is above {largest}, this client's own"
        return self._too_large("train", train.lr, train.weight_decay)

    def _too_large(self, where: str, *numbers: float) -> str | None:
        """Refuse factors that the model's numbers cannot hold, and NaN."""
        dtype = self.objective.flat.read().dtype
        largest = torch.finfo(dtype).max
        wrong = [number for number in numbers if not abs(number) <= largest]
        return f"{where}: {wrong[0]:g} is too large for {dtype}" if wrong else None

    def _wrong_tensor(self, order: Order, exchange: Exchange) -> str | None:
        expected = self._expected(order, exchange)
        left_out = () if ASKED in order.server else WHEN_ASKED
        for name, spec in expected.items():
            if name in left_out and name not in order.server:
                continue
            problem = spec.problem(order.server[name]) if name in order.server else "missing"
            if problem is not None:
                return f"server.{name}: {problem}; does the server have another model?"
        problem = tensor_spec(self.objective.buffers).problem(order.buffers)
        return (
            None if problem is None else f"buffers: {problem}; does the server have another model?"
        )

    def _expected(self, order: Order, exchange: Exchange) -> dict[str, TensorSpec]:
        """Return the tensors that the method sends, from its first round; axes may depend on the clients."""
        # Enough clients that this one is among them.
        least = max(2, order.client + 1)
        one, other = (self._first_order(order, exchange, n) for n in (least, least + 1))
        return {name: _growing(one[name], other[name]) for name in one}

    def _first_order(self, order: Order, exchange: Exchange, clients: int) -> Record:
        backbone, params = self.method.composed, self.objective.flat.read()
        server = first_server_state(backbone, params, clients, self.objective)
        server = backbone.draw(server, 0, 0)
        if exchange == "train" and backbone.two_phase:
            # BatchNorm needs more than one sample.
            some = self.samples[torch.zeros(2, dtype=torch.int64)]
            train = Train(steps=1, batch_size="full")
            sent = backbone.address(backbone.broadcast(server), order.client)
            first = replace(
                order,
                server=sent,
                buffers=self.objective.buffers,
                train=train,
                past=Surrogate(),
                round=0,
            )
            answer = Client(self.method, first, None, self.objective, some, key=0).prepare()
            some_clients = range(max(0, clients - 3), clients)
            upload = backbone.unpack(answer.upload, params)
            # Others may hold another part of the model, so all are like this one.
            uploads = [Upload(1.0, upload, order.client) for _ in some_clients]
            server = backbone.begin(server, uploads)
        return backbone.address(backbone.broadcast(server), order.client)

    def _wrong_state(self, state: ClientState | None, train: Train) -> str | None:
        """Check what the client kept: its file may be older than its model."""
        if state is None:
            return None
        params, problem = self.objective.flat.read(), None
        if state.backbone_state:
            expected = self.method.composed.init_client(params)
            problem = _unlike(expected, {name: state.backbone_state.get(name) for name in expected})
        if problem is None and train.keeps_state:
            first, kept = train.first_state(params), state.optimizer_state
            problem = _unlike({name: first.get(name.partition(".")[2]) for name in kept}, kept)
        return problem and f"the client's own state: {problem}; was it kept for another model?"

    def _wrong_past(self, past: Surrogate) -> str | None:
        problem = self._too_large("the weight of the present", past.present)
        if problem is None and past.quadratic is not None:
            problem = self._wrong_quadratic(past.quadratic)
        if problem is None and past.replay is not None:
            problem = self._wrong_replay(past.replay.samples, past.replay.weight, past.replay.even)
        for teacher in past.teachers:
            problem = problem or self._wrong_teacher(teacher)
        return None if problem is None else f"past: {problem}"

    def _wrong_quadratic(self, quadratic: Quadratic) -> str | None:
        if quadratic.spans and quadratic.spans[-1].stop > self.objective.flat.size:
            return "the quadratic surrogate does not fit the model"
        width = sum(span.stop - span.start for span in quadratic.spans)
        spec = TensorSpec(self.objective.flat.read().dtype, (width,))
        return (
            self._too_large("scale", *quadratic.scale)
            or spec.problem(quadratic.linear)
            or spec.problem(quadratic.diagonal)
        )

    def _wrong_teacher(self, teacher: Teacher) -> str | None:
        problem = self._too_large("a teacher", teacher.weight, teacher.temperature)
        pairs = (
            (self.objective.flat.read(), teacher.params),
            (self.objective.buffers, teacher.buffers),
        )
        for like, found in pairs:
            if problem is None and found is not None:
                problem = tensor_spec(like).problem(found)
        if problem is None and teacher.classes is not None:
            problem = TensorSpec(torch.int64, (None,)).problem(teacher.classes)
            problem = problem or self._wrong_classes("a teacher's classes", teacher.classes)
        return problem

    def _wrong_classes(self, what: str, numbers: Tensor) -> str | None:
        if numbers.is_floating_point() or not len(numbers):
            # The targets of a regression; the form of a tensor says that numbers are finite.
            return None
        logits = self.objective.logits(self.objective.flat.read(), self.samples.x[:1])
        last = logits.shape[1] - 1
        if not 0 <= int(numbers.min()) <= int(numbers.max()) <= last:
            return f"{what} must be 0 to {last}"
        return None

    def _wrong_replay(self, samples: Samples, weight: Tensor, even: float | None) -> str | None:
        n, like = len(samples), self.samples
        return (
            self._too_large("weight", even or 0.0)
            or TensorSpec(like.x.dtype, (n, *like.x.shape[1:])).problem(samples.x)
            or TensorSpec(like.y.dtype, (n,)).problem(samples.y)
            or TensorSpec(torch.float64, (n,)).problem(weight)
            or self._wrong_classes("labels", samples.y)
        )


def _unlike(expected: Mapping[str, Tensor | None], kept: Mapping[str, Tensor | None]) -> str | None:
    """Name the first tensor that was kept in another form than expected."""
    for name, tensor in expected.items():
        found = kept[name]
        if tensor is None or found is None:
            return f"{name}: {'unknown' if tensor is None else 'missing'}"
        problem = _growing(tensor).problem(found)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _growing(first: Tensor, other: Tensor | None = None) -> TensorSpec:
    """Return the form of a tensor from its first value: an axis that is empty at first may have any length."""
    spec = tensor_spec(first, other)
    return replace(spec, shape=tuple(n or None for n in spec.shape))


def with_time_limit(objective: TorchObjective, limit_s: float) -> Objective:
    """Return an objective that raises an error when it is asked for a gradient after some seconds."""
    return cast(Objective, _TimedObjective(objective, limit_s))


class _TimedObjective:
    """An objective with a time limit for gradients; everything else is the objective's own."""

    def __init__(self, objective: TorchObjective, limit_s: float) -> None:
        self._objective = objective
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s

    @property
    def buffers(self) -> Vector:
        return self._objective.buffers

    @buffers.setter
    def buffers(self, values: Vector) -> None:
        self._objective.buffers = values

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        if time.monotonic() > self._end:
            raise RunError(
                f"the order took more than {self._limit_s:g} s; max_round_s in the node's settings allows more"
            )
        return self._objective.gradient(params, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

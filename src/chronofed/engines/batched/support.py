"""The limits of the batched engine: what it cannot train is refused with the reason in one line.

The kernel replaces the code that a single client runs: the objective's gradient, the module, and the loop of
:mod:`chronofed.methods.local`. A part that changes that code must not be ignored in silence. So every part
declares what it can do, and what the kernel does not know is refused:

* Records. :data:`READ_FIELDS` lists the fields that the kernel honours. A new field of such a class is refused
  as soon as it is not at its default, until it is listed here.
* Methods of a backbone. ``start``, ``gradient`` and ``direction`` must be declared
  :func:`~chronofed.core.stacking.stacked`; an override that does not repeat the declaration is not. An override
  of ``address`` is refused: all clients of a round must be sent the same.
* Memories that declare ``teaches``.
* Models and objectives. :func:`~chronofed.engines.batched.layout.layout_of` accepts only what it recognises.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from chronofed.clients.messages import Order
from chronofed.core.errors import IncompatibleError
from chronofed.core.stacking import works_stacked
from chronofed.core.types import Batch, Samples, Task
from chronofed.engines.batched.layout import Layout, layout_of
from chronofed.engines.batched.losses import CROSS_ENTROPY
from chronofed.methods.backbones import Backbone
from chronofed.methods.local import ClientLocal, Train
from chronofed.methods.memories import Moment
from chronofed.methods.method import Method
from chronofed.methods.surrogate import Quadratic, Surrogate
from chronofed.methods.wrappers.base import Wrapper, parts

READ_FIELDS: Mapping[type, frozenset[str]] = {
    Method: frozenset({"backbone", "memory", "weights", "average", "head"}),
    Train: frozenset(
        {"lr", "batch_size", "epochs", "steps", "momentum", "weight_decay", "epoch", "slow"}
        | {"nesterov", "optimizer", "betas", "eps", "optimizer_state", "clip_norm", "schedule"}
        | {"steps_schedule"}
    ),
    Order: frozenset({"round", "client", "server", "buffers", "weights", "past", "train", "seed"}),
    ClientLocal: frozenset(
        {"objective", "samples", "past", "train", "generator", "pace", "pool", "steps", "_draws"}
        | {"optimizer_state", "descents"}
        # StackedLocal refuses to hand these out; a method that is not stacked gets its client's own.
        | {"key", "scratch"}
        # These models have none.
        | {"buffers"}
    ),
    Samples: frozenset({"x", "y", "rows"}),
    Surrogate: frozenset({"present", "replay", "quadratic"}),
    Quadratic: frozenset({"spans", "scale", "linear", "diagonal"}),
    Batch: frozenset({"x", "y", "weight"}),
}
"""Fields that the kernel honours: it reads them itself, or calls the code that does."""

REFUSED_FIELDS: Mapping[type, frozenset[str]] = {
    Surrogate: frozenset({"teachers", "keep"}),
    Samples: frozenset({"outputs"}),
    Batch: frozenset({"offset", "scale", "outputs"}),
    Method: frozenset({"loss"}),
    ClientLocal: frozenset({"terms"}),
}
"""Fields that it knows and does not read: a record that sets one is refused."""

_REQUIRED = object()


def unsupported(method: Method, task: Task, train: Train | None = None) -> str | None:
    """Return the reason, in one line, why this cannot be batched; ``None`` if it can."""
    layout = layout_of(task.objective())
    if isinstance(layout, str):
        return layout
    samples = task.samples(np.zeros(1, dtype=np.int64))
    return (
        _unsupported_samples(layout, samples)
        or unsupported_method(method)
        or unread_field(train or Train())
    )


def unsupported_method(method: Method) -> str | None:
    """Refuse a backbone that works on one client at a time, and a memory with its own kind of surrogate."""
    for part in parts(method.composed):
        for name in ("start", "gradient", "direction"):
            if not works_stacked(getattr(part, name)):
                where = f"{type(part).__name__}.{name}"
                return f"{where} is not declared to work on stacked clients (@stacked)"
        if type(part).address not in (Backbone.address, Wrapper.address):
            return f"{type(part).__name__}.address sends clients different states, and the kernel reads one"
    if method.memory.teaches:
        return f"{type(method.memory).__name__} recalls teachers, which the kernel does not read"
    # What the memory would recall in the first round, when it has kept nothing.
    weights = method.weights.resolve(method.weights.init())
    key = None if method.memory.location == "server" else 0
    past = method.memory.recall((), weights, Moment(0, key, 1))
    return unread_field(method) or _unsupported_past(past)


def unsupported_orders(orders: Sequence[Order]) -> str | None:
    """Refuse orders with settings that the kernel does not read, or does not read from each of them."""
    for order in orders:
        reason = unread_field(order) or unread_field(order.train)
        if reason is not None:
            return reason
        if order.train.schedule is not None or order.train.steps_schedule is not None:
            return "an order has a schedule of rates or steps, which the server applies"
        if order.server is not orders[0].server or order.train != orders[0].train:
            return "the orders of a round differ in the server's state or in their training"
    return None


def check_local(local: ClientLocal) -> None:
    """Refuse a local problem that the kernel does not know.

    Raises:
        IncompatibleError: If it has a field or a type that the kernel ignores.
    """
    if type(local) is not ClientLocal:
        reason: str | None = f"{type(local).__name__} overrides ClientLocal"
    else:
        reason = unread_field(local) or unread_field(local.samples) or _unsupported_past(local.past)
    if reason is not None:
        raise IncompatibleError(f"engine batched: {reason}; use engine = 'threads'")


def follows_gradient(backbone: Backbone) -> bool:
    """Decide whether a local step is the plain stochastic gradient, so that it may be fused."""
    return all(
        getattr(step, "plain_gradient", False)
        for part in parts(backbone)
        for step in (part.gradient, part.direction)
    )


def unread_field(record: object) -> str | None:
    """Refuse a record with a field that the kernel does not read and that is not at its default."""
    kind = type(record)
    # mypy takes a class's __hash__ for that of its instances.
    for name, default in _unread_fields(kind):  # type: ignore[arg-type]
        value = getattr(record, name)
        if value is not default and (isinstance(value, Tensor) or value != default):
            return f"{kind.__name__}.{name} is set, which the kernel does not read"
    return None


@cache
def _unread_fields(kind: type[Any]) -> tuple[tuple[str, object], ...]:
    """Return the fields of a class that are not in :data:`READ_FIELDS`, with their defaults."""
    read = next(READ_FIELDS[base] for base in kind.__mro__ if base in READ_FIELDS)
    return tuple((name, default) for name, default in _fields(kind) if name not in read)


def _fields(kind: type[Any]) -> Iterator[tuple[str, object]]:
    if issubclass(kind, msgspec.Struct):
        for item in msgspec.structs.fields(kind):
            yield item.name, _default(item.default, item.default_factory, msgspec.NODEFAULT)
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            yield field.name, _default(field.default, field.default_factory, dataclasses.MISSING)


def _default(value: object, factory: object, missing: object) -> object:
    if value is not missing:
        return value
    return factory() if callable(factory) else _REQUIRED


def _unsupported_past(past: Surrogate) -> str | None:
    if type(past) is not Surrogate or type(past.quadratic) not in (Quadratic, type(None)):
        return "the memory's surrogate is of a type of its own"
    return unread_field(past) or (unread_field(past.quadratic) if past.quadratic else None)


def _unsupported_samples(layout: Layout, samples: Samples) -> str | None:
    numbers = layout.loss.kind != CROSS_ENTROPY
    whole = samples.y.dtype == torch.int64
    if samples.y.dim() != 1 or not (whole or (numbers and samples.y.is_floating_point())):
        return "labels are not numbers of classes" if not numbers else "targets are not numbers"
    if numbers and layout.layers[-1].outputs != 1:
        return "the model of a regression has more than one output"
    if not layout.scaled and samples.x.dtype != layout.dtype:
        return "samples are not of the model's dtype"
    return unread_field(samples)

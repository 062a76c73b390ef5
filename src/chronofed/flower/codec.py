"""Orders and results as messages.

The body of an order is the same for all clients of a round, unless the backbone addresses them one by one. So
it is encoded once, and Flower, which identifies objects by their content, transfers and stores it once. A
reader refuses a body that is too large or malformed.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated

import msgspec
from torch import Tensor

from chronofed.clients.messages import Exchange, Order, Result
from chronofed.core import safetensors_io
from chronofed.core.errors import ChronofedError
from chronofed.core.limits import MESSAGE_HEADER
from chronofed.core.spec_io import from_table, to_table
from chronofed.core.types import OutputForm, Record, Samples
from chronofed.flower.messages import (
    PROTOCOL,
    Message,
    MessageError,
    Reply,
    Request,
    Table,
    encode_header,
)
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.methods.surrogate import Pool, Quadratic, Surrogate, Teacher
from chronofed.methods.weighting import RoundWeights

MAX_BODY_BYTES = 2**32
"""Default limit for the size of a body."""
ORDER_PARTS = ("server", "model", "quadratic", "replay", "teachers")
"""Records in the body of an order."""
TEACHER_TENSORS = ("params", "buffers", "classes")
"""Tensors of a teacher."""


class TeacherSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A teacher in a header; its tensors are in the body.

    Attributes:
        weight: Weight of its distillation loss.
        temperature: Temperature of both outputs.
        form: The way in which outputs become probabilities.
    """

    weight: float
    temperature: Annotated[float, msgspec.Meta(gt=0)]
    form: OutputForm


class PastSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The surrogate of the past in a header; its tensors are in the body.

    Attributes:
        present: Weight of the present.
        spans: Start and stop of the parameters with a quadratic.
        scale: Factor of the present's gradient there.
        even: Sum of the weights of samples to replay, if all are equal.
        teachers: Models to distil from.
    """

    present: float
    spans: list[tuple[int, int]] = []
    scale: list[float] = []
    even: float | None = None
    teachers: list[TeacherSettings] = []


class OrderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order in a header; its tensors are in the body.

    Attributes:
        weights: Round weights.
        train: Local training.
        seed: Root of the run's randomness.
        past: Surrogate of the past, if the memory lives on the server.
    """

    weights: Table
    train: Table
    seed: Annotated[int, msgspec.Meta(ge=0)]
    past: PastSettings | None = None


class OrderWriter:
    """Writes the orders of a run as messages; encodes what the orders of a round share once.

    Args:
        run: Name of the run.
        fingerprint: Fingerprint of method and model.
    """

    def __init__(self, run: str, fingerprint: str) -> None:
        self._run, self._fingerprint = run, fingerprint
        self._last: tuple[Order, Table, bytes] | None = None

    def write(
        self, order: Order, exchange: Exchange, accepted: int = -1, anew: bool = False
    ) -> tuple[str, Message]:
        """Return the name of the order and its message.

        Args:
            order: The order.
            exchange: The exchange of the round.
            accepted: Round of this client's last reply that was accepted; -1 for none.
            anew: An earlier reply to this order was refused.
        """
        if self._last is None or not _differ_in_client_only(self._last[0], order):
            self._last = (order, *_encode_order(order))
        _, settings, body = self._last
        request = Request(
            PROTOCOL,
            exchange,
            self._run,
            self._fingerprint,
            order.round,
            order.client,
            settings,
            accepted,
            anew,
        )
        return request.name, Message(encode_header(request), body)


def read_order(
    request: Request, body: bytes, method: Method, max_bytes: int = MAX_BODY_BYTES
) -> Order:
    """Read the order in a message.

    Args:
        request: Header of the message.
        body: Body of the message.
        method: The client's method; custom round weights are accepted only if this method has them.
        max_bytes: Maximum size of the body.

    Raises:
        MessageError: If it is not an order.
    """
    records = decode_records(body, max_bytes)
    try:
        return _decode_order(request, records, method)
    except MessageError:
        raise
    except (KeyError, ValueError, ArithmeticError, ChronofedError) as error:
        raise MessageError(f"order {request.name}: malformed ({error})") from error


def write_result(request: Request, result: Result, held: int = -1) -> Message:
    """Write the reply with a client's result, and the round of the state that it worked from."""
    numbers = (result.client, result.key, result.size, held)
    header = encode_header(Reply(PROTOCOL, request.name, request.fingerprint, *numbers))
    records = {"upload": result.upload, "record": result.record, "probe": result.probe}
    tensors = {f"{place}/{name}": t for place, r in records.items() for name, t in r.items()}
    return Message(header, encode_tensors({**tensors, "model/buffers": result.buffers}))


def read_result(reply: Reply, body: bytes, max_bytes: int = MAX_BODY_BYTES) -> Result:
    """Read the result in a reply; screening checks its numbers later.

    Raises:
        MessageError: If it is not a result.
    """
    records = decode_records(body, max_bytes)
    try:
        buffers = records.pop("model")["buffers"]
    except KeyError as error:
        raise MessageError("the reply has no buffers") from error
    parts = [records.pop(place, {}) for place in ("upload", "record", "probe")]
    if records:
        raise MessageError(f"unexpected parts in the reply: {', '.join(records)}")
    upload, kept, probe = parts
    return Result(reply.client, reply.key, reply.size, upload, buffers, kept, probe)


def _differ_in_client_only(one: Order, other: Order) -> bool:
    names = (f.name for f in fields(Order) if f.name != "client")
    return all(getattr(one, name) is getattr(other, name) for name in names)


def _encode_order(order: Order) -> tuple[Table, bytes]:
    settings: Table = {
        "weights": to_table(order.weights),
        "train": to_table(order.train),
        "seed": order.seed,
    }
    tensors = {f"server/{name}": tensor for name, tensor in order.server.items()}
    tensors["model/buffers"] = order.buffers
    if order.past is not None:
        settings["past"], more = _encode_past(order.past)
        tensors |= more
    return settings, encode_tensors(tensors)


def _encode_past(past: Surrogate) -> tuple[Table, dict[str, Tensor]]:
    settings: Table = {"present": past.present}
    tensors: dict[str, Tensor] = {}
    if past.quadratic is not None:
        settings["spans"] = [[span.start, span.stop] for span in past.quadratic.spans]
        settings["scale"] = list(past.quadratic.scale)
        tensors["quadratic/linear"] = past.quadratic.linear
        tensors["quadratic/diagonal"] = past.quadratic.diagonal
    if past.replay is not None:
        settings["even"] = past.replay.even
        tensors["replay/x"] = past.replay.samples.x
        tensors["replay/y"] = past.replay.samples.y
        tensors["replay/weight"] = past.replay.weight
    if past.teachers:
        names = TeacherSettings.__struct_fields__
        settings["teachers"] = [{n: getattr(each, n) for n in names} for each in past.teachers]
        for k, each in enumerate(past.teachers):
            parts = {name: getattr(each, name) for name in TEACHER_TENSORS}
            tensors |= {f"teachers/{k}.{n}": t for n, t in parts.items() if t is not None}
    return settings, tensors


def _decode_order(request: Request, records: Mapping[str, Record], method: Method) -> Order:
    settings = msgspec.convert(request.order, OrderSettings)
    if not records.keys() <= set(ORDER_PARTS):
        raise MessageError(f"unexpected parts in the order: {', '.join(records)}")
    order = Order(
        request.round,
        request.client,
        records["server"],
        records["model"]["buffers"],
        _decode_weights(settings.weights, method),
        None if settings.past is None else _decode_past(settings.past, records),
        from_table(settings.train, Train, "train"),
        settings.seed,
    )
    params = order.server["params"]
    if params.dim() != 1:
        raise MessageError(f"the model has {params.dim()} axes instead of one")
    if order.past is not None and order.past.quadratic is not None:
        _check_spans(order.past.quadratic)
    return order


def _decode_weights(table: Table, method: Method) -> RoundWeights:
    """Read built-in weights, or those of the client's own method: a message must not choose an import."""
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise MessageError(f"weights without a kind: {kind!r:.80}")
    if ":" in kind and kind != to_table(method.weights)["kind"]:
        raise MessageError(
            f"weights {kind!r} are neither built in nor in this client's specification"
        )
    return from_table(table, RoundWeights, "weights")  # type: ignore[type-abstract]


def _decode_past(settings: PastSettings, records: Mapping[str, Record]) -> Surrogate:
    numbers = (settings.present, *settings.scale, settings.even or 0.0)
    numbers += tuple(x for each in settings.teachers for x in (each.weight, each.temperature))
    if not all(map(math.isfinite, numbers)):
        raise MessageError("the surrogate of the past has numbers that are not finite")
    past = Surrogate(settings.present)
    if "quadratic" in records:
        spans, part = tuple(slice(*span) for span in settings.spans), records["quadratic"]
        quadratic = Quadratic(spans, tuple(settings.scale), part["linear"], part["diagonal"])
        past = replace(past, quadratic=quadratic)
    if "replay" in records:
        part = records["replay"]
        if {part[name].dim() for name in ("y", "weight")} != {1} or not part["x"].dim():
            raise MessageError("samples to replay need one label and one weight each")
        samples = Samples(part["x"], part["y"])
        past = replace(past, replay=Pool(samples, part["weight"], settings.even))
    return replace(past, teachers=_decode_teachers(settings, records.get("teachers", {})))


def _decode_teachers(settings: PastSettings, record: Record) -> tuple[Teacher, ...]:
    known = {f"{k}.{name}" for k in range(len(settings.teachers)) for name in TEACHER_TENSORS}
    if not record.keys() <= known:
        raise MessageError("tensors of teachers that the header does not name")
    return tuple(
        Teacher(
            weight=each.weight,
            temperature=each.temperature,
            form=each.form,
            **{name: record.get(f"{k}.{name}") for name in TEACHER_TENSORS},
        )
        for k, each in enumerate(settings.teachers)
    )


def _check_spans(quadratic: Quadratic) -> None:
    """Refuse spans that do not fit their vectors; whether they fit the model, the check of the order says."""
    edges = [edge for span in quadratic.spans for edge in (span.start, span.stop)]
    inside = edges == sorted(edges) and (not edges or edges[0] >= 0)
    width = sum(span.stop - span.start for span in quadratic.spans)
    fits = quadratic.linear.shape == quadratic.diagonal.shape == (width,)
    if not inside or not fits or len(quadratic.scale) != len(quadratic.spans):
        raise MessageError("the quadratic surrogate does not fit the model")


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as a body; the name of each is ``record/name``."""
    return b"".join(safetensors_io.save({n: t.cpu() for n, t in tensors.items()}, {}))


def decode_records(body: bytes, max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Return the records in a body; no tensor shares memory with it.

    Raises:
        MessageError: If the body is too large or malformed.
    """
    if len(body) > max_bytes:
        raise MessageError(f"body too large: {len(body)} bytes, at most {max_bytes} are accepted")
    records: dict[str, dict[str, Tensor]] = {}
    try:
        tensors = safetensors_io.read_tensors(safetensors_io.Bytes(body), MESSAGE_HEADER)
    except ValueError as error:
        raise MessageError(f"malformed body: {error}") from error
    for name, tensor in tensors.items():
        record, slash, key = name.partition("/")
        if not slash:
            raise MessageError(f"a tensor that belongs to no record: {name!r:.80}")
        records.setdefault(record, {})[key] = tensor
    return records

"""Orders and results as messages.

The body of an order is the same for all clients of a round. So it is encoded once, and Flower, which identifies
objects by their content, transfers and stores it once. A reader refuses a body that is too large or malformed.
"""

from collections.abc import Mapping
from dataclasses import fields, replace

import msgspec
from torch import Tensor

from chronofed.clients.messages import Exchange, Order, Result
from chronofed.core import safetensors_io
from chronofed.core.errors import ChronofedError
from chronofed.core.spec_io import from_table, to_table
from chronofed.core.types import Record, Samples
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
from chronofed.methods.surrogate import Pool, Quadratic, Surrogate
from chronofed.methods.weighting import RoundWeights

MAX_BODY_BYTES = 2**32
"""Default limit for the size of a body."""
MAX_TENSORS = 10_000
"""Maximum number of tensors in a body."""


class OrderWriter:
    """Writes the orders of a run as messages; encodes what the orders of a round share once.

    Args:
        run: Name of the run.
        fingerprint: Fingerprint of method and model.
    """

    def __init__(self, run: str, fingerprint: str) -> None:
        self._run, self._fingerprint = run, fingerprint
        self._last: tuple[Order, Table, bytes] | None = None

    def write(self, order: Order, exchange: Exchange) -> tuple[str, Message]:
        """Return the name of the order and its message."""
        if self._last is None or not _differ_in_client_only(self._last[0], order):
            self._last = (order, *_encode_order(order))
        _, settings, body = self._last
        request = Request(
            PROTOCOL, exchange, self._run, self._fingerprint, order.round, order.client, settings
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
    except (KeyError, TypeError, ValueError, AttributeError, ChronofedError) as error:
        raise MessageError(f"order {request.name}: malformed ({error})") from error


def write_result(request: Request, result: Result) -> Message:
    """Write the reply with a client's result."""
    numbers = (result.client, result.key, result.size)
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
    return settings, tensors


def _decode_order(request: Request, records: Mapping[str, Record], method: Method) -> Order:
    settings = dict(request.order)
    past = settings.pop("past", None)
    order = Order(
        request.round,
        request.client,
        records["server"],
        records["model"]["buffers"],
        _decode_weights(settings["weights"], method),
        None if past is None else _decode_past(past, records),
        from_table(settings["train"], Train, "train"),
        msgspec.convert(settings["seed"], int),
    )
    size = len(order.server["params"])
    if order.past is not None and order.past.quadratic is not None:
        _check_spans(order.past.quadratic, size)
    return order


def _decode_weights(table: Table, method: Method) -> RoundWeights:
    """Read built-in weights, or those of the client's own method: a message must not choose an import."""
    kind = str(table.get("kind"))
    if ":" in kind and kind != to_table(method.weights)["kind"]:
        raise MessageError(
            f"weights {kind!r} are neither built in nor in this client's specification"
        )
    return from_table(table, RoundWeights, "weights")  # type: ignore[type-abstract]


def _decode_past(settings: Table, records: Mapping[str, Record]) -> Surrogate:
    past = Surrogate(msgspec.convert(settings["present"], float))
    if "quadratic" in records:
        spans = tuple(slice(int(start), int(stop)) for start, stop in settings["spans"])
        scale = tuple(float(each) for each in settings["scale"])
        part = records["quadratic"]
        past = replace(past, quadratic=Quadratic(spans, scale, part["linear"], part["diagonal"]))
    if "replay" in records:
        part = records["replay"]
        samples = Samples(part["x"], part["y"])
        past = replace(past, replay=Pool(samples, part["weight"], settings["even"]))
    return past


def _check_spans(quadratic: Quadratic, size: int) -> None:
    """Refuse spans that do not fit the model: they would fail far from here, or change the wrong parameters."""
    edges = [edge for span in quadratic.spans for edge in (span.start, span.stop)]
    inside = edges == sorted(edges) and (not edges or (edges[0] >= 0 and edges[-1] <= size))
    width = sum(span.stop - span.start for span in quadratic.spans)
    fits = len(quadratic.linear) == len(quadratic.diagonal) == width
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
    source = safetensors_io.Bytes(body)
    records: dict[str, dict[str, Tensor]] = {}
    try:
        _, places = safetensors_io.read_header(source)
        if len(places) > MAX_TENSORS:
            raise MessageError(f"{len(places)} tensors; at most {MAX_TENSORS} are accepted")
        if sum(place.nbytes for place in places.values()) > len(body):
            raise MessageError("tensors in the body overlap")
        for name, place in places.items():
            record, slash, key = name.partition("/")
            if not slash:
                raise MessageError(f"a tensor that belongs to no record: {name!r}")
            records.setdefault(record, {})[key] = safetensors_io.read(source, place)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise MessageError(f"malformed body: {error}") from error
    return records

"""What travels: a letter is a small header in JSON and a body in the safetensors format.

The body of an order is the same for all clients of a round, so that it is packed once, and Flower, which names
objects by their content, moves and stores it once. Nothing that arrives is believed: a reader refuses what is
too large, not of this protocol, or not of the form that it expects, in one line.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from torch import Tensor

from chronofed import safefile
from chronofed.engines.base import Exchange
from chronofed.errors import ChronofedError
from chronofed.experiments.reader import read, written
from chronofed.experiments.spec import Experiment
from chronofed.local import Train
from chronofed.protocol import Method, Order, Result
from chronofed.surrogate import Pool, Quadratic, Surrogate
from chronofed.types import Record, Samples
from chronofed.weights import RoundWeights

PROTOCOL = 1
LARGEST = 2**32
"""Bytes of a body that are accepted unless told otherwise."""
HEADER = 2**24  # bytes of a header: weights may hold a matrix
TENSORS = 10_000  # in one body
_LENGTH = 8  # bytes that tell the length of a header

RUN = re.compile(r"[0-9a-f]{8,64}")  # it becomes part of a file's name on the client

Table: TypeAlias = dict[str, Any]
H = TypeVar("H", "Question", "Reply")


class WireError(ChronofedError):
    """A letter that is not to be believed."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What is sent, either way.

    Attributes:
        header: JSON.
        body: Tensors, in the safetensors format; may be empty.
    """

    header: str
    body: bytes = b""

    def pack(self) -> bytes:
        """Both in one, to be kept."""
        header = self.header.encode()
        return len(header).to_bytes(_LENGTH, "little") + header + self.body

    @classmethod
    def unpack(cls, packed: bytes) -> "Letter":
        """The letter that was packed."""
        stop = _LENGTH + int.from_bytes(packed[:_LENGTH], "little")
        return cls(packed[_LENGTH:stop].decode(), packed[stop:])


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a letter to a client.

    Attributes:
        protocol: Version of this form.
        ask: ``hello``: who are you? Otherwise one of a round's two exchanges.
        run: Which run it belongs to; what a client keeps, it keeps for one run.
        method: Fingerprint of what is learned and how.
        round: The round.
        client: Whom it is for.
        order: All of the order but numbers and tensors.
    """

    protocol: int
    ask: Literal["hello", "prepare", "train"]
    run: str
    method: str = ""
    round: int = 0
    client: int = -1
    order: Table = {}

    @property
    def name(self) -> str:
        """The name of this order: the same however often it is sent."""
        return f"{self.run}/{self.round}/{self.ask}/{self.client}"


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a client's answer.

    Attributes:
        protocol: Version of this form.
        name: Name of the order that is answered.
        method: Fingerprint of what was learned and how.
        client: Who answers.
        key: Which of its data sets it held.
        size: Number of samples.
        error: Why there is no result, if there is none.
    """

    protocol: int
    name: str
    method: str = ""
    client: int = -1
    key: int = 0
    size: int = 0
    error: str = ""


def fingerprint(experiment: Experiment) -> str:
    """Equal where server and client mean the same method and model; data and scenario are the client's own."""
    content = {"method": written(experiment.method), "model": written(experiment.model)}
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_hello(run: str) -> Letter:
    """Ask a node which client it is."""
    return Letter(_header(Question(PROTOCOL, "hello", run)))


class Desk:
    """Where a server writes its orders; what they have in common is packed once."""

    def __init__(self, run: str, method: str) -> None:
        self._run, self._method = run, method
        self._last: tuple[Order, Table, bytes] | None = None

    def write(self, order: Order, exchange: Exchange) -> tuple[str, Letter]:
        """The name of the order, and the letter."""
        if self._last is None or not _alike(self._last[0], order):
            self._last = (order, *_pack_order(order))
        _, about, body = self._last
        question = Question(
            PROTOCOL, exchange, self._run, self._method, order.round, order.client, about
        )
        return question.name, Letter(_header(question), body)


def read_question(letter: Letter) -> Question:
    """The header of a letter to a client."""
    question = _read_header(letter.header, Question)
    if not RUN.fullmatch(question.run):
        raise WireError(f"a run called {question.run[:80]!r}")
    return question


def read_order(question: Question, body: bytes, method: Method, largest: int = LARGEST) -> Order:
    """The order of a letter.

    Args:
        question: Its header.
        body: Its body.
        method: What the client means to do; weights of one's own class are taken only where it has them.
        largest: Most bytes of the body.

    Raises:
        WireError: If it is not an order.
    """
    records = _unpack(body, largest)
    try:
        return _order(question, records, method)
    except WireError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ChronofedError) as error:
        raise WireError(f"order {question.name}: malformed ({error})") from error


def write_reply(question: Question, result: Result) -> Letter:
    """A client's answer."""
    about = (result.client, result.key, result.size)
    header = _header(Reply(PROTOCOL, question.name, question.method, *about))
    records = {"upload": result.upload, "kept": result.kept, "probe": result.probe}
    tensors = {f"{place}/{name}": t for place, r in records.items() for name, t in r.items()}
    return Letter(header, _pack({**tensors, "model/buffers": result.buffers}))


def write_identity(question: Question, client: int) -> Letter:
    """Say which client this node is."""
    return Letter(_header(Reply(PROTOCOL, question.name, client=client)))


def write_refusal(name: str, client: int, reason: str) -> Letter:
    """Say why there is no answer."""
    return Letter(_header(Reply(PROTOCOL, name, client=client, error=reason)))


def read_reply(letter: Letter) -> Reply:
    """The header of an answer."""
    return _read_header(letter.header, Reply)


def read_result(reply: Reply, body: bytes, largest: int = LARGEST) -> Result:
    """The result of an answer; whether its numbers make sense is for others to judge.

    Raises:
        WireError: If it is not a result.
    """
    records = _unpack(body, largest)
    try:
        buffers = records.pop("model")["buffers"]
    except KeyError as error:
        raise WireError("the reply has no buffers") from error
    parts = [records.pop(place, {}) for place in ("upload", "kept", "probe")]
    if records:
        raise WireError(f"the reply has parts that nobody asked for: {', '.join(records)}")
    upload, kept, probe = parts
    return Result(reply.client, reply.key, reply.size, upload, buffers, kept, probe)


def _header(content: msgspec.Struct) -> str:
    # Not msgspec's own writer, which has no infinity: settings of one's own may have one.
    return json.dumps(msgspec.to_builtins(content))


def _read_header(text: str, kind: type[H]) -> H:
    if len(text) > HEADER:
        raise WireError(f"a header of {len(text)} characters is too long")
    try:
        table = json.loads(text)
        version = table.get("protocol")
        if version != PROTOCOL:
            raise WireError(
                f"protocol {version!r}, but this side speaks {PROTOCOL}: use one version of chronofed"
            )
        return msgspec.convert(table, kind)
    except (ValueError, AttributeError, RecursionError) as error:
        raise WireError(f"a header that cannot be read: {error}") from error


def _alike(one: Order, other: Order) -> bool:
    """Whether two orders are the same but for the client."""
    names = (f.name for f in fields(Order) if f.name != "client")
    return all(getattr(one, name) is getattr(other, name) for name in names)


def _pack_order(order: Order) -> tuple[Table, bytes]:
    about: Table = {
        "weights": written(order.weights),
        "train": written(order.train),
        "seed": order.seed,
    }
    tensors = {f"server/{name}": tensor for name, tensor in order.server.items()}
    tensors["model/buffers"] = order.buffers
    if order.past is not None:
        about["past"], more = _pack_past(order.past)
        tensors |= more
    return about, _pack(tensors)


def _pack_past(past: Surrogate) -> tuple[Table, dict[str, Tensor]]:
    about: Table = {"present": past.present}
    tensors: dict[str, Tensor] = {}
    if past.quadratic is not None:
        about["spans"] = [[span.start, span.stop] for span in past.quadratic.spans]
        about["scale"] = list(past.quadratic.scale)
        tensors["quadratic/linear"] = past.quadratic.linear
        tensors["quadratic/diagonal"] = past.quadratic.diagonal
    if past.replay is not None:
        about["even"] = past.replay.even
        tensors["replay/x"] = past.replay.samples.x
        tensors["replay/y"] = past.replay.samples.y
        tensors["replay/weight"] = past.replay.weight
    return about, tensors


def _order(question: Question, records: dict[str, dict[str, Tensor]], method: Method) -> Order:
    about = dict(question.order)
    past = about.pop("past", None)
    order = Order(
        question.round,
        question.client,
        records["server"],
        records["model"]["buffers"],
        _weights(about["weights"], method),
        None if past is None else _past(past, records),
        read(about["train"], Train, "train"),
        msgspec.convert(about["seed"], int),
    )
    size = len(order.server["params"])
    if order.past is not None and order.past.quadratic is not None:
        _check_spans(order.past.quadratic, size)
    return order


def _weights(table: Table, method: Method) -> RoundWeights:
    """Weights of the catalogue, or of the client's own method: a letter must not choose what is imported."""
    kind = str(table.get("kind"))
    if ":" in kind and kind != written(method.weights)["kind"]:
        raise WireError(f"weights {kind!r} are neither in the catalogue nor in this client's spec")
    return read(table, RoundWeights, "weights")  # type: ignore[type-abstract]


def _past(about: Table, records: Mapping[str, Record]) -> Surrogate:
    past = Surrogate(msgspec.convert(about["present"], float))
    if "quadratic" in records:
        spans = tuple(slice(int(start), int(stop)) for start, stop in about["spans"])
        scale = tuple(float(each) for each in about["scale"])
        part = records["quadratic"]
        past = replace(past, quadratic=Quadratic(spans, scale, part["linear"], part["diagonal"]))
    if "replay" in records:
        part = records["replay"]
        samples = Samples(part["x"], part["y"])
        past = replace(past, replay=Pool(samples, part["weight"], about["even"]))
    return past


def _check_spans(quadratic: Quadratic, size: int) -> None:
    """A span beyond the model would raise far from here, or touch what it should not."""
    edges = [edge for span in quadratic.spans for edge in (span.start, span.stop)]
    inside = edges == sorted(edges) and (not edges or (edges[0] >= 0 and edges[-1] <= size))
    width = sum(span.stop - span.start for span in quadratic.spans)
    fits = len(quadratic.linear) == len(quadratic.diagonal) == width
    if not inside or not fits or len(quadratic.scale) != len(quadratic.spans):
        raise WireError("the quadratic does not fit the model")


def _pack(tensors: Mapping[str, Tensor]) -> bytes:
    return b"".join(safefile.save({n: t.cpu() for n, t in tensors.items()}, {}))


def _unpack(body: bytes, largest: int) -> dict[str, dict[str, Tensor]]:
    """Records by their place, every tensor with memory of its own."""
    if len(body) > largest:
        raise WireError(f"a body of {len(body)} bytes; at most {largest} are accepted")
    source = safefile.Bytes(body)
    records: dict[str, dict[str, Tensor]] = {}
    try:
        _, places = safefile.read_header(source)
        if len(places) > TENSORS:
            raise WireError(f"a body of {len(places)} tensors; at most {TENSORS} are accepted")
        if sum(place.nbytes for place in places.values()) > len(body):
            raise WireError("a body whose tensors overlap")
        for name, place in places.items():
            where, slash, key = name.partition("/")
            if not slash:
                raise WireError(f"a tensor without a place: {name!r}")
            records.setdefault(where, {})[key] = safefile.read(source, place)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise WireError(f"a body that cannot be read: {error}") from error
    return records

"""Messages between server and nodes: a small JSON header, and a body of tensors.

Nothing that arrives is trusted. A reader refuses, in one line, a header that is too long, of another protocol,
or malformed.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from chronofed.core.errors import ChronofedError, SpecError
from chronofed.core.limits import read_json
from chronofed.core.spec_io import to_table

if TYPE_CHECKING:
    from chronofed.runs.spec import Experiment

PROTOCOL = 4
MAX_ERROR_CHARACTERS = 500
"""Characters of an error about a message: it may quote what a stranger sent."""
MAX_REPLY_CHARACTERS = 2**16
"""Characters of the header of a reply, which has a few numbers and at most one line of text."""
MAX_REASON_CHARACTERS = 10_000
"""Characters of the reason that a client gives."""
RUN_NAME = re.compile(r"[0-9a-f]{8,64}")
"""Form of a run's name, which becomes part of a file name on the client."""
MAX_OTHERS = 10_000
"""Clients of one node, besides the first."""
_LENGTH_BYTES = 8

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=200)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
RoundNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
ClientNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
Table: TypeAlias = dict[str, Any]
Header = TypeVar("Header", "Request", "Reply")


class MessageError(ChronofedError):
    """A message that is malformed, too large, or not for this receiver: one line of bounded length."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text[:MAX_ERROR_CHARACTERS].split()))


@dataclass(frozen=True, slots=True)
class Message:
    """A message in either direction.

    Attributes:
        header: JSON text.
        body: Tensors in the safetensors format; may be empty.
    """

    header: str
    body: bytes = b""

    def pack(self) -> bytes:
        """Return header and body as one sequence of bytes."""
        header = self.header.encode()
        return len(header).to_bytes(_LENGTH_BYTES, "little") + header + self.body

    @classmethod
    def unpack(cls, packed: bytes) -> "Message":
        """Read a message that :meth:`pack` wrote.

        Raises:
            MessageError: If it is not such a message.
        """
        stop = _LENGTH_BYTES + int.from_bytes(packed[:_LENGTH_BYTES], "little")
        if stop > len(packed):
            raise MessageError("the message ends too early")
        try:
            return cls(packed[_LENGTH_BYTES:stop].decode(), packed[stop:])
        except UnicodeDecodeError as error:
            raise MessageError(f"malformed header: {error}") from error


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a message to a client.

    Attributes:
        protocol: Version of the message format.
        kind: ``hello`` asks a node which client it is; the others are the exchanges of a round.
        run: Name of the run. A client has a separate client store for every run.
        fingerprint: Fingerprint of method and model.
        round: Number of the round.
        client: The client that the message is for.
        order: Settings of the order; its tensors are in the body.
        accepted: Round of this client's last reply that the server has accepted; -1 for none.
        anew: The server has refused the reply to this order; the client works on it once more.
    """

    protocol: int
    kind: Literal["hello", "prepare", "train"]
    run: Name
    fingerprint: Name = ""
    round: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    client: ClientNumber = -1
    order: Table = {}
    accepted: RoundNumber = -1
    anew: bool = False

    @property
    def name(self) -> str:
        """Name of the order: the same however often it is sent."""
        return f"{self.run}/{self.round}/{self.kind}/{self.client}"


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a client's reply.

    Attributes:
        protocol: Version of the message format.
        name: Name of the order.
        fingerprint: Fingerprint of method and model.
        client: The client that replies.
        others: Further clients of the same node, in a reply to ``hello``.
        key: Identifies the data set that it trained on.
        size: Number of samples.
        held: Round of the client state that it worked from; -1 for none.
        error: Reason why there is no result; empty if there is one.
    """

    protocol: int
    name: Name
    fingerprint: Name = ""
    client: ClientNumber = -1
    key: Number = 0
    size: Number = 0
    held: RoundNumber = -1
    error: str = ""
    others: Annotated[tuple[Number, ...], msgspec.Meta(max_length=MAX_OTHERS)] = ()


def method_fingerprint(experiment: "Experiment") -> str:
    """Return a digest of method, model and loss, which server and clients must share; data may differ.

    Raises:
        SpecError: If the method is fitted to a scenario, which a client does not know.
    """
    if experiment.method.is_auto:
        raise SpecError(
            "method: 'auto' is fitted to the scenario of this machine, and clients are elsewhere; name the "
            "parts, such as backbone = { kind = 'averaged' } with head = { kind = 'auto' }"
        )
    content = {name: to_table(getattr(experiment, name)) for name in ("method", "model", "loss")}
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def request_digest(request: Request, body: bytes) -> bytes:
    """Return a digest of what a client is asked: a restored server may ask something else by the same name."""
    total = hashlib.blake2b(json.dumps(request.order, sort_keys=True).encode(), digest_size=16)
    total.update(body)
    return total.digest()


def write_hello(run: str) -> Message:
    """Write the message that asks a node which client it is."""
    return Message(encode_header(Request(PROTOCOL, "hello", run)))


def write_identity(request: Request, client: int, *others: int) -> Message:
    """Write a node's reply to ``hello``: the numbers of its clients."""
    return Message(encode_header(Reply(PROTOCOL, request.name, client=client, others=others)))


def write_error(name: str, client: int, reason: str) -> Message:
    """Write a reply that says why there is no result."""
    reason = reason[:MAX_REASON_CHARACTERS]
    return Message(encode_header(Reply(PROTOCOL, name, client=client, error=reason)))


def read_request(message: Message) -> Request:
    """Read the header of a message to a client.

    Raises:
        MessageError: If it is malformed.
    """
    request = _decode_header(message.header, Request)
    if not RUN_NAME.fullmatch(request.run):
        raise MessageError(f"invalid name of a run: {request.run[:80]!r}")
    return request


def read_reply(message: Message) -> Reply:
    """Read the header of a reply.

    Raises:
        MessageError: If it is malformed.
    """
    if len(message.header) > MAX_REPLY_CHARACTERS:
        raise MessageError(
            f"a header of {len(message.header)} characters; at most {MAX_REPLY_CHARACTERS} are accepted"
        )
    return _decode_header(message.header, Reply)


def encode_header(header: Request | Reply) -> str:
    """Return a header as JSON."""
    # Not msgspec's encoder: it cannot write infinity, which custom round weights may contain.
    return json.dumps(msgspec.to_builtins(header))


def _decode_header(text: str, kind: type[Header]) -> Header:
    try:
        table = read_json(text)
        version = table.get("protocol") if isinstance(table, dict) else None
        if version == PROTOCOL:
            return msgspec.convert(table, kind)
    except ValueError as error:
        raise MessageError(f"malformed header: {error}") from error
    raise MessageError(
        f"protocol {version!r:.20}, but this side uses {PROTOCOL}: "
        "install the same version of chronofed on server and clients"
    )

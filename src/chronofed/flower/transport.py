"""Transport: carries messages to nodes and back, in production over Flower's grid."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TypeAlias

from chronofed.core.errors import MissingExtraError
from chronofed.flower.messages import Message, MessageError
from chronofed.flower.pulls import Pulls

HEADER, BODY = "chronofed.header", "chronofed.body"
ARRAY_TYPE = "chronofed.safetensors"
"""Serialisation type that Flower stores with the body; it never looks inside."""


Answer: TypeAlias = Message | MessageError | str
"""A reply, the reason why it must be refused, or the error in its place."""


class Transport(Protocol):
    """Carries messages to nodes and back."""

    def nodes(self) -> set[int]:
        """Return the nodes that are online."""
        ...

    def send(self, messages: Sequence[tuple[int, Message]], ttl_s: float) -> list[str | None]:
        """Send messages to nodes.

        Args:
            messages: Pairs of a node and a message.
            ttl_s: Seconds after which a message and its reply expire.

        Returns:
            The id of each message; ``None`` if it could not be sent.
        """
        ...

    def collect(self, message_ids: Iterable[str], max_bytes: int) -> list[tuple[str, Answer]]:
        """Return the replies that have arrived, each once, with the id of the message that they answer.

        Args:
            message_ids: Ids of messages.
            max_bytes: Size of the largest reply that may be honest; larger ones may be refused.
        """
        ...

    def pause(self) -> None:
        """Note that nothing is collected for a while."""
        ...


def import_flower(module: str) -> Any:
    """Import one of Flower's modules when it is needed.

    Raises:
        MissingExtraError: If Flower is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError("flwr", "flower", "running on Flower") from error


def to_content(message: Message) -> Any:
    """Convert a message to the content of a Flower message: one record of text, one array of bytes."""
    flwr = import_flower("flwr.app")
    content = flwr.RecordDict({HEADER: flwr.ConfigRecord({"json": message.header})})
    if message.body:
        shape = (len(message.body),)
        array = flwr.Array(dtype="uint8", shape=shape, stype=ARRAY_TYPE, data=message.body)
        content[BODY] = flwr.ArrayRecord({"tensors": array})
    return content


def from_content(content: Any) -> Message:
    """Read the message in the content of a Flower message.

    Raises:
        MessageError: If there is none.
    """
    flwr = import_flower("flwr.app")
    header, body = content.get(HEADER), content.get(BODY)
    if not isinstance(header, flwr.ConfigRecord) or not isinstance(header.get("json"), str):
        raise MessageError("not a message of chronofed: no header")
    text = str(header["json"])
    if body is None:
        return Message(text)
    if not isinstance(body, flwr.ArrayRecord) or list(body) != ["tensors"]:
        raise MessageError("not a message of chronofed: unexpected body")
    return Message(text, body["tensors"].data)


class GridTransport:
    """Sends messages over a Flower grid.

    Args:
        grid: Flower's grid.
        sent: File to touch whenever messages were sent; a :mod:`~chronofed.flower.relay` watches it.

    Attributes:
        grid: Flower's grid.
    """

    def __init__(self, grid: Any, sent: Path | None = None) -> None:
        self.grid = grid
        self._sent = sent
        # Several runs may share a grid, and Flower does not promise that it is thread-safe.
        self._lock = RLock()
        self._pulls = Pulls(grid)

    def nodes(self) -> set[int]:
        """Return the nodes that are online."""
        with self._lock:
            return set(self.grid.get_node_ids())

    def send(self, messages: Sequence[tuple[int, Message]], ttl_s: float) -> list[str | None]:
        """Send messages to nodes; return their ids."""
        flwr_message = import_flower("flwr.app").Message
        outgoing = [
            flwr_message(to_content(m), node, "train" if m.body else "query", ttl=ttl_s)
            for node, m in messages
        ]
        if not outgoing:
            return []
        with self._lock:
            message_ids = list(self.grid.push_messages(outgoing))
        if self._sent is not None:
            self._sent.touch()
        # Flower returns fewer ids if the messages were too large.
        if len(message_ids) != len(messages):
            return [None] * len(messages)
        for (node, _), message_id in zip(messages, message_ids, strict=True):
            if message_id:
                self._pulls.expect(message_id, node)
        return [message_id or None for message_id in message_ids]

    def collect(self, message_ids: Iterable[str], max_bytes: int) -> list[tuple[str, Answer]]:
        """Return the replies that have arrived."""
        found = self._pulls.collect(list(message_ids), max_bytes)
        return [(message_id, _content(reply)) for message_id, reply in found]

    def pause(self) -> None:
        """Let the rest of the process have its memory."""
        self._pulls.pause()


def _content(reply: Any) -> Answer:
    """Return the message in a reply, the reason to refuse it, or the error in its place."""
    if isinstance(reply, str):
        return MessageError(reply)
    try:
        if reply.has_error():
            return f"Flower error {reply.error.code}: {reply.error.reason}"
        return from_content(reply.content)
    except MessageError as error:
        return error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return MessageError(f"not a message of chronofed: {error}")

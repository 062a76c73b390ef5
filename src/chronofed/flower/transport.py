"""Transport: carries messages to nodes and back, in production over Flower's grid."""

import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TypeAlias

from chronofed.core.errors import MissingExtraError
from chronofed.flower.allowance import Allowance
from chronofed.flower.messages import Message, MessageError
from chronofed.flower.processes import changed_ns
from chronofed.flower.pulls import Pulls, is_busy

HEADER, BODY = "chronofed.header", "chronofed.body"
ARRAY_TYPE = "chronofed.safetensors"
"""Serialisation type that Flower stores with the body; it never looks inside."""
SMALL_BYTES = 2**18
"""Largest body that travels beside the header: each record of a message is some requests more for everybody."""
REPLY_BYTES = 2**20
"""Size of the largest reply that says which client a node is."""
LOOK_S = 0.02
"""Seconds between two looks for answers that came, which cost almost nothing."""


Answer: TypeAlias = Message | MessageError | str
"""A reply, the reason why it must be refused, or the error in its place."""


class Transport(Protocol):
    """Carries messages to nodes and back."""

    def nodes(self) -> set[int]:
        """Return the nodes that are online."""
        ...

    def send(
        self, messages: Sequence[tuple[int, Message]], ttl_s: float, reply_bytes: int = REPLY_BYTES
    ) -> list[str | None]:
        """Send messages to nodes.

        Args:
            messages: Pairs of a node and a message.
            ttl_s: Seconds after which a message and its reply expire.
            reply_bytes: Size of the largest reply that may be honest.

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

    def wait(self, seconds: float) -> None:
        """Wait so long, or until answers may be there."""
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
    """Convert a message to the content of a Flower message: one record of text, and bytes in it or in an array.

    Flower stores an array that many messages have in common only once.
    """
    flwr = import_flower("flwr.app")
    small = {"body": message.body} if 0 < len(message.body) <= SMALL_BYTES else {}
    content = flwr.RecordDict({HEADER: flwr.ConfigRecord({"json": message.header, **small})})
    if message.body and not small:
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
    text, small = str(header["json"]), header.get("body", b"")
    if not isinstance(small, bytes) or (small and body is not None):
        raise MessageError("not a message of chronofed: unexpected body")
    if body is None:
        return Message(text, small)
    if not isinstance(body, flwr.ArrayRecord) or list(body) != ["tensors"]:
        raise MessageError("not a message of chronofed: unexpected body")
    return Message(text, body["tensors"].data)


class GridTransport:
    """Sends messages over a Flower grid.

    Args:
        grid: Flower's grid.
        sent: File to touch whenever messages were sent; a :mod:`~chronofed.flower.relay` watches it.
        asked: Folder with a file for every node that the relay touches whenever the node asks for an order,
            which it does as soon as it has sent its answer.
        allowed: File for how much each node may send.

    Attributes:
        grid: Flower's grid.
    """

    def __init__(
        self,
        grid: Any,
        sent: Path | None = None,
        asked: Path | None = None,
        allowed: Path | None = None,
    ) -> None:
        self.grid = grid
        self._allowance = None if allowed is None else Allowance(allowed)
        self._sent = sent
        self._asked = None if asked is None else Asked(asked)
        self._due: set[int] | None = None
        self._online: set[int] = set()
        self._looked = float("-inf")
        # Several runs may share a grid, and Flower does not promise that it is thread-safe.
        self._lock = RLock()
        self._pulls = Pulls(grid)

    def nodes(self) -> set[int]:
        """Return the nodes that are online."""
        with self._lock:
            try:
                self._online = set(self.grid.get_node_ids())
            except Exception as error:
                # A SuperLink that is busy with many nodes is asked again later.
                if not is_busy(error):
                    raise
            return set(self._online)

    def send(
        self, messages: Sequence[tuple[int, Message]], ttl_s: float, reply_bytes: int = REPLY_BYTES
    ) -> list[str | None]:
        """Send messages to nodes; return their ids."""
        if self._allowance is not None:
            self._allowance.add((node for node, _ in messages), reply_bytes)
        flwr_message = import_flower("flwr.app").Message
        outgoing = [
            flwr_message(to_content(m), node, "train" if m.body else "query", ttl=ttl_s)
            for node, m in messages
        ]
        if not outgoing:
            return []
        message_ids = self._push(outgoing)
        if self._sent is not None:
            self._sent.touch()
        # Flower returns fewer ids if the messages were too large, and none if it is busy.
        if len(message_ids) != len(messages):
            return [None] * len(messages)
        for (node, _), message_id in zip(messages, message_ids, strict=True):
            if message_id:
                self._pulls.expect(message_id, node)
        return [message_id or None for message_id in message_ids]

    def _push(self, outgoing: list[Any]) -> list[str | None]:
        with self._lock:
            try:
                return list(self.grid.push_messages(outgoing))
            except Exception as error:
                if not is_busy(error):
                    raise
                return []

    def collect(self, message_ids: Iterable[str], max_bytes: int) -> list[tuple[str, Answer]]:
        """Return the replies that have arrived."""
        due, self._due = self._due, None
        if due is None:
            self._looked = time.monotonic()
        found = self._pulls.collect(list(message_ids), max_bytes, due)
        return [(message_id, _content(reply)) for message_id, reply in found]

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a node has asked for its next order, or an answer was fetched meanwhile.

        After that, only these nodes are looked at; all of them at least once in so many seconds.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            due = set() if self._asked is None else self._asked.nodes()
            if self._asked is not None and time.monotonic() - self._looked > seconds:
                return
            if due or self._pulls.ready:
                self._due = due
                return
            time.sleep(LOOK_S)

    def pause(self) -> None:
        """Let the rest of the process have its memory."""
        self._pulls.pause()


class Asked:
    """Tells which nodes have asked for an order.

    Args:
        folder: Folder with a file for every node, which is touched after its file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._last = folder, 0
        self._seen: dict[int, int] = {}

    def nodes(self) -> set[int]:
        """Return the nodes that have asked since the last time."""
        last = changed_ns(self._folder)
        if last == self._last:
            return set()
        self._last, before = last, self._seen
        try:
            files = {
                int(p.name): changed_ns(p) for p in self._folder.iterdir() if p.name.isdecimal()
            }
        except OSError:
            return set()
        self._seen = files
        return {node for node, at in files.items() if at != before.get(node)}


def _content(reply: Any) -> Answer:
    """Return the message in a reply, the reason to refuse it, or the error in its place."""
    if isinstance(reply, (str, MessageError)):
        return reply
    try:
        if reply.has_error():
            return f"Flower error {reply.error.code}: {reply.error.reason}"
        return from_content(reply.content)
    except MessageError as error:
        return error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return MessageError(f"not a message of chronofed: {error}")

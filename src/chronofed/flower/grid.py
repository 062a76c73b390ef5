"""Letters as Flower's messages."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from threading import RLock
from typing import Any

from chronofed.errors import MissingExtraError
from chronofed.flower.wire import Letter, WireError

HEADER, BODY = "chronofed.header", "chronofed.body"
KIND = "chronofed.safetensors"
"""What Flower is told that the array is; it never looks inside."""


def flower(module: str) -> Any:  # noqa: ANN401 - Flower's types are not there without Flower
    """One of Flower's modules, imported when it is needed.

    Raises:
        MissingExtraError: If Flower is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError("flwr", "flower", "running on Flower") from error


def to_content(letter: Letter) -> Any:  # noqa: ANN401
    """A letter as the content of a message: one record of text, one array of bytes."""
    flwr = flower("flwr.app")
    content = flwr.RecordDict({HEADER: flwr.ConfigRecord({"json": letter.header})})
    if letter.body:
        array = flwr.Array(dtype="uint8", shape=(len(letter.body),), stype=KIND, data=letter.body)
        content[BODY] = flwr.ArrayRecord({"tensors": array})
    return content


def from_content(content: Any) -> Letter:  # noqa: ANN401
    """The letter in a message.

    Raises:
        WireError: If there is none.
    """
    flwr = flower("flwr.app")
    header, body = content.get(HEADER), content.get(BODY)
    if not isinstance(header, flwr.ConfigRecord) or not isinstance(header.get("json"), str):
        raise WireError("the message has no header of chronofed's")
    text = str(header["json"])
    if body is None:
        return Letter(text)
    if not isinstance(body, flwr.ArrayRecord) or list(body) != ["tensors"]:
        raise WireError("the message has a body that is not chronofed's")
    return Letter(text, body["tensors"].data)


class GridMail:
    """Sends letters over a Flower grid.

    Attributes:
        grid: Flower's.
    """

    def __init__(self, grid: Any) -> None:  # noqa: ANN401
        self.grid = grid
        self._lock = RLock()  # several runs may share a grid, which does not say that they may

    def nodes(self) -> set[int]:
        """Nodes that are there now."""
        with self._lock:
            return set(self.grid.get_node_ids())

    def send(self, letters: Sequence[tuple[int, Letter]], seconds: float) -> list[str | None]:
        """Send letters to nodes."""
        message = flower("flwr.app").Message
        messages = [
            message(to_content(letter), node, "train" if letter.body else "query", ttl=seconds)
            for node, letter in letters
        ]
        if not messages:
            return []
        with self._lock:
            numbers = list(self.grid.push_messages(messages))
        if len(numbers) != len(messages):  # Flower's way to say that they were too large
            return [None] * len(messages)
        return [number or None for number in numbers]

    def collect(self, numbers: Iterable[str]) -> list[tuple[str, Letter | str]]:
        """Answers that have come in."""
        wanted = list(numbers)
        if not wanted:
            return []
        with self._lock:
            return [_answer(message) for message in self.grid.pull_messages(wanted)]


def _answer(message: Any) -> tuple[str, Letter | str]:  # noqa: ANN401
    number = message.metadata.reply_to_message_id
    if message.has_error():
        return number, f"Flower's error {message.error.code}: {message.error.reason}"
    try:
        return number, from_content(message.content)
    except WireError as error:
        return number, str(error)

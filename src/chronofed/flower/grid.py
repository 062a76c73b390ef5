"""Letters as Flower's messages."""

from collections.abc import Iterable, Sequence
from threading import RLock

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from chronofed.flower.wire import Letter, WireError

HEADER, BODY = "chronofed.header", "chronofed.body"
KIND = "chronofed.safetensors"
"""What Flower is told that the array is; it never looks inside."""


def to_content(letter: Letter) -> RecordDict:
    """A letter as the content of a message: one record of text, one array of bytes."""
    content = RecordDict({HEADER: ConfigRecord({"json": letter.header})})
    if letter.body:
        array = Array(dtype="uint8", shape=(len(letter.body),), stype=KIND, data=letter.body)
        content[BODY] = ArrayRecord({"tensors": array})
    return content


def from_content(content: RecordDict) -> Letter:
    """The letter in a message.

    Raises:
        WireError: If there is none.
    """
    header, body = content.get(HEADER), content.get(BODY)
    if not isinstance(header, ConfigRecord) or not isinstance(header.get("json"), str):
        raise WireError("the message has no header of chronofed's")
    text = str(header["json"])
    if body is None:
        return Letter(text)
    if not isinstance(body, ArrayRecord) or list(body) != ["tensors"]:
        raise WireError("the message has a body that is not chronofed's")
    return Letter(text, body["tensors"].data)


class GridMail:
    """Sends letters over a Flower grid.

    Attributes:
        grid: Flower's.
        kinds: Kind of message for questions without and with a body.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._lock = RLock()  # several runs may share a grid, which does not say that they may

    def nodes(self) -> set[int]:
        """Nodes that are there now."""
        with self._lock:
            return set(self.grid.get_node_ids())

    def send(self, letters: Sequence[tuple[int, Letter]], seconds: float) -> list[str | None]:
        """Send letters to nodes."""
        messages = [
            Message(to_content(letter), node, "train" if letter.body else "query", ttl=seconds)
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


def _answer(message: Message) -> tuple[str, Letter | str]:
    number = message.metadata.reply_to_message_id
    if message.has_error():
        return number, f"Flower's error {message.error.code}: {message.error.reason}"
    try:
        return number, from_content(message.content)
    except WireError as error:
        return number, str(error)

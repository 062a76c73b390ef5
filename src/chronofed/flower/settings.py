"""How a server treats clients that are slow, fail or lie; what a node is told where it is started."""

from pathlib import Path

from chronofed.config import Config, Count, Natural, Positive
from chronofed.screening import Screening
from chronofed.sources import span
from chronofed.vault import Vault


class Federation(Screening):
    """How long clients are waited for, and what is believed of them.

    Attributes:
        quorum: Answers that a round needs; 0 for more than half of the clients asked.
        deadline: Seconds after which a round does without those who have not answered.
        muster: Seconds that the first round waits for clients that no node stands for yet; later rounds go on
            without them as soon as a quorum has answered, and ask them when they are there.
        patience: Seconds after which a round without a quorum ends the run, which can be continued.
        retries: How often a client that failed is asked again in the same round.
        poll: Seconds between two looks for answers.
        largest: Most megabytes of an answer.
    """

    quorum: Natural = 0
    deadline: Positive = 600.0
    muster: Positive = 60.0
    patience: Positive = 86400.0
    retries: Natural = 1
    poll: Positive = 0.2
    largest: Count = 1024

    def needed(self, asked: int) -> int:
        """Answers that a round with so many clients needs."""
        return min(self.quorum, asked) if self.quorum else asked // 2 + 1


class Node(Config):
    """What belongs to one client's machine.

    Attributes:
        client: Which client this is, from 0.
        state: Folder where it keeps its memory.
        data: Folder of data files.
        source: A TOML file whose table ``[source]`` says where the client's own data are; without one it takes
            its share of the specification's data, as a simulation would.
        budget: Most megabytes of past data that it keeps; the oldest go first. By default as many as the
            method wants.
        max_age: How long it keeps past data, such as ``365 days``; by default as long as the method wants.
    """

    client: Natural
    state: str = "~/.local/state/chronofed"
    data: str = ""
    source: str = ""
    budget: Positive | None = None
    max_age: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_age:
            span(self.max_age, "Node.max_age")

    def vault(self, path: Path) -> Vault:
        """The client's memory in a file, to be opened."""
        most = None if self.budget is None else int(self.budget * 2**20)
        return Vault(path, most, max_age=span(self.max_age) if self.max_age else None)

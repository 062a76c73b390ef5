"""Settings of a federation, for the server, and of a node, for each client."""

from pathlib import Path

from chronofed.clients.order_check import OrderLimits
from chronofed.clients.screening import Screening
from chronofed.clients.store import ClientStore
from chronofed.core.config import Config, Count, Natural, Positive, Seconds
from chronofed.data.client_source import parse_duration


class Federation(Screening):
    """Timeouts and quorum of a federation, and the limits of :class:`~chronofed.clients.screening.Screening`.

    It inherits the limits instead of holding them: ``[tool.flwr.app.config]`` is one flat table for the user,
    and one flat class reads it, checks it and suggests the nearest key for a misspelt one.

    Attributes:
        quorum: Answers that a round needs; 0 for more than half of the clients asked, without those whose
            answers were refused again and again.
        round_timeout_s: Seconds after which a round with a quorum continues without the missing clients.
        join_timeout_s: Seconds that the first round waits for clients to connect. Later rounds continue without
            clients that are offline as soon as a quorum has answered, and ask them when they are back.
        quorum_timeout_s: Seconds after which a round without a quorum is skipped.
        max_skips: Maximum number of rounds to skip in a row; then the run stops, and can be resumed.
        retries: Retries per round for a client that failed or was refused.
        poll_s: Seconds between two checks for answers.
        max_message_mb: Maximum size of an answer, in megabytes.
    """

    quorum: Natural = 0
    round_timeout_s: Seconds = 600.0
    join_timeout_s: Seconds = 60.0
    quorum_timeout_s: Seconds = 3600.0
    max_skips: Natural = 24
    retries: Natural = 1
    poll_s: Seconds = 0.2
    max_message_mb: Count = 1024

    def needed(self, asked: int) -> int:
        """Return the answers that a round needs if so many clients are asked."""
        return min(self.quorum, asked) if self.quorum else asked // 2 + 1


class Node(Config):
    """Settings of one client's machine.

    Attributes:
        client: Number of the client, from 0.
        state: Folder of its client stores, one file for every run.
        data: Folder of data files.
        source: TOML file whose table ``[source]`` describes the client's own data. By default the client uses
            its part of the specification's data, as in a simulation.
        limit_mb: Maximum megabytes of past data to keep; the oldest are removed first. By default no limit but
            the method's own.
        max_age: Maximum age of past data to keep, with its unit, such as ``365 days``: seconds, minutes, hours,
            days or weeks. By default no limit but the method's own.
        max_steps: Maximum number of local steps in a round; the client refuses an order that wants more.
        max_round_s: Maximum seconds that one order may take; the client then stops with an error.
    """

    client: Natural
    state: str = "~/.local/state/chronofed"
    data: str = ""
    source: str = ""
    limit_mb: Positive | None = None
    max_age: str = ""
    max_steps: Count = 100_000
    max_round_s: Positive = 86400.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_age:
            parse_duration(self.max_age, "Node.max_age")

    @property
    def order_limits(self) -> OrderLimits:
        """Limits beyond which the client refuses to work on an order."""
        return OrderLimits(self.max_steps, self.max_round_s)

    def client_store(self, path: Path) -> ClientStore:
        """Make a client store with the limits of this node; the caller opens it."""
        limit_bytes = None if self.limit_mb is None else int(self.limit_mb * 2**20)
        max_age = parse_duration(self.max_age) if self.max_age else None
        return ClientStore(path, limit_bytes, max_age=max_age)

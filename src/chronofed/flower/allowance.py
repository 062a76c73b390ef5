"""Allowance of a node: what it may send follows from the orders that it was given.

A SuperLink stores whatever a node with a key sends, and a reply that was refused may stay in its database until
the run ends. So the server notes how large the replies to its orders may be, the proxy logs how much every node
sends, and the hub refuses a node that has sent far more.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import ChronofedError
from chronofed.runs.json_files import read_json

LARGEST = "largest"
"""Key of the size of the largest reply that may be honest; all other keys are nodes."""
TIMES = 2
"""How often an honest node may have to send a reply: a connection may break."""
SPARE_BYTES = 2**26
"""What a node may send besides."""


class Allowance:
    """Notes how much each node may send, for the hub.

    Args:
        file: The file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._bytes = _read(file)

    def add(self, nodes: Iterable[int], reply_bytes: int) -> None:
        """Note orders to some nodes; a reply may have so many bytes."""
        for node in nodes:
            self._bytes[str(node)] += TIMES * reply_bytes
        self._bytes[LARGEST] = max(self._bytes[LARGEST], TIMES * reply_bytes)
        # On a full disk, replies that were allowed before still come.
        with suppress(OSError, ChronofedError):
            write_atomic(self._file, json.dumps(self._bytes).encode())


class Excess:
    """Finds nodes that have sent far more than they may, since it was made.

    Args:
        allowed: File of :class:`Allowance`.
        log: What the proxy has logged of requests with content.

    Attributes:
        names: Names of such nodes.
    """

    def __init__(self, allowed: Path, log: Path) -> None:
        self._allowed, self._log = allowed, log
        self._before = _read(allowed)
        self._sent: Counter[str] = Counter()
        self._place = log.stat().st_size if log.exists() else 0
        self.names: set[str] = set()

    def look(self, numbers: Mapping[str, str]) -> dict[str, int]:
        """Return how many bytes nodes have sent that are found for the first time, by name.

        Args:
            numbers: Flower's number of every node, by name.
        """
        self._count()
        allowed = _read(self._allowed)
        spare = SPARE_BYTES + allowed[LARGEST]
        found = {}
        for name, sent in self._sent.items():
            node = numbers.get(name, "")
            more = allowed[node] - self._before[node]
            if name not in self.names and sent > spare + max(0, more):
                found[name] = sent
        self.names |= found.keys()
        return found

    @property
    def largest(self) -> int:
        """What a node may send for an order at most."""
        return _read(self._allowed)[LARGEST]

    def forgive(self, names: Collection[str]) -> None:
        """Forget nodes that may no longer join: another one may get the name."""
        for name in [each for each in self._sent if each not in names]:
            del self._sent[name]
        self.names &= set(names)

    def _count(self) -> None:
        try:
            with self._log.open("rb") as file:
                # The proxy has begun a new one if it is shorter.
                if file.seek(0, os.SEEK_END) < self._place:
                    self._place = 0
                file.seek(self._place)
                lines, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._place += len(lines) + len(end)
        for line in lines.splitlines():
            # On a full disk, the proxy may have written half of a line.
            with suppress(ValueError, LookupError, TypeError):
                about = json.loads(line)
                self._sent[about["node"]] += about["bytes"]


def _read(file: Path) -> Counter[str]:
    """Read what nodes may send; a file that is damaged allows nothing more than what is spare."""
    try:
        return Counter(read_json(file) or {})
    except (ChronofedError, TypeError):
        return Counter()


def stored_bytes(database: Path) -> int:
    """Return how much a database holds; its file may be larger, and what was deleted is used again."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1.0)) as opened:
            pages, free, size = (
                opened.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
    except sqlite3.Error:
        return 0
    return int((pages - free) * size)

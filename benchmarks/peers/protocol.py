"""What every contestant speaks with ``driver.py``: one JSON line for each line of standard input."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MEBIBYTE = 1024


class Channel:
    """Standard output kept for answers; whatever a framework prints goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def say(self, **fields: object) -> None:
        """Write one line."""
        self._answers.write(json.dumps(fields) + "\n")

    def serve(self, rounds: Callable[[int], None], **facts: object) -> None:
        """Say that all is ready, then run rounds as asked until ``quit`` or the end of input.

        Args:
            rounds: Runs this many FedAvg rounds and returns when their result is there.
            facts: What was checked before, for the first line.
        """
        self.say(ready=True, **facts)
        for number in asked():
            start = time.perf_counter()
            rounds(number)
            seconds = (time.perf_counter() - start) / number
            self.say(seconds=seconds, **memory())


def asked() -> Iterator[int]:
    """The number of rounds in every ``go`` or ``go n`` on standard input."""
    for line in iter(sys.stdin.readline, ""):
        word, *rest = line.split() or [""]
        if word == "quit":
            return
        if word == "go":
            yield int(rest[0]) if rest else 1


def memory() -> dict[str, float]:
    """Memory in MiB of this process and all its descendants.

    ``rss_mb`` counts a page that two of them share twice, ``pss_mb`` once.
    """
    family = list(_family(os.getpid(), _children()))
    return {
        "rss_mb": sum(_field(pid, "status", "VmRSS:") for pid in family) / MEBIBYTE,
        "pss_mb": sum(_field(pid, "smaps_rollup", "Pss:") for pid in family) / MEBIBYTE,
    }


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and its living descendants have used."""
    ticks = sum(_ticks(member) for member in _family(pid, _children()))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found.setdefault(_field(int(entry.name), "status", "PPid:"), []).append(int(entry.name))
    return found


def _family(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        yield from _family(child, children)


def _field(pid: int, file: str, name: str) -> int:
    """A number in a file of /proc; 0 where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)

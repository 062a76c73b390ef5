"""Connections of nodes, as the proxy has logged them: heartbeats, starts, refusals and silences."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from chronofed.flower.proxy import HEARTBEAT, SEEN_LOG, START

SILENCE_S = 28.0
"""Seconds without a heartbeat that are worth a line: a SuperNode sends one every 17 to 23 s."""
ACTIVE_ALREADY = 412
"""Status with which Flower refuses the start of a SuperNode that it takes for connected."""
SAME_S = 300.0
"""Refusals of a node that come within so many seconds of each other are one event."""

Event: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections of nodes lately.

    Attributes:
        seen: Time of each node's last heartbeat, by name.
        events: Starts, refusals and silences, by time.
        strangers: Number of requests that were refused because they came from nobody known.
    """

    seen: Mapping[str, float]
    events: tuple[Event, ...]
    strangers: int


def read_connections(proxy: Path) -> Connections:
    """Read the logs in the proxy's folder."""
    old = Path(SEEN_LOG).with_suffix(".old").name
    lines = [*read_lines(proxy / old), *read_lines(proxy / SEEN_LOG)]
    by_node: dict[str, list[Event]] = {}
    for line in lines:
        by_node.setdefault(line["node"], []).append(line)
    strangers = len(by_node.pop("", []))
    alive = {name: [x for x in own if x["status"] == 200] for name, own in by_node.items()}
    events: list[Event] = []
    for name, own in by_node.items():
        events += [*_starts(name, own), *_silences(name, alive[name]), *_refusals(name, own)]
    events.sort(key=lambda event: float(event["time"]))
    seen = {name: own[-1]["time"] for name, own in alive.items() if own}
    return Connections(seen, tuple(events), strangers)


def _starts(name: str, lines: list[Event]) -> Iterator[Event]:
    """Yield every start of a SuperNode but the first."""
    starts = [line for line in lines if line["status"] == 200 and START in _path(line)]
    for line in starts[1:]:
        yield {"time": line["time"], "event": "restarted", "name": name}


def _silences(name: str, lines: list[Event]) -> Iterator[Event]:
    beats = [line for line in lines if HEARTBEAT in _path(line) or START in _path(line)]
    for before, after in pairwise(beats):
        silence = after["time"] - before["time"]
        if silence > SILENCE_S:
            reason = f"no heartbeat for {silence:.0f} s"
            yield {"time": after["time"], "event": "silent", "name": name, "reason": reason}


def _refusals(name: str, lines: list[Event]) -> Iterator[Event]:
    """Yield refused requests of a node that is known; those in a row are one event."""
    last: Event | None = None
    for line in lines:
        status = line["status"]
        if status < 400 or START not in _path(line):
            continue
        known = last is not None and last["status"] == status
        if last is None or not known or line["time"] - last["until"] > SAME_S:
            if last is not None:
                yield _refusal(name, last)
            last = {"time": line["time"], "status": status, "count": 0}
        last |= {"until": line["time"], "count": last["count"] + 1}
    if last is not None:
        yield _refusal(name, last)


def _refusal(name: str, found: Event) -> Event:
    why = f"HTTP {found['status']}"
    if found["status"] == ACTIVE_ALREADY:
        why = "Flower takes it for connected: killed less than a minute ago, or two machines with one key"
    reason = f"{why} ({found['count']} times)"
    return {"time": found["time"], "event": "not accepted", "name": name, "reason": reason}


def _path(line: Event) -> str:
    return str(line.get("request", ""))


def read_lines(path: Path) -> list[Event]:
    """Read the lines of a file that may still grow: the last one may be incomplete."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found

"""Status of a hub for its operator: nodes, rounds, refusals, and when the run will end."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from chronofed.flower.connections import Event, read_connections, read_lines
from chronofed.flower.hub import EXCLUDED, HUB_LOG, STARTS, Hub
from chronofed.flower.keys import CERTIFICATE, expires
from chronofed.runs import RunDirectory
from chronofed.runs.load_spec import load_settings

QUIET = ("started", "finished", "joined")
"""Events that are not worth a line of their own when many clients have them."""
RESTORED = ("behind", "ahead")
RECENT = 10
"""Rounds from which the time of a round is taken, and events that are shown."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status of a client, and of the node that it is behind.

    Attributes:
        name: Name of the node.
        client: Number of the client.
        seen: Time of the node's last heartbeat; ``None`` if there was none lately.
        round: The last round in which its reply was accepted; ``None`` before the first.
        refused: Number of replies that were refused.
        restored: The last time that its state was behind or ahead of the server's; empty if it never was.
        problem: The last thing that went wrong with it, or why the hub refuses it.
    """

    name: str
    client: int
    seen: float | None
    round: int | None
    refused: int
    restored: str
    problem: str


@dataclass(frozen=True, slots=True)
class HubStatus:
    """Status of a hub.

    Attributes:
        state: State of the run.
        round: Rounds done.
        rounds: Rounds of the run; ``None`` if it has no end.
        round_s: Typical seconds of a round lately; ``None`` if not known.
        expires: Time at which the certificate expires.
        nodes: Its nodes, one entry for every client.
        strangers: Number of requests lately that were refused because they came from nobody it knows.
        counts: Number of events so far, by kind.
        events: The last things that went wrong, oldest first.
    """

    state: str
    round: int
    rounds: int | None
    round_s: float | None
    expires: str
    nodes: tuple[NodeStatus, ...]
    strangers: int
    counts: Mapping[str, int]
    events: tuple[str, ...]

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the run will end; ``None`` if not known."""
        if self.rounds is None or self.round_s is None:
            return None
        return max(0, self.rounds - self.round) * self.round_s

    def as_json(self) -> dict[str, Any]:
        """Return everything for a program."""
        return {**asdict(self), "remaining_s": self.remaining_s}

    def lines(self) -> Iterator[str]:
        """Return everything for a human."""
        of = "" if self.rounds is None else f" of {self.rounds}"
        pace = "" if self.round_s is None else f", {self.round_s:.1f} s a round"
        left = "" if not self.remaining_s else f", about {duration(self.remaining_s)} left"
        yield f"run: {self.state}, {self.round}{of} rounds done{pace}{left}"
        yield f"certificate: until {self.expires}"
        titles = f"{'node':<16} {'client':>6} {'last seen':>12} {'accepted':>8} {'refused':>7}"
        yield f"{titles} {'restored':<18} problem"
        for node in self.nodes:
            seen = "never" if node.seen is None else f"{duration(time.time() - node.seen)} ago"
            accepted = "-" if node.round is None else str(node.round)
            numbers = f"{node.client:>6} {seen:>12} {accepted:>8} {node.refused:>7}"
            yield f"{node.name:<16} {numbers} {node.restored or '-':<18} {node.problem}"
        yield f"strangers: {self.strangers} requests refused lately"
        if self.counts:
            yield "events: " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.counts.items()))
        yield from self.events


def read_status(hub: Hub, recent: int = RECENT) -> HubStatus:
    """Read the status of a hub from its folder, whether it runs or not.

    Args:
        hub: The hub.
        recent: Number of events to show.

    Raises:
        RunError: If it is not a hub.
    """
    hub.check()
    expiry = f"{expires(hub.keys / CERTIFICATE):%Y-%m-%d}"
    directory = RunDirectory(hub.run)
    history = directory.history() if directory.exists else []
    answers = read_lines(hub.run / "answers.jsonl")
    connections = read_connections(hub.proxy)
    events = [e for e in _events(hub, connections.events) if e["event"] not in QUIET]
    spec = hub.app / "spec.toml"
    rounds = load_settings(spec).rounds if spec.exists() else None
    trained = [line for line in answers if line.get("exchange") == "train"]
    seconds = [line["seconds"] for line in trained[-RECENT:]]
    return HubStatus(
        directory.state if directory.exists else "not started",
        history[-1]["round"] if history else 0,
        rounds if isinstance(rounds, int) else None,
        median(seconds) if seconds else None,
        expiry,
        tuple(
            _node(name, client, connections.seen.get(name), trained, events)
            for name, node in sorted(hub.nodes.items())
            for client in node.clients
        ),
        connections.strangers,
        dict(Counter(e["event"] for e in events)),
        tuple(f"{_clock(e)} {describe(e)}" for e in events[-recent:]),
    )


def _events(hub: Hub, connections: tuple[Event, ...]) -> list[Event]:
    """Return the events of run, hub and connections, by time; a run that starts once more is resumed."""
    own = read_lines(hub.run / "events.jsonl")
    starts = [event for event in own if event["event"] == "started"]
    for event in starts[1:]:
        event["event"] = "resumed"
    everything = [*own, *read_lines(hub.path / HUB_LOG), *connections]
    return sorted(everything, key=lambda event: float(event["time"]))


def _clock(event: Event) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))


def _node(
    name: str,
    client: int,
    seen: float | None,
    trained: list[dict[str, Any]],
    events: list[Event],
) -> NodeStatus:
    rounds = [line["round"] for line in trained if client in line["answered"]]
    own = [e for e in events if e.get("client") == client or e.get("name") == name]
    wrong = [e for e in own if e["event"] != "moved"]
    refused = sum(e["event"] == "refused" for e in own)
    restored = [e for e in own if e["event"] in RESTORED]
    last = f"{restored[-1]['event']} in round {restored[-1]['round']}" if restored else ""
    # A node that the hub refuses misses every later round; that is no other problem.
    since = max((e["time"] for e in events if e.get("message") == STARTS), default=0.0)
    excluded = [e for e in wrong if e["event"] == EXCLUDED and e["time"] >= since]
    problem = describe((excluded or wrong)[-1]) if wrong else ""
    return NodeStatus(name, client, seen, max(rounds, default=None), refused, last, problem)


class Follower:
    """Tells what is new since the last time, in lines for the operator.

    Args:
        hub: The hub.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._events, self._answers = (
            len(read_lines(hub.run / name)) for name in ("events.jsonl", "answers.jsonl")
        )

    def news(self) -> list[str]:
        """Return one line for every new event and round."""
        events, answers = (read_lines(self._hub.run / n) for n in ("events.jsonl", "answers.jsonl"))
        new_events, new_answers = events[self._events :], answers[self._answers :]
        self._events, self._answers = len(events), len(answers)
        lines = [(e["time"], describe(e)) for e in new_events]
        lines += [(a["time"], self._round(a)) for a in new_answers if a["exchange"] == "train"]
        return [line for _, line in sorted(lines)]

    def _round(self, answers: dict[str, Any]) -> str:
        asked, answered = answers["asked"], answers["answered"]
        absent = sorted(set(asked) - set(answered))
        without = f", without {', '.join(map(str, absent))}" if absent else ""
        line = f"round {answers['round']}: {len(answered)} of {len(asked)} clients{without}"
        status = read_status(self._hub)
        left = "" if not status.remaining_s else f", about {duration(status.remaining_s)} left"
        return f"{line}, {answers['seconds']:.1f} s{left}"


def describe(event: dict[str, Any]) -> str:
    """Return an event in one line."""
    round_ = f"round {event['round']}: " if "round" in event else ""
    who = f" client {event['client']}" if "client" in event else ""
    who += f" node {event['name']}" if "name" in event else ""
    reason = event.get("reason") or event.get("message") or event.get("order") or ""
    return f"{round_}{event['event']}{who}{f': {reason}' if reason else ''}"


def duration(seconds: float) -> str:
    """Return a number of seconds in the unit that suits it."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

"""A running hub: SuperLink on the loopback interface, proxy, node list and app, all watched and restarted."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import Popen
from threading import get_ident
from typing import Any

from chronofed.core.atomic import append_line, write_atomic
from chronofed.core.errors import ChronofedError, RunError
from chronofed.flower import proxy
from chronofed.flower.app import new_app
from chronofed.flower.hub import HUB_LOG, NODES, Hub
from chronofed.flower.keys import CA, CERTIFICATE, INNER, expires
from chronofed.flower.local import CONNECTION
from chronofed.flower.processes import (
    GRACE_S,
    LOOPBACK,
    Processes,
    environment,
    find_program,
    free_port,
    wait_for_port,
)
from chronofed.runs import RunDirectory
from chronofed.runs.json_files import read_json

REGISTERED, ROSTER, SENT = "registered.json", "roster.json", "sent"
RENEW_BEFORE = timedelta(days=30)
RETURN_MEMORY = "MALLOC_MMAP_THRESHOLD_=1048576"
"""Lets the C library return large blocks to the system instead of keeping some for every thread."""
PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
REGISTRATIONS = 4
"""Nodes that are registered at the same time; each takes a process of Flower's for some seconds."""
MAX_FAILURES = 5
"""Starts of the app in a row without a new round, after which the hub stops."""

Say = Callable[[str], None]


class HubService:
    """Runs a hub; use it in a ``with`` block.

    Args:
        hub: Its folder.
        say: Tells the operator something in one line.
        listen: Address to publish; by default this machine alone can reach it.

    Attributes:
        processes: SuperLink, proxy and app.
        port: Port of the SuperLink, on the loopback interface.
    """

    def __init__(self, hub: Hub, say: Say = lambda line: None, listen: str = "127.0.0.1") -> None:
        self.hub, self._say = hub, say
        self.listen = f"{listen}:{hub.settings.port}"
        self.port = free_port()
        self.processes = Processes(hub.logs, environment(hub.path / "home"))
        self._seen: tuple[float, ...] = ()
        self._failures, self._rounds, self._next_start = 0, -1, 0.0
        self._running, self._listening = False, 0.0
        self._stack = ExitStack()
        # The address of a Unix socket has at most 107 bytes. The folder is readable by this user only.
        self._waiting = Path(tempfile.mkdtemp(prefix="chronofed-")) / "relay"

    def __enter__(self) -> "HubService":
        find_program("flower-superlink")
        proxy.find_nginx()
        home = self.hub.path / "home"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        security = f"root-certificates = {json.dumps(str(self.hub.keys / CA))}"
        connection = CONNECTION.format(address=f"{LOOPBACK}:{self.port}", security=security)
        write_atomic(home / "config.toml", connection.encode())
        self._stack.callback(shutil.rmtree, self._waiting.parent, ignore_errors=True)
        self._stack.enter_context(self.processes)
        self.say("the hub starts")
        try:
            self._renew_in_time()
            self.start_link()
            self._seen = self._changes()
            self.sync_nodes()
            self.start_relay()
            self.start_proxy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, line: str) -> None:
        """Tell the operator something in one line, and keep it for the status."""
        self._say(line)
        event = {"time": round(time.time(), 3), "event": "hub", "message": line}
        # A full disk must not stop what still works.
        with suppress(OSError, ChronofedError):
            append_line(self.hub.path / HUB_LOG, json.dumps(event).encode())

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens, on the loopback interface only."""
        keys = self.hub.keys
        self.processes.start(
            "superlink",
            *(
                "env",
                RETURN_MEMORY,
                find_program("flower-superlink"),
                "--host",
                LOOPBACK,
                "--port",
                str(self.port),
            ),
            *("--ssl-ca-certfile", str(keys / CA), "--ssl-certfile", str(keys / INNER[0])),
            *("--ssl-keyfile", str(keys / INNER[1])),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", str(self.hub.path / "superlink.db")),
        )
        wait_for_port(self.port, self.processes)
        self._listening = time.monotonic()

    @property
    def _listens_s(self) -> float:
        return time.monotonic() - self._listening

    def start_relay(self) -> None:
        """Start the relay, at which nodes wait for orders; the proxy goes on without it."""
        self._waiting.unlink(missing_ok=True)
        self.processes.start(
            "relay",
            *(sys.executable, "-m", "chronofed.flower.relay", str(self._waiting), str(self.port)),
            *(str(self.hub.keys / CA), str(self.hub.path / SENT)),
        )

    def start_proxy(self) -> None:
        """Start the proxy and wait until it listens."""
        # A proxy that was killed leaves its workers, which hold the port.
        self.processes.stop("proxy")
        self.processes.start("proxy", *self._write_proxy())
        wait_for_port(self.hub.settings.port, self.processes)

    def sync_nodes(self) -> None:
        """Register the keys of new nodes, and unregister those that were removed."""
        path = self.hub.path / REGISTERED
        known = {name: node.public for name, node in self.hub.nodes.items()}
        kept: dict[str, list[str]] = dict(read_json(path) or {})
        alive = self._registered_ids() if path.exists() else set()
        # A hub that was killed while it registered a node does not know its number.
        for node in alive - {node for node, _ in kept.values()}:
            self._flwr("unregister", node)
        for name, (node, public) in list(kept.items()):
            if node not in alive:
                del kept[name]
            elif known.get(name) != public:
                self._flwr("unregister", node)
                self.say(f"node {name} may no longer join")
                del kept[name]
        write_atomic(path, json.dumps(kept).encode())
        new = [name for name in known if name not in kept]
        with ThreadPoolExecutor(REGISTRATIONS) as pool:
            registered = pool.map(lambda name: self._register(name, known[name]), new)
            for name, node in zip(new, registered, strict=True):
                kept[name] = [node, known[name]]
                write_atomic(path, json.dumps(kept).encode())
                self.say(f"node {name} may join")
        nodes = self.hub.nodes
        roster = {node: nodes[name].clients for name, (node, _) in kept.items()}
        write_atomic(self.hub.path / ROSTER, json.dumps(roster).encode())

    def submit(self) -> "Popen[bytes]":
        """Start the app, or resume its run."""
        self.processes.stop("app")
        return self.processes.start("app", "flwr", "run", str(self.hub.app), "local", "--stream")

    def tend(self) -> bool:
        """Restart what has ended, and apply changes of the folder; return ``False`` when the run is over."""
        if self.processes.ended("superlink"):
            self.say(
                f"the SuperLink has ended ({self.processes.last_line('superlink')}); starting it again"
            )
            self.processes.stop("superlink", "app")
            self.start_link()
        if self.processes.lacks_children("superlink") and self._listens_s > GRACE_S:
            self.say("the SuperLink has lost its SuperExec; starting it again")
            self.processes.stop("superlink", "app")
            self.start_link()
        if self.processes.ended("proxy"):
            self.say("the proxy has ended; starting it again")
            self.start_proxy()
        if self.processes.ended("relay"):
            self.start_relay()
        if self._changes() != self._seen:
            self._seen = self._changes()
            self.sync_nodes()
            self._write_proxy()
            proxy.reload(self.hub.proxy)
        with suppress(RunError):
            proxy.rotate(self.hub.proxy)
        return self._tend_app()

    def _tend_app(self) -> bool:
        directory = RunDirectory(self.hub.run)
        if directory.summary() is not None:
            return False
        running = directory.exists and directory.state == "running"
        if self._running and not running:
            # Its process has ended; Flower would notice within a minute.
            self.processes.stop("app")
        self._running = running
        if running or not self.processes.ended("app") or time.monotonic() < self._next_start:
            return True
        rounds = len(directory.history()) if directory.exists else 0
        self._failures = 0 if rounds > self._rounds else self._failures + 1
        self._rounds = rounds
        if self._failures >= MAX_FAILURES:
            raise RunError(f"the run has stopped {MAX_FAILURES} times: {why_stopped(self.hub)}")
        if self._failures:
            self.say(f"the run has stopped ({why_stopped(self.hub)}); starting it again")
        pause = PAUSE_S * 2**self._failures
        self._next_start = time.monotonic() + min(pause, LONGEST_PAUSE_S)
        self.submit()
        return True

    def _write_proxy(self) -> list[str]:
        hub = self.hub
        return proxy.write_checked(
            hub.proxy,
            proxy.configuration(
                hub.proxy, hub.keys, self.listen, self.port, hub.headers(), self._waiting
            ),
        )

    def _renew_in_time(self) -> None:
        until = expires(self.hub.keys / CERTIFICATE)
        if until - datetime.now(UTC) < min(RENEW_BEFORE, timedelta(self.hub.settings.days) / 2):
            self.hub.renew()
            self.say(f"renewed the certificate, which would have expired on {until:%Y-%m-%d}")

    def _changes(self) -> tuple[float, ...]:
        paths = (self.hub.path / NODES, self.hub.keys / CERTIFICATE)
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)

    def _register(self, name: str, public: str) -> str:
        key = self.hub.path / f"{name}.pub"
        write_atomic(key, public.encode())
        try:
            return str(self._flwr("register", str(key))["node-id"])
        finally:
            key.unlink(missing_ok=True)

    def _registered_ids(self) -> set[str]:
        return {str(node["node-id"]) for node in self._flwr("list")["nodes"]}

    def _flwr(self, action: str, *arguments: str) -> dict[str, Any]:
        """Run one of the operator's commands about nodes.

        Raises:
            ChronofedError: With the last line of its output.
        """
        name = f"operator-{get_ident()}"
        log = self.hub.logs / f"{name}.log"
        command = ("flwr", "supernode", action, *arguments, "local", "--format", "json")
        code = self.processes.start(name, *command).wait()
        self.processes.stop(name)
        text, reason = log.read_text(), self.processes.last_line(name)
        log.unlink()
        try:
            answer = json.loads(text[text.index("{") :])
        except ValueError:
            answer = {}
        if code != 0 or not answer.get("success"):
            raise ChronofedError(f"flwr supernode {action}: {reason}")
        return dict(answer)


def prepare_app(hub: Hub, spec: str, data: Path | None = None, **settings: Any) -> None:
    """Write the app of a hub, unless it has one.

    Raises:
        RunError: If it has an app with another specification.
    """
    if (hub.app / "pyproject.toml").exists():
        if (hub.app / "spec.toml").read_text() != spec:
            raise RunError(
                f"{hub.app} has another specification; use another folder for another experiment"
            )
        return
    new_app(hub.app, spec, hub.run, data, hub.path / ROSTER, hub.path / SENT, **settings)


def why_stopped(hub: Hub) -> str:
    """Return the reason why a run has stopped: the server's own, or else the last line of Flower's log."""
    events = hub.run / "events.jsonl"
    for line in reversed(events.read_text().splitlines() if events.exists() else []):
        event = json.loads(line)
        if event["event"] == "stopped":
            return str(event["reason"])
        if event["event"] == "started":
            return "its process was killed"
    return Processes(hub.logs, {}).last_line("app") or "no reason given"

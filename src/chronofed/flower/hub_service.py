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
from typing import Any

from chronofed.core.atomic import append_line, write_atomic
from chronofed.core.errors import ChronofedError, RunError
from chronofed.flower import proxy
from chronofed.flower.allowance import Excess, stored_bytes
from chronofed.flower.app import new_app
from chronofed.flower.commands import Operator
from chronofed.flower.hub import EXCLUDED, HUB_LOG, NODES, STARTS, Hub
from chronofed.flower.keys import CA, CERTIFICATE, INNER, expires, key_header
from chronofed.flower.local import CONNECTION
from chronofed.flower.processes import (
    GRACE_S,
    LOOPBACK,
    Processes,
    find_program,
    free_port,
    wait_for_port,
)
from chronofed.flower.resident import Resident
from chronofed.runs import RunDirectory
from chronofed.runs.json_files import read_json

REGISTERED, ROSTER = "registered.json", "roster.json"
SENT, ASKED, ALLOWED, DATABASE = "sent", "asked", "allowed.json", "superlink.db"
STORE_BYTES, STORE_LOOK_S = 2**30, 20.0
"""Size of what a SuperLink stores, besides some replies of everybody, above which the run starts anew, and
seconds between two looks at it."""
APP_POLL_S = 1.0
"""Seconds between two looks of the SuperLink's SuperExec for an app to start: each one locks the database."""
POLL_S = 2.0
"""Seconds between two looks of the server for answers, if no node has asked for its next order meanwhile."""
RENEW_BEFORE = timedelta(days=30)
RETURN_MEMORY = "MALLOC_MMAP_THRESHOLD_=1048576"
"""Lets the C library return large blocks to the system instead of keeping some for every thread."""
PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
SERVER_APP = "chronofed.flower.server_app"
REGISTRATIONS = 4
"""Nodes that are registered at the same time; each takes a process of Flower's for a moment."""
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
        # Flower's programs for the operator and server apps are forked; a server app needs torch.
        self._resident = Resident(hub.path / "work", worker=False, modules=(SERVER_APP,))
        variables = self._resident.environment(hub.path / "home", poll_s=APP_POLL_S)
        self.processes = Processes(hub.logs, variables)
        self._operator = Operator(self.processes, self._resident.program("flwr"), hub.path)
        self._seen: tuple[float, ...] = ()
        self._failures, self._rounds, self._next_start = 0, -1, 0.0
        self._running, self._listening, self._store_look = False, 0.0, 0.0
        self._excess = Excess(hub.path / ALLOWED, hub.proxy / proxy.PUSHED_LOG)
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
        self._stack.callback(self._resident.close)
        self._stack.enter_context(self.processes)
        self.say(STARTS)
        try:
            self._resident.start(self.processes)
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

    def say(self, line: str, event: str = "hub", **about: str) -> None:
        """Tell the operator something in one line, and keep it for the status.

        Args:
            line: The line.
            event: Kind of the event.
            about: ``name`` of the node that it is about, to be shown beside it.
        """
        self._say(line)
        known = {"time": round(time.time(), 3), "event": event, **about, "message": line}
        # A full disk must not stop what still works.
        with suppress(OSError, ChronofedError):
            append_line(self.hub.path / HUB_LOG, json.dumps(known).encode())

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
            *("--database", str(self.hub.path / DATABASE)),
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
            *(str(self.hub.keys / CA), str(self.hub.path / SENT), str(self.hub.path / ASKED)),
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
        kept = self._registered
        alive = self._operator.nodes() if path.exists() else set()
        # A hub that was killed while it registered a node does not know its number.
        for node in alive - {node for node, _ in kept.values()}:
            self._operator.unregister(node)
        for name, (node, public) in list(kept.items()):
            if node not in alive:
                del kept[name]
            elif known.get(name) != public:
                self._operator.unregister(node)
                self.say(f"node {name} may no longer join")
                del kept[name]
        write_atomic(path, json.dumps(kept).encode())
        new = [name for name in known if name not in kept]
        with ThreadPoolExecutor(REGISTRATIONS) as pool:
            registered = pool.map(lambda name: self._operator.register(name, known[name]), new)
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
        command = (self._resident.program("flwr"), "run", str(self.hub.app), "local", "--stream")
        return self.processes.start("app", *command)

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
        self._resident.tend(self.processes, self.say)
        self._refuse_excess()
        if self._changes() != self._seen:
            self._seen = self._changes()
            self.sync_nodes()
            self._excess.forgive(self.hub.nodes)
            self._write_proxy()
            proxy.reload(self.hub.proxy)
        self._empty_store()
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

    def _refuse_excess(self) -> None:
        """Refuse nodes that have sent far more than their orders allow."""
        numbers = {name: node for name, (node, _) in self._registered.items()}
        found = self._excess.look(numbers)
        for name, sent in found.items():
            self.say(
                f"node {name} has sent {sent / 2**20:.0f} MB, far more than its orders allow; "
                "it is refused until the hub is started again",
                EXCLUDED,
                name=name,
            )
        if found:
            self._write_proxy()
            # A proxy that has just ended is started with it.
            with suppress(RunError):
                proxy.reload(self.hub.proxy)

    def _empty_store(self) -> None:
        """Start the run anew if the SuperLink stores far too much: what nobody fetches goes with the run."""
        if time.monotonic() < self._store_look + STORE_LOOK_S:
            return
        self._store_look = time.monotonic()
        limit = STORE_BYTES + 2 * self._excess.largest * sum(
            len(node.clients) for node in self.hub.nodes.values()
        )
        stored = stored_bytes(self.hub.path / DATABASE)
        if stored > limit:
            what = f"{stored / 2**20:.0f} MB that nobody fetches"
            self.say(f"the SuperLink stores {what}; the run starts anew")
            # A SuperLink that does not answer is asked again.
            with suppress(ChronofedError):
                self._operator.stop_runs()

    @property
    def _registered(self) -> dict[str, list[str]]:
        return dict(read_json(self.hub.path / REGISTERED) or {})

    def _write_proxy(self) -> list[str]:
        hub, refused = self.hub, self._excess.names
        nodes = {header: name for header, name in hub.headers().items() if name not in refused}
        numbers = {key_header(public.encode()): node for node, public in self._registered.values()}
        text = proxy.configuration(
            hub.proxy, hub.keys, self.listen, self.port, nodes, self._waiting, numbers
        )
        return proxy.write_checked(hub.proxy, text)

    def _renew_in_time(self) -> None:
        until = expires(self.hub.keys / CERTIFICATE)
        if until - datetime.now(UTC) < min(RENEW_BEFORE, timedelta(self.hub.settings.days) / 2):
            self.hub.renew()
            self.say(f"renewed the certificate, which would have expired on {until:%Y-%m-%d}")

    def _changes(self) -> tuple[float, ...]:
        paths = (self.hub.path / NODES, self.hub.keys / CERTIFICATE)
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


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
    files = {"nodes": ROSTER, "sent": SENT, "asked": ASKED, "allowed": ALLOWED}
    paths = {key: hub.path / name for key, name in files.items()}
    new_app(hub.app, spec, hub.run, data, **paths, **{"poll_s": POLL_S, **settings})


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

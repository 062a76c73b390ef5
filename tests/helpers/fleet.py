"""A hub and its nodes as processes that are started again whenever they end, as systemd would do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chronofed.flower.connections import read_lines
from chronofed.flower.hub import Hub, HubSettings
from chronofed.flower.hub_service import prepare_app
from chronofed.flower.hub_status import HubStatus, read_status
from chronofed.flower.processes import Processes, environment, free_port
from tests.helpers.trial import rounds_done

COMMAND = (sys.executable, "-c", "from chronofed.cli.main import main; raise SystemExit(main())")


class Fleet:
    """Use it in a ``with`` block.

    Args:
        folder: Folder of everything but the hub.
        spec: The specification.
        nodes: Number of nodes; the first is called ``a`` and has client 0.
        clients: Number of clients; the last node has all that are left.
        hub: Folder of the hub.
        settings: Settings of the federation.

    Processes start with the first :meth:`wait`.
    """

    def __init__(
        self, folder: Path, spec: str, nodes: int, clients: int, hub: Path | None = None, **settings
    ) -> None:
        self.folder = folder
        self.hub = Hub(hub or folder / "hub")
        self.hub.create(HubSettings(("127.0.0.1",), free_port()))
        self.names = [chr(ord("a") + k) for k in range(nodes)]
        for number, name in enumerate(self.names):
            # The last node has all clients that are left.
            own = range(number, clients if name == self.names[-1] else number + 1)
            shutil.move(self.hub.add_node(name, own), folder / name)
        prepare_app(self.hub, spec, quorum=clients, join_timeout_s=300.0, **settings)
        self.processes = Processes(folder / "logs", environment(folder / "home"))
        self._commands = {"hub": ("hub", "start", str(self.hub.path))}
        for name in self.names:
            self._commands[name] = ("node", "start", str(folder / name))

    def configure(self, name: str, *options: str) -> None:
        """Give a node more options."""
        self._commands[name] += options

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_) -> None:
        # Nodes first: they leave the hub in order.
        self.processes.stop(*reversed(list(self._commands)))

    def supervise(self) -> None:
        """Start what does not run; a hub whose run is finished stays down."""
        for name, command in self._commands.items():
            done = name == "hub" and self.finished
            if self.processes.ended(name) and not done:
                self.processes.start(name, *COMMAND, *command)

    def add(self, name: str, folder: Path) -> None:
        """Start one more node from then on."""
        self._commands[name] = ("node", "start", str(folder))

    def stop(self, name: str) -> None:
        """Stop a node in order; :meth:`supervise` starts it again."""
        self.processes.stop(name)

    def remove(self, name: str) -> None:
        """Stop a node, and do not start it again."""
        del self._commands[name]
        self.stop(name)

    @property
    def run(self) -> Path:
        return self.hub.run

    @property
    def finished(self) -> bool:
        return (self.run / "summary.json").exists()

    @property
    def rounds(self) -> int:
        return rounds_done(self.run)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 600.0) -> None:
        """Wait, and meanwhile start again what has ended."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not happen in {seconds} s: {self.news()}"
            self.supervise()
            time.sleep(0.1)

    def wait_for_round(self, number: int) -> None:
        self.wait(lambda: self.rounds >= number, f"round {number}")

    def news(self) -> str:
        return "\n".join(self.status().lines())

    def status(self) -> HubStatus:
        return read_status(self.hub, 10_000)

    def pid(self, name: str) -> int | None:
        """The process that was started for the hub or a node; ``None`` if it has ended."""
        return None if self.processes.ended(name) else self.processes._running[name].pid

    def of(self, name: str, *words: str) -> list[int]:
        """Processes below the hub or a node whose command line contains one of these words.

        A fork of the prefork server has only given itself the name of its program, of at most 15 characters.
        """
        home = self.hub.path if name == "hub" else self.folder / name / "work"
        mark = f"FLWR_HOME={home / 'home'}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_bytes().decode()
                called = (path / "comm").read_text().strip()
                known = any(word in line or word[:15] == called for word in words)
                if known and mark in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return sorted(found)

    def apps(self, name: str) -> list[int]:
        """Processes that answer a message at the moment: forks of the prefork server, or Flower's own."""
        forks = self.of(name, "chronofed.flower.prefork")
        return [pid for pid in forks if _called(pid) == "flwr-clientapp"] + self.of(
            name, "flwr-clientapp"
        )

    def answers(self) -> list[dict]:
        """Who has answered in which round."""
        return read_lines(self.run / "answers.jsonl")

    def json(self) -> dict:
        """What ``chronofed hub status --json`` prints."""
        command = [*COMMAND, "hub", "status", str(self.hub.path), "--json", "--events", "100000"]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def _called(pid: int) -> str:
    """The name that a fork has given itself: that of the program it runs."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(*pids: int | None, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return ``False`` if nobody was there."""
    hit = False
    for pid in pids:
        try:
            if pid is not None:
                os.kill(pid, number)
                hit = True
        except ProcessLookupError:
            continue
    return hit

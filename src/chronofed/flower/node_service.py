"""A running node: a SuperNode that is started again whenever it ends, and what stays beside it."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chronofed.core.errors import RunError
from chronofed.flower.hub import NODE_KEY, read_node
from chronofed.flower.keys import CA
from chronofed.flower.processes import LOOPBACK, Processes, find_program, free_port
from chronofed.flower.resident import Resident

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
START_PAUSE_S = 0.2
"""Seconds between the starts of two SuperNodes of a machine."""
REFUSED_S, REFUSED_PAUSE_S = 180.0, 12.0
"""Seconds within which a SuperNode that was killed is accepted again, and the longest pause until then."""
SOUND_S = 30.0
"""Seconds that a SuperNode must have run for the next pause to be short again."""


class NodeService:
    """Runs the nodes in folders that a hub made; use it in a ``with`` block.

    Nodes of one machine share the processes that stay beside their SuperNodes.

    Args:
        folders: The folders.
        config: Settings of :class:`~chronofed.flower.settings.Node`; ``{name}`` stands for a node's name.
        say: Tells the operator something in one line.

    Attributes:
        processes: SuperNodes, prefork server and worker.
        nodes: The nodes.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        config: Mapping[str, Any],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        home, self.say = folders[0].resolve(), say
        self._resident = Resident(home / "work")
        variables = self._resident.environment(home / "work" / "home", len(folders))
        self.processes = Processes(home / "logs", variables)
        program = self._resident.program("flower-supernode")
        self.nodes = [
            RunningNode(folder.resolve(), config, self.processes, program) for folder in folders
        ]

    def __enter__(self) -> "NodeService":
        find_program("flower-supernode")
        for node in self.nodes:
            node.check()
        try:
            self._resident.start(self.processes)
            for node in self.nodes:
                node.start()
                if node is not self.nodes[-1]:
                    # Many that start together would keep each other from being heard in time.
                    time.sleep(START_PAUSE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.__exit__()
        self._resident.close()

    def tend(self) -> None:
        """Start again what has ended."""
        self._resident.tend(self.processes, self.say)
        for node in self.nodes:
            node.tend(self.say)


class RunningNode:
    """The SuperNode of one folder.

    A SuperNode with a key that was killed is refused by the SuperLink for up to a minute; the pauses get longer
    until it is accepted.

    Args:
        folder: The folder.
        config: Settings of :class:`~chronofed.flower.settings.Node`.
        processes: Runs it.
        program: What to run for a SuperNode; it ends when it has lost its SuperExec.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], processes: Processes, program: str
    ) -> None:
        self.folder, self.about, self._processes = folder, read_node(folder), processes
        self._program = program
        own = {key: _filled(value, self.about.name) for key, value in config.items()}
        first, *others = self.about.clients
        numbers = {"others": ",".join(map(str, others))} if others else {}
        self.config = {"client": first, **numbers, "state": str(folder / "state"), **own}
        self._process = f"node-{self.about.name}"
        self._pause, self._started, self._sound = SHORTEST_PAUSE_S, 0.0, time.monotonic()

    def check(self) -> None:
        """Refuse a folder that lacks a file.

        Raises:
            RunError: With its name.
        """
        for name in (CA, NODE_KEY):
            if not (self.folder / name).exists():
                raise RunError(
                    f"{self.folder}: {name} is missing; carry the whole folder from the hub"
                )
        (self.folder / NODE_KEY).chmod(0o600)

    def start(self) -> None:
        """Start the SuperNode."""
        table = " ".join(f"{key}={json.dumps(value)}" for key, value in self.config.items())
        self._started = time.monotonic()
        self._processes.stop(self._process)
        self._processes.start(
            self._process,
            *(self._program, "--superlink", self.about.hub),
            *("--root-certificates", str(self.folder / CA)),
            *("--auth-supernode-private-key", str(self.folder / NODE_KEY)),
            *("--host", LOOPBACK, "--port", str(free_port())),
            *("--node-config", table),
        )

    def tend(self, say: Callable[[str], None]) -> None:
        """Start the SuperNode again if it has ended, after a pause."""
        if not self._processes.ended(self._process):
            if time.monotonic() - self._started > SOUND_S:
                self._pause, self._sound = SHORTEST_PAUSE_S, time.monotonic()
            return
        if time.monotonic() < self._started + self._pause:
            return
        line = self._processes.last_line(self._process) or "no output"
        say(f"the SuperNode of {self.about.name} has ended ({line}); starting it again")
        lately = time.monotonic() - self._sound < REFUSED_S
        self._pause = min(2 * self._pause, REFUSED_PAUSE_S if lately else LONGEST_PAUSE_S)
        self.start()


def _filled(value: Any, name: str) -> Any:
    return value.replace("{name}", name) if isinstance(value, str) else value


UNIT = """\
[Unit]
Description=chronofed {what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={folder}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes

[Install]
WantedBy={target}
"""


def unit(what: str, command: str, folder: Path, target: str = "default.target") -> str:
    """Return a systemd unit that keeps a command running."""
    return UNIT.format(what=what, command=command, folder=folder, target=target)

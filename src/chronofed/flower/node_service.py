"""A running node: a SuperNode that is started again whenever it ends, and what stays beside it."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chronofed.core.errors import RunError
from chronofed.flower.hub import NODE_KEY, read_node
from chronofed.flower.keys import CA
from chronofed.flower.processes import LOOPBACK, Processes, find_program, free_port
from chronofed.flower.resident import Resident

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
REFUSED_S, REFUSED_PAUSE_S = 180.0, 12.0
"""Seconds within which a SuperNode that was killed is accepted again, and the longest pause until then."""
SOUND_S = 30.0
"""Seconds that a SuperNode must have run for the next pause to be short again."""


class NodeService:
    """Runs the node in a folder that a hub made; use it in a ``with`` block.

    A SuperNode with a key that was killed is refused by the SuperLink for up to a minute; the pauses get longer
    until it is accepted.

    Args:
        folder: The folder.
        config: Settings of :class:`~chronofed.flower.settings.Node`.
        say: Tells the operator something in one line.

    Attributes:
        processes: SuperNode, prefork server and worker.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder, self.say = folder.resolve(), say
        self.about = read_node(self.folder)
        self.config = {"client": self.about.client, "state": str(self.folder / "state"), **config}
        self._resident = Resident(self.folder / "work")
        variables = self._resident.environment(self.folder / "work" / "home")
        self.processes = Processes(self.folder / "logs", variables)
        self._pause, self._started, self._sound = SHORTEST_PAUSE_S, 0.0, time.monotonic()

    def __enter__(self) -> "NodeService":
        find_program("flower-supernode")
        for name in (CA, NODE_KEY):
            if not (self.folder / name).exists():
                raise RunError(
                    f"{self.folder}: {name} is missing; carry the whole folder from the hub"
                )
        (self.folder / NODE_KEY).chmod(0o600)
        try:
            self._resident.start(self.processes)
            self._start_node()
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
        if not self.processes.ended("node"):
            if time.monotonic() - self._started > SOUND_S:
                self._pause, self._sound = SHORTEST_PAUSE_S, time.monotonic()
            return
        if time.monotonic() < self._started + self._pause:
            return
        line = self.processes.last_line("node") or "no output"
        self.say(f"the SuperNode has ended ({line}); starting it again")
        lately = time.monotonic() - self._sound < REFUSED_S
        self._pause = min(2 * self._pause, REFUSED_PAUSE_S if lately else LONGEST_PAUSE_S)
        self._start_node()

    def _start_node(self) -> None:
        table = " ".join(f"{key}={json.dumps(value)}" for key, value in self.config.items())
        self._started = time.monotonic()
        self.processes.stop("node")
        self.processes.start(
            "node",
            *("flower-supernode", "--superlink", self.about.hub),
            *("--root-certificates", str(self.folder / CA)),
            *("--auth-supernode-private-key", str(self.folder / NODE_KEY)),
            *("--host", LOOPBACK, "--port", str(free_port())),
            *("--node-config", table),
        )


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

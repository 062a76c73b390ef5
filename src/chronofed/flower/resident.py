"""The processes that stay beside SuperNodes: a prefork server, and a worker that has imported torch."""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chronofed.flower.prefork import write_launchers
from chronofed.flower.processes import Processes, environment
from chronofed.flower.worker import ADDRESS

PREFORK, WORKER = "prefork", "worker"


class Resident:
    """Prefork server and worker of a machine, which any number of its SuperNodes may share.

    Args:
        folder: Folder for their launchers.

    Attributes:
        launchers: Folder of launchers, to put first on the path of SuperNodes.
    """

    def __init__(self, folder: Path) -> None:
        self.launchers, prefork = write_launchers(folder)
        self._sockets = {PREFORK: prefork, WORKER: prefork.with_name(WORKER)}

    def environment(self, home: Path, nodes: int = 1) -> dict[str, str]:
        """Return environment variables for SuperNodes, and for these processes themselves."""
        return {
            **environment(home, self.launchers, nodes=nodes),
            ADDRESS: str(self._sockets[WORKER]),
        }

    def start(self, processes: Processes) -> None:
        """Start both, without waiting for them: launchers and apps do."""
        for name in self._sockets:
            self._start(name, processes)

    def wait(self, processes: Processes) -> None:
        """Wait until both listen.

        Raises:
            ChronofedError: If one of them ends.
        """
        while not all(path.exists() for path in self._sockets.values()):
            processes.check()
            time.sleep(0.1)

    def tend(self, processes: Processes, say: Callable[[str], None]) -> None:
        """Start again what has ended; meanwhile apps start anew, and wait for the worker."""
        for name in self._sockets:
            if processes.ended(name):
                say(f"the {name} process has ended; starting it again")
                processes.stop(name)
                self._start(name, processes)

    def close(self) -> None:
        """Remove the sockets."""
        shutil.rmtree(self._sockets[PREFORK].parent, ignore_errors=True)

    def _start(self, name: str, processes: Processes) -> None:
        self._sockets[name].unlink(missing_ok=True)
        module = f"chronofed.flower.{name}"
        processes.start(name, sys.executable, "-m", module, str(self._sockets[name]))

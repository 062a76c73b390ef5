"""The processes that stay beside SuperNodes: a prefork server, and a worker that has imported torch.

Beside a SuperLink there is only a prefork server.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chronofed.flower.launchers import write_launchers
from chronofed.flower.processes import Processes, environment
from chronofed.flower.worker import ADDRESS

PREFORK, WORKER = "prefork", "worker"


class Resident:
    """Prefork server and worker of a machine, which any number of its SuperNodes may share.

    Args:
        folder: Folder for their launchers.
        worker: Whether there is a worker.
        modules: More modules for the prefork server to import.

    Attributes:
        launchers: Folder of launchers, to put first on the path of SuperNodes.
    """

    def __init__(self, folder: Path, worker: bool = True, modules: Sequence[str] = ()) -> None:
        self.launchers, prefork = write_launchers(folder)
        self._modules = {PREFORK: modules, WORKER: ()}
        self._sockets = {PREFORK: prefork}
        if worker:
            self._sockets[WORKER] = prefork.with_name(WORKER)

    def program(self, name: str) -> str:
        """Return what to run for one of Flower's programs that stay: its launcher."""
        return str(self.launchers / name)

    def environment(
        self, home: Path, nodes: int = 1, poll_s: float | None = None
    ) -> dict[str, str]:
        """Return environment variables for SuperNodes, and for these processes themselves."""
        worker = {ADDRESS: str(self._sockets[WORKER])} if WORKER in self._sockets else {}
        return {**environment(home, self.launchers, nodes=nodes, poll_s=poll_s), **worker}

    def start(self, processes: Processes) -> None:
        """Start them, without waiting for them: launchers and apps do."""
        for name in self._sockets:
            self._start(name, processes)

    def wait(self, processes: Processes) -> None:
        """Wait until they listen.

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
        command = (sys.executable, "-m", module, str(self._sockets[name]), *self._modules[name])
        processes.start(name, *command)

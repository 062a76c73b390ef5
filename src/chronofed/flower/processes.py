"""Flower's own programs as processes on this machine, and their end."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

from chronofed.errors import ChronofedError, MissingExtraError

LOOPBACK = "127.0.0.1"
GRACE = 10.0  # seconds for a program to end by itself
START = 90.0  # seconds for a SuperLink to answer
PR_SET_PDEATHSIG = 1


def program(name: str) -> str:
    """Where one of Flower's programs is: beside this Python, or on the path.

    Raises:
        MissingExtraError: If Flower is not installed.
    """
    found = shutil.which(name, path=os.pathsep.join([_beside(), os.environ.get("PATH", "")]))
    if found is None:
        raise MissingExtraError("flwr", "flower", "running on Flower")
    return found


def surroundings(home: Path, *first: Path) -> dict[str, str]:
    """Variables for Flower's programs: its files below ``home``, no telemetry, our own programs first."""
    path = os.pathsep.join([*map(str, first), _beside(), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def free_port() -> int:
    """A port on the loopback interface that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Processes:
    """Programs that end with the block in which they were started, whatever happens.

    Attributes:
        logs: Folder of what they say, one file each.
    """

    def __init__(self, logs: Path, variables: Mapping[str, str]) -> None:
        self.logs = logs
        self._variables = dict(variables)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program, in a session of its own: Ctrl-C is for us to handle."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [_found(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._variables,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._running[name] = process
        return process

    def stop(self, *names: str) -> None:
        """End some programs: first by asking, then by force."""
        leaving = [self._running.pop(name) for name in names if name in self._running]
        for process in leaving:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in leaving:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            self._kill(process)

    def kill(self, name: str) -> None:
        """End a program and what it started at once, without a chance to tidy up."""
        self._kill(self._running.pop(name))

    def check(self) -> None:
        """Complain about a program that has ended by itself.

        Raises:
            ChronofedError: With the last line that it said.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                said = self.last_words(name)
                raise ChronofedError(
                    f"{name} ended (exit code {process.returncode}): {said or 'it said nothing'}; "
                    f"see {self.logs / name}.log"
                )

    def last_words(self, name: str) -> str:
        """The last line that a program said."""
        lines = (self.logs / f"{name}.log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(*reversed(self._running))

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session, with what it started
        process.wait()


def wait_for_port(port: int, processes: Processes) -> None:
    """Until somebody listens on a port of this machine.

    Raises:
        ChronofedError: If a program ended before, or nobody does.
    """
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        processes.check()
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(0.2)
    raise ChronofedError(f"nobody listens on port {port} after {START:.0f} s; see {processes.logs}")


def end_with_flower(grace: float = 5.0) -> None:
    """From now on this app process ends soon after the one of Flower's that started it.

    Flower asks it to end, but the process of a server then waits for ever to deliver its last lines to a
    SuperLink that is gone. What matters is on disk by then.
    """
    place = sys.argv.index("--parent-pid") + 1 if "--parent-pid" in sys.argv else 0
    parent = int(sys.argv[place]) if place else os.getppid()

    def watch() -> None:
        while _exists(parent):
            time.sleep(0.5)
        time.sleep(grace)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _found(command: str) -> str:
    return command if os.path.isabs(command) else program(command)


def _beside() -> str:
    return str(Path(sys.executable).parent)


def _end_with_parent() -> None:
    """On Linux: be asked to end when the process that started this one is no more."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

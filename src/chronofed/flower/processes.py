"""Flower's programs as child processes on this machine, all of which are stopped at the end."""

import ctypes
import os
import re
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

from chronofed.core.errors import ChronofedError, MissingExtraError

LOOPBACK = "127.0.0.1"
GRACE_S = 10.0
"""Seconds between asking a program to end and killing it."""
START_TIMEOUT_S = 90.0
"""Seconds that a SuperLink may take to listen."""
SHORTEST_POLL_S, POLL_S_A_NODE, LONGEST_POLL_S = 0.05, 0.04, 2.0
"""Seconds between two looks of a SuperExec for work: a look takes some milliseconds, and every node has one."""
LOOKS = 5
"""Times in a row that a program must be seen without a child."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PR_SET_PDEATHSIG = 1
"""Option of Linux's ``prctl``: send this process a signal when its parent ends."""


def find_program(name: str) -> str:
    """Find one of Flower's programs: next to this Python, or on the path.

    Raises:
        MissingExtraError: If Flower is not installed.
    """
    found = shutil.which(name, path=os.pathsep.join([_python_folder(), os.environ.get("PATH", "")]))
    if found is None:
        raise MissingExtraError("flwr", "flower", "running on Flower")
    return found


def environment(
    home: Path, *first: Path, nodes: int = 1, poll_s: float | None = None
) -> dict[str, str]:
    """Return environment variables for Flower's programs.

    Args:
        home: Folder for Flower's own files.
        first: Folders to put first on the path.
        nodes: Number of SuperNodes that share this machine.
        poll_s: Seconds between two looks of a SuperExec for work; by default it follows from ``nodes``.
    """
    usual = min(max(SHORTEST_POLL_S, POLL_S_A_NODE * nodes), LONGEST_POLL_S)
    interval = usual if poll_s is None else poll_s
    path = os.pathsep.join([*map(str, first), _python_folder(), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{interval:g}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Processes:
    """Programs that are stopped at the end of the ``with`` block, whatever happens.

    What they write can be read by this user only.

    Attributes:
        logs: Folder of log files, one for each program.
    """

    def __init__(self, logs: Path, variables: Mapping[str, str]) -> None:
        self.logs = logs
        self._variables = dict(variables)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._alone: dict[str, int] = {}

    def start(self, name: str, *command: str, log: bool = True) -> subprocess.Popen[bytes]:
        """Start a program in its own session, so that Ctrl-C reaches this process only.

        Args:
            name: Its name here.
            command: Program and arguments.
            log: Write its output to a log file; otherwise it writes where this process does.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as file:
            process = subprocess.Popen(
                [_resolve(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=file if log else None,
                stderr=subprocess.STDOUT if log else None,
                env=self._variables,
                start_new_session=True,
                umask=0o077,
                preexec_fn=_exit_with_parent,
            )
        self._running[name] = process
        return process

    def stop(self, *names: str) -> None:
        """Stop programs: terminate them, and kill those that do not end in time."""
        stopping = [self._running.pop(name) for name in names if name in self._running]
        for process in stopping:
            process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in stopping:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            self._kill(process)

    def kill(self, name: str) -> None:
        """Kill a program and its children at once."""
        self._kill(self._running.pop(name))

    def ended(self, name: str) -> bool:
        """Tell if a program has ended by itself, or was never started."""
        process = self._running.get(name)
        return process is None or process.poll() is not None

    def lacks_children(self, name: str) -> bool:
        """Tell if a program has been without a child for some looks: one of Flower's without its SuperExec.

        A single look may miss a child, when a thread of the program ends meanwhile.
        """
        self._alone[name] = self._alone.get(name, 0) + 1 if self._is_alone(name) else 0
        return self._alone[name] >= LOOKS

    def _is_alone(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None and is_alone(process.pid)

    def check(self) -> None:
        """Raise if a program has ended by itself.

        Raises:
            ChronofedError: With the last line of its log.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                line = self.last_line(name) or "no output"
                raise ChronofedError(
                    f"{name} ended (exit code {process.returncode}): {line}; "
                    f"see {self.logs / name}.log"
                )

    def last_line(self, name: str) -> str:
        """Return the last line of a program's log, without colours."""
        log = self.logs / f"{name}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        lines = COLOURS.sub("", text).split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(*reversed(self._running))

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            # The process group includes its children.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_port(port: int, processes: Processes) -> None:
    """Wait until a program listens on a port of this machine.

    Raises:
        ChronofedError: If one of the programs ends, or the port stays closed.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        processes.check()
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(0.2)
    waited = f"{START_TIMEOUT_S:.0f} s"
    raise ChronofedError(f"nothing listens on port {port} after {waited}; see {processes.logs}")


def changed_ns(file: Path) -> int:
    """Return the time at which a file was touched last; 0 if never."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def exit_with_flower(grace_s: float = 5.0) -> None:
    """Exit this app process soon after the Flower process that started it has ended.

    Flower asks it to exit, but a server process then waits for ever to deliver its last log lines to a
    SuperLink that is gone. The run directory is complete by then.
    """
    place = sys.argv.index("--parent-pid") + 1 if "--parent-pid" in sys.argv else 0
    parent = int(sys.argv[place]) if place else os.getppid()

    def watch() -> None:
        while _exists(parent):
            time.sleep(0.5)
        time.sleep(grace_s)
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


def is_alone(process: int) -> bool:
    """Tell if a process seems to have no child that runs."""
    lists = list(Path(f"/proc/{process}/task").glob("*/children"))
    try:
        listed = [child for path in lists for child in path.read_text().split()]
    except OSError:
        # A thread has ended meanwhile.
        return False
    return bool(lists) and not any(_runs(int(child)) for child in listed)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _resolve(command: str) -> str:
    return command if os.path.isabs(command) else find_program(command)


def _python_folder() -> str:
    return str(Path(sys.executable).parent)


def _exit_with_parent() -> None:
    """Let Linux terminate this process when its parent ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

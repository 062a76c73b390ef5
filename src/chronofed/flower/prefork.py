"""Preforked processes: fork a process that has imported Flower already, instead of starting each one anew.

Flower starts a process for every message: it runs the program ``flwr-clientapp`` from the path. A launcher of
the same name is first on the path (:mod:`~chronofed.flower.launchers`). It sends its arguments to a prefork
server, a process that has imported everything once. The server forks, and the fork runs Flower's own program
as usual. Flower does not notice, every message still gets its own process, and no state survives from one
message to the next. If the prefork server is gone, the launcher starts Flower's program as usual.

SuperNodes and their SuperExecs are forked in the same way. They stay, and share the memory of everything that
was imported: a node takes a third of what it takes by itself, and starts at once.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import Event, Thread

from chronofed.core.errors import MissingExtraError
from chronofed.flower.launchers import APPS, STAYING
from chronofed.flower.processes import LOOKS, exit_with_flower, is_alone

PROGRAMS = (*APPS, *STAYING)
PRELOAD = ("chronofed.flower.client_app", "flwr.app", "flwr.clientapp", "flwr.serverapp")
"""Modules that the prefork server imports. None imports torch: the worker of the machine has it."""
LOOK_S = 1.0
"""Seconds between two looks of a SuperNode for its SuperExec, and of this process for forks that have ended."""
ANSWER_S = 75.0
"""Seconds after which Flower has answered in the place of an app that was killed, if it does: it takes 60."""
RUNTIME = "--runtime-api-address"
"""Option of an app: the address of the SuperNode, or of the SuperLink, that it belongs to."""
STARTING_LOOKS = 60
"""Looks without one after which it counts as lost, if there was none yet."""
MAX_COMMAND_BYTES = 1 << 16
PR_SET_NAME = 15
"""Option of Linux's ``prctl``: the name of this process for ``ps`` and ``top``."""


def main(address: str, *modules: str) -> None:
    """Import everything, and some modules more, then fork on request until this process is stopped."""
    known = {name: _entry(name) for name in PROGRAMS}
    for module in (*PRELOAD, *modules, *(entry.module for entry in known.values())):
        import_module(module)
    # Pages of what was imported stay shared if no fork ever counts references to find garbage there.
    gc.collect()
    gc.freeze()
    forks = Forks()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        listener.settimeout(LOOK_S)
        while True:
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                with connection:
                    _serve(connection, listener, known, forks)
            forks.tend()


class Forks:
    """The forks of this process that run.

    A SuperNode waits for the answer of the app that has its message. Flower answers in the place of an app that
    was killed, but not if it had not fetched the message yet: then the SuperNode waits for ever. So it is ended
    in order, to be started again, if no other app of it was started for a while.
    """

    def __init__(self) -> None:
        self._running: dict[int, list[str]] = {}
        self._killed: dict[str, float] = {}

    def add(self, process: int, command: list[str]) -> None:
        """Note a fork that has started."""
        self._running[process] = command
        if command[0] in APPS:
            self._killed.pop(_value(command, RUNTIME), None)

    def tend(self) -> None:
        """Reap forks that have ended, and end SuperNodes that wait in vain."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                command = self._running.pop(found[0], [""])
                if command[0] in APPS and os.WIFSIGNALED(found[1]):
                    self._killed[_value(command, RUNTIME)] = time.monotonic()
        for address, at in list(self._killed.items()):
            if time.monotonic() - at > ANSWER_S:
                del self._killed[address]
                self._end_supernode(address.rpartition(":")[2])

    def _end_supernode(self, port: str) -> None:
        for process, command in self._running.items():
            if command[0] == "flower-supernode" and _value(command, "--port") == port:
                os.kill(process, signal.SIGTERM)


def _value(command: list[str], option: str) -> str:
    """Return the value of an option of a command; empty if it has none."""
    _, *after = command[command.index(option) :] if option in command else [option]
    return after[0] if after else ""


def _entry(name: str) -> EntryPoint:
    found = entry_points(group="console_scripts", name=name)
    if not found:
        raise MissingExtraError("flwr", "flower", "running on Flower")
    return next(iter(found))


def _serve(
    connection: socket.socket,
    listener: socket.socket,
    known: dict[str, EntryPoint],
    forks: Forks,
) -> None:
    content, files, _, _ = socket.recv_fds(connection, MAX_COMMAND_BYTES, 2)
    try:
        name, *arguments = json.loads(content)
        fork = os.fork()
        if fork == 0:
            listener.close()
            _run_program(known[name], [name, *arguments], files, connection)
        forks.add(fork, [name, *arguments])
        connection.sendall(f"+{fork}\n".encode())
    except (ValueError, OSError):
        # Without an answer, the launcher starts Flower's program itself.
        return
    finally:
        for file in files:
            os.close(file)


def _run_program(
    entry: EntryPoint, command: list[str], files: list[int], launcher: socket.socket
) -> None:
    """Run Flower's program in the fork; never return."""
    code, ends = 1, Event()
    try:
        os.setsid()
        _call_me(command[0])
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
        sys.argv = command
        if "--parent-pid" in command:
            # From here on: before the app is loaded, Flower's own exit may wait for ever, too.
            exit_with_flower()
        if command[0] in STAYING:
            watched = (launcher, command, ends)
            Thread(target=_exit_with_launcher, args=watched, daemon=True).start()
        if command[0] == "flower-supernode":
            Thread(target=_end_without_superexec, daemon=True).start()
        entry.load()()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if command[0] in STAYING:
            ends.set()
            with suppress(OSError):
                launcher.sendall(bytes([code % 256]))
        os._exit(code)


def _exit_with_launcher(launcher: socket.socket, command: list[str], ends: Event) -> None:
    """Exit when the launcher was killed, as the program would have been in its place."""
    with suppress(OSError):
        launcher.recv(1)
    if ends.is_set():
        # The launcher has ended because this program does.
        return
    if "--parent-pid" in command:
        # Without its SuperExec a SuperNode would wait for ever.
        with suppress(OSError, ValueError):
            os.kill(int(command[command.index("--parent-pid") + 1]), signal.SIGTERM)
    os._exit(1)


def _end_without_superexec() -> None:
    """End this SuperNode in order when its SuperExec is gone, in whose place it would wait for ever.

    The SuperExec's launcher and its fork see to that when one of them ends, but not if both are killed at once.
    """
    alone, least = 0, STARTING_LOOKS
    while alone < least:
        time.sleep(LOOK_S)
        alone = alone + 1 if is_alone(os.getpid()) else 0
        least = least if alone else LOOKS
    os.kill(os.getpid(), signal.SIGTERM)


def _call_me(name: str) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

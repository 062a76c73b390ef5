"""Preforked app processes: fork a process that has imported Flower already, instead of starting each one anew.

Flower starts a process for every message: it runs the program ``flwr-clientapp`` from the path. This module
puts a launcher of the same name first on the path. The launcher sends its arguments to a prefork server, a
process that has imported everything once. The server forks, and the fork runs Flower's own ``flwr-clientapp``
as usual. Flower does not notice, every message still gets its own process, and no state survives from one
message to the next. If the prefork server is gone, the launcher starts Flower's program as usual.
"""

import json
import os
import signal
import socket
import stat
import sys
import tempfile
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from chronofed.core.errors import MissingExtraError
from chronofed.flower.processes import exit_with_flower

PROGRAMS = ("flwr-clientapp", "flwr-serverapp")
PRELOAD = ("chronofed.flower.client_app", "flwr.app", "flwr.clientapp", "flwr.serverapp")
"""Modules that the prefork server imports. None imports torch: the worker of the machine has it."""
MAX_COMMAND_BYTES = 1 << 16

LAUNCHER = """\
#!{python} -IS
import json, os, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
try:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect({address!r})
        socket.send_fds(server, [json.dumps([name, *arguments]).encode()], [1, 2])
        if server.recv(1) != b"+":
            raise OSError
except OSError:
    program = os.path.join({folder!r}, name)
    os.execv(program, [program, *arguments])
"""


def write_launchers(folder: Path) -> tuple[Path, Path]:
    """Write the launchers.

    Returns:
        The folder of launchers, to put first on the path, and the socket's address for :func:`main`.
    """
    # The address of a Unix socket has at most 107 bytes. The folder is readable by this user only.
    address = Path(tempfile.mkdtemp(prefix="chronofed-")) / "prefork"
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    text = LAUNCHER.format(
        python=sys.executable, address=str(address), folder=str(Path(sys.executable).parent)
    )
    for name in PROGRAMS:
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    return programs, address


def main(address: str) -> None:
    """Import everything, then fork on request until this process is stopped."""
    known = {name: _entry(name) for name in PROGRAMS}
    for module in (*PRELOAD, *(entry.module for entry in known.values())):
        import_module(module)
    # Let the system reap forks that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            with connection:
                _serve(connection, listener, known)


def _entry(name: str) -> EntryPoint:
    found = entry_points(group="console_scripts", name=name)
    if not found:
        raise MissingExtraError("flwr", "flower", "running on Flower")
    return next(iter(found))


def _serve(
    connection: socket.socket, listener: socket.socket, known: dict[str, EntryPoint]
) -> None:
    content, files, _, _ = socket.recv_fds(connection, MAX_COMMAND_BYTES, 2)
    try:
        name, *arguments = json.loads(content)
        if os.fork() == 0:
            listener.close()
            _run_program(known[name], [name, *arguments], files)
        connection.sendall(b"+")
    except (ValueError, OSError):
        # Without an answer, the launcher starts Flower's program itself.
        return
    finally:
        for file in files:
            os.close(file)


def _run_program(entry: EntryPoint, command: list[str], files: list[int]) -> None:
    """Run Flower's program in the fork; never return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
        sys.argv = command
        if "--parent-pid" in command:
            # From here on: before the app is loaded, Flower's own exit may wait for ever, too.
            exit_with_flower()
        entry.load()()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])

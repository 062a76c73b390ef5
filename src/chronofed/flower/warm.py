"""Flower's app processes by forking one that has torch imported already, instead of starting each anew.

Flower starts a process for every message: its program ``flwr-clientapp``, found on the path. Here another
program of that name is found first. It hands its arguments to a process that has imported everything once;
that one forks, and the fork runs Flower's own ``flwr-clientapp`` as if it had been started the usual way.
Flower notices nothing, every message still has a process of its own, and nothing is kept from one to the next.
Where the process that forks is gone, Flower's program is started the usual way.
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

from chronofed.errors import MissingExtraError

PROGRAMS = ("flwr-clientapp", "flwr-serverapp")
ADVANCE = (
    *("chronofed.flower.client", "chronofed.flower.server"),  # and with them torch
    *("flwr.app", "flwr.clientapp", "flwr.serverapp"),
)
LONGEST = 1 << 16  # bytes of a command line

LAUNCHER = """\
#!{python} -IS
import json, os, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({address!r})
        socket.send_fds(line, [json.dumps([name, *arguments]).encode()], [1, 2])
        if line.recv(1) != b"+":
            raise OSError
except OSError:
    program = os.path.join({beside!r}, name)
    os.execv(program, [program, *arguments])
"""


def prepare(folder: Path) -> tuple[Path, Path]:
    """Write the programs that are to be found first.

    Returns:
        The folder of programs, for the path, and the address for :func:`main`.
    """
    # An address may have 107 bytes at most; the folder is readable for this user alone.
    address = Path(tempfile.mkdtemp(prefix="chronofed-")) / "warm"
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    text = LAUNCHER.format(
        python=sys.executable, address=str(address), beside=str(Path(sys.executable).parent)
    )
    for name in PROGRAMS:
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    return programs, address


def main(address: str) -> None:
    """Import everything, then fork for whoever asks, until this process is ended."""
    known = {name: _entry(name) for name in PROGRAMS}
    for module in (*ADVANCE, *(entry.module for entry in known.values())):
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended forks leave nothing behind
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(64)
        while True:
            line, _ = door.accept()
            with line:
                _serve(line, door, known)


def _entry(name: str) -> EntryPoint:
    found = entry_points(group="console_scripts", name=name)
    if not found:
        raise MissingExtraError("flwr", "flower", "running on Flower")
    return next(iter(found))


def _serve(line: socket.socket, door: socket.socket, known: dict[str, EntryPoint]) -> None:
    content, files, _, _ = socket.recv_fds(line, LONGEST, 2)
    try:
        name, *arguments = json.loads(content)
        if os.fork() == 0:
            door.close()
            _become(known[name], [name, *arguments], files)
        line.sendall(b"+")
    except (ValueError, OSError):  # the one who asked starts Flower's program itself
        return
    finally:
        for file in files:
            os.close(file)


def _become(entry: EntryPoint, command: list[str], files: list[int]) -> None:
    """In the fork: be Flower's program; never return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
        sys.argv = command
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

"""Launchers: small programs with the names of Flower's that let the prefork server run them.

A launcher knows nothing but the address of the prefork server (:mod:`~chronofed.flower.prefork`). Without it,
it runs Flower's own program. A launcher of a program that stays (a SuperNode, a SuperExec) stays, too: it
passes on signals, ends with its program, and takes its program with it.
"""

import stat
import sys
import tempfile
from pathlib import Path

APPS = ("flwr-clientapp", "flwr-serverapp")
"""Programs of Flower's that answer one message, or run one app."""
STAYING = ("flower-supernode", "flower-superexec", "flwr")
"""Programs of Flower's that stay, or give an exit code. A SuperExec takes what has started it with it: a
SuperNode or a SuperLink, which would wait for it in vain."""

_APP = """\
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
_STAYING = """\
#!{python} -IS
import json, os, signal, socket, sys, time
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
parent, takes_parent, found, asked = os.getppid(), name == "flower-superexec", [], []

def pass_on(number, frame):
    asked.append(number)
    for process in found:
        try:
            os.kill(process, number)
        except OSError:
            pass

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, pass_on)
code, server = 1, socket.socket(socket.AF_UNIX)
try:
    end = time.monotonic() + {patience_s}
    while True:
        try:
            server.connect({address!r})
            break
        except OSError:
            # It may have to be started first; its folder goes with it for good.
            if time.monotonic() > end or asked or not os.path.exists({home!r}):
                raise
            time.sleep(0.1)
    socket.send_fds(server, [json.dumps([name, *arguments]).encode()], [1, 2])
    answer = b""
    while not answer.endswith(b"\\n"):
        part = server.recv(1)
        if not part:
            raise OSError
        answer += part
    found.append(int(answer))
    if asked:
        pass_on(signal.SIGTERM, None)
    said = server.recv(1)
    code = said[0] if said else 1
except (OSError, ValueError):
    if not found and not asked:
        program = os.path.join({folder!r}, name)
        if not takes_parent:
            os.execv(program, [program, *arguments])
        import subprocess
        process = subprocess.Popen([program, *arguments])
        found.append(process.pid)
        code = process.wait() % 256
if takes_parent and not asked and os.getppid() == parent:
    os.kill(parent, signal.SIGTERM)
sys.exit(code)
"""
PATIENCE_S = 30.0
"""Seconds that a program which stays waits for the prefork server; to start it by itself takes as long."""


def write_launchers(folder: Path) -> tuple[Path, Path]:
    """Write the launchers.

    Returns:
        The folder of launchers, to put first on the path, and the address of the prefork server's socket.
    """
    # The address of a Unix socket has at most 107 bytes. The folder is readable by this user only.
    home = Path(tempfile.mkdtemp(prefix="chronofed-"))
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    address = home / "prefork"
    place: dict[str, str | float] = {
        "python": sys.executable,
        "address": str(address),
        "home": str(home),
        "folder": str(Path(sys.executable).parent),
        "patience_s": PATIENCE_S,
    }
    for names, text in ((APPS, _APP), (STAYING, _STAYING)):
        for name in names:
            (programs / name).write_text(text.format(**place))
            (programs / name).chmod(stat.S_IRWXU)
    return programs, address

"""The resident worker of a machine: one process that has imported torch, and answers the messages of its nodes.

Flower starts a process for every message. That process hands the message to the worker over a Unix socket that
only this user can reach, waits, and returns the reply. The worker keeps nothing between messages that is not on
disk, but for data that were read from files: a message may as well be answered by a process of its own.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from chronofed.core.errors import RunError
from chronofed.flower.messages import Message, MessageError
from chronofed.flower.processes import START_TIMEOUT_S

ADDRESS = "CHRONOFED_WORKER"
"""Environment variable with the address of the worker's socket."""
PRELOAD = ("chronofed.flower.node", "chronofed.data.client_source.load", "chronofed.runs.load_spec")
"""Modules that the worker imports before it listens; they import torch."""
MAX_FRAME_BYTES = 1 << 34
PART_BYTES = 1 << 20
_LENGTH_BYTES = 8

Table = Mapping[str, Any]
logger = logging.getLogger(__name__)


def hand_over(address: Path, message: Message, node: Table, run: Table, folder: Path) -> Message:
    """Let the worker answer a message.

    Args:
        address: Address of its socket.
        message: The message.
        node: Settings of the node, as in ``--node-config``.
        run: Settings of the run, as in ``--run-config``.
        folder: Folder of the app.

    Raises:
        RunError: If there is no worker, it ends while it works, or it raises an error that it did not expect.
    """
    about = {"node": dict(node), "run": dict(run), "folder": str(folder)}
    with _connect(address) as worker:
        try:
            _send(worker, Message(json.dumps(about), message.pack()).pack())
            reply = Message.unpack(_receive(worker))
        except (OSError, MessageError) as error:
            msg = "the worker of this node ended while it worked on the order; it is started again"
            raise RunError(msg) from error
    if reply.header:
        raise RunError(reply.header)
    return Message.unpack(reply.body)


def _connect(address: Path) -> socket.socket:
    """Connect to the worker, which may have to be started first."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        worker = socket.socket(socket.AF_UNIX)
        try:
            worker.connect(str(address))
            return worker
        except OSError as error:
            worker.close()
            if time.monotonic() > deadline:
                raise RunError("the worker of this node does not run; see its log") from error
        time.sleep(0.1)


def _send(to: socket.socket, content: bytes) -> None:
    to.sendall(len(content).to_bytes(_LENGTH_BYTES, "little"))
    to.sendall(content)


def _receive(source: socket.socket) -> bytes:
    size = int.from_bytes(_receive_exactly(source, _LENGTH_BYTES), "little")
    if size > MAX_FRAME_BYTES:
        raise MessageError(f"a message of {size} bytes is too large")
    return _receive_exactly(source, size)


def _receive_exactly(source: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(min(size - len(parts), PART_BYTES))
        if not part:
            raise MessageError("the message ends too early")
        parts += part
    return bytes(parts)


class Worker:
    """Answers messages, those of different clients at the same time.

    Args:
        address: Address of the socket to listen on.
    """

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(128)
        self._locks: dict[tuple[str, ...], Lock] = {}

    def serve(self, threads: int) -> None:
        """Answer messages until this process is stopped."""
        with ThreadPoolExecutor(threads) as pool:
            while True:
                connection, _ = self._listener.accept()
                pool.submit(self._answer, connection)

    def _answer(self, connection: socket.socket) -> None:
        # The app process that asked may be gone: its node asks again, and gets the reply that was kept.
        with connection, suppress(OSError, MessageError):
            packed = Message.unpack(_receive(connection))
            _send(connection, self._reply(packed).pack())

    def _reply(self, packed: Message) -> Message:
        """Return the packed reply as a body, or the reason why there is none as a header."""
        from chronofed.flower.client_app import answer

        try:
            about = json.loads(packed.header)
            node = about["node"]
            client = tuple(str(node.get(key)) for key in ("state", "client", "partition-id"))
            # An order that comes again waits for the first attempt, whose app process has ended.
            with self._locks.setdefault(client, Lock()):
                message = Message.unpack(packed.body)
                reply = answer(message, node, about["run"], Path(about["folder"]))
            return Message("", reply.pack())
        except Exception as error:
            logger.exception("an error that was not expected")
            return Message(f"{type(error).__name__}: {error}")


def main(address: str) -> None:
    """Import everything, then answer messages until this process is stopped."""
    # The number of torch threads changes the rounding; the machine's cores work on different clients.
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in PRELOAD:
        import_module(module)
    from chronofed.engines.base import usable_cores
    from chronofed.flower.client_app import log_to_stderr

    log_to_stderr()
    Worker(address).serve(usable_cores())


if __name__ == "__main__":
    main(sys.argv[1])

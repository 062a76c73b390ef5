"""A relay that lets nodes wait for their next order instead of asking for it every three seconds.

A SuperNode that finds no message sleeps for 3 s, and no setting changes that; most of a short round is this
sleep. The relay stands between the proxy and the SuperLink and passes on one call, ``pull-messages``. If the
answer is that there is no message, it keeps the node waiting until orders were sent, asks once more, and passes
on that answer. It never looks into a request, and holds no key. Without it, nodes ask the SuperLink as usual.

A SuperNode asks for its next order as soon as it has sent its answer. So the relay also tells the server when
and where to look for answers; looks cost the SuperLink more than most of what it does for a small round.
"""

import asyncio
import os
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path

from chronofed.flower.processes import LOOPBACK, changed_ns

HOLD_S = 12.0
"""Seconds that a node may wait: it gives up after 30, and what a slow SuperLink answers later is lost."""
LOOK_S = 0.02
"""Seconds between two looks at the file that says that orders were sent."""
MAX_REQUEST_BYTES, MAX_REPLY_BYTES = 2**16, 2**26
AT_ONCE, PACE_S = 4, 0.2
"""Nodes that get their orders at once, and seconds between later ones.

Every node makes about ten requests for an order. From many that start together a SuperLink would not hear the
heartbeats of its own app in time, and would end it."""
TIMEOUT_S = 25.0
"""Seconds that the proxy or the SuperLink may be silent."""
EMPTY = b"content-length: 0"
NODE_HEADER = "chronofed-node"
DROPPED = ("connection:", f"{NODE_HEADER}:")
"""Headers that are not passed on."""


class Relay:
    """Passes on requests of nodes to the SuperLink.

    Args:
        port: Port of the SuperLink on this machine.
        context: TLS with the SuperLink's certificate.
        sent: File that is touched whenever orders were sent.
        asked: Folder with a file for every node, to touch whenever it asks for an order: a node does so as soon
            as its last answer is sent.
    """

    def __init__(self, port: int, context: ssl.SSLContext, sent: Path, asked: Path) -> None:
        self._port, self._context, self._sent, self._asked = port, context, sent, asked
        self._next = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with suppress(OSError, EOFError, ValueError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                request, node = await _read_request(reader)
            self._tell(node)
            writer.write(await self._answer(request, reader))
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, request: bytes, node: asyncio.StreamReader) -> bytes:
        """Return the SuperLink's answer; if there is no message, wait for orders and ask again.

        A node that has gone must not be given a message: Flower would count it as delivered.
        """
        end = time.monotonic() + HOLD_S
        while True:
            seen = self._last()
            answer = await self._ask(request)
            waits = _is_empty(answer) and await self._orders(seen, end)
            if not waits or node.at_eof():
                return answer
            await self._turn()
            if node.at_eof():
                return answer

    async def _ask(self, request: bytes) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                LOOPBACK, self._port, ssl=self._context, server_hostname="localhost"
            )
            try:
                writer.write(request)
                await writer.drain()
                answer = await reader.read(MAX_REPLY_BYTES)
                while more := await reader.read(MAX_REPLY_BYTES - len(answer)):
                    answer += more
                return answer
            finally:
                writer.close()

    async def _turn(self) -> None:
        """Let nodes go one after the other, but for the first few."""
        now = time.monotonic()
        self._next = max(self._next, now - AT_ONCE * PACE_S) + PACE_S
        await asyncio.sleep(max(0.0, self._next - now))

    async def _orders(self, seen: int, end: float) -> bool:
        """Wait until orders were sent; return ``False`` if there were none in time."""
        while time.monotonic() < end:
            if self._last() != seen:
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def _tell(self, node: str) -> None:
        # On a full disk, the server finds answers when it looks by itself.
        with suppress(OSError):
            if node.isdecimal():
                (self._asked / node).touch()
            os.utime(self._asked)

    def _last(self) -> int:
        return changed_ns(self._sent)


async def _read_request(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """Read a request, and let its connection end with the answer.

    Returns:
        The request, and the number of its node, which the proxy knows.

    Raises:
        ValueError: If it is too large.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")[:-2]
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    length = int(fields.get("content-length", "0"))
    if length > MAX_REQUEST_BYTES:
        raise ValueError("the request is too large")
    kept = [line for line in lines if not line.lower().startswith(DROPPED)]
    first = "\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1")
    return first + await reader.readexactly(length), fields.get(NODE_HEADER, "")


def _is_empty(answer: bytes) -> bool:
    """Tell if this is an answer without a message."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    return status == [b"200"] and not body and EMPTY in head.lower()


async def run(address: str, port: int, authority: str, sent: str, asked: str) -> None:
    """Serve until this process is stopped."""
    context = ssl.create_default_context(cafile=authority)
    Path(asked).mkdir(mode=0o700, exist_ok=True)
    relay = Relay(port, context, Path(sent), Path(asked))
    server = await asyncio.start_unix_server(relay.serve, address, limit=MAX_REQUEST_BYTES)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]))

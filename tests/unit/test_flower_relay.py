"""The relay keeps nodes waiting until orders were sent, over real sockets of this machine."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("cryptography", reason="run by: make test-flower")

from chronofed.flower import relay
from chronofed.flower.keys import CA, INNER, authority, write_files
from chronofed.flower.relay import Relay
from chronofed.flower.transport import Asked

NOTHING = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
ORDER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\norder"
REQUEST = (
    b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n"
    b"Content-Length: 4\r\n\r\nnode"
)


class Link:
    """A SuperLink that gives some answers, one after the other, and then the last one again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.requests = list(answers), []

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head + await reader.readexactly(4))
        writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        await writer.drain()
        writer.close()


@pytest.fixture
def keys(tmp_path):
    write_files(tmp_path / "keys", authority(tmp_path / "keys", ["hub"], 10))
    return tmp_path / "keys"


@asynccontextmanager
async def serving(link, keys, sent):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / INNER[0], keys / INNER[1])
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    made = Relay(port, ssl.create_default_context(cafile=keys / CA), sent, sent.with_name("asked"))
    path = str(keys / "socket")
    async with server, await asyncio.start_unix_server(made.serve, path, limit=2**16):
        yield path


async def ask(path, request=REQUEST):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def test_an_order_is_passed_on_at_once(keys, tmp_path):
    link = Link(ORDER)

    async def main():
        async with serving(link, keys, tmp_path / "sent") as path:
            return await ask(path)

    assert asyncio.run(main()) == ORDER
    (request,) = link.requests
    assert request.endswith(b"Content-Length: 4\r\nConnection: close\r\n\r\nnode")
    assert request.count(b"Connection") == 1


def test_a_node_waits_until_orders_were_sent(keys, tmp_path):
    link, sent = Link(NOTHING, ORDER), tmp_path / "sent"

    async def main():
        async with serving(link, keys, sent) as path:
            waiting = asyncio.create_task(ask(path))
            while not link.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert len(link.requests) == 1
            sent.touch()
            return await waiting

    assert asyncio.run(main()) == ORDER
    assert len(link.requests) == 2


def test_many_nodes_get_their_orders_one_after_the_other(keys, tmp_path, monkeypatch):
    """The first few at once: a SuperLink that is overrun does not hear its own app."""
    monkeypatch.setattr(relay, "AT_ONCE", 2)
    monkeypatch.setattr(relay, "PACE_S", 0.05)
    pauses = []

    async def main():
        made = Relay(1, None, tmp_path / "sent", tmp_path / "asked")
        start = asyncio.get_running_loop().time()
        for _ in range(4):
            await made._turn()
            pauses.append(asyncio.get_running_loop().time() - start)

    asyncio.run(main())
    assert pauses[3] >= 2 * 0.05
    assert pauses[3] - pauses[2] >= 0.04


def test_a_node_that_has_gone_is_given_no_order(keys, tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "LOOK_S", 0.2)
    link, sent = Link(NOTHING, ORDER), tmp_path / "sent"

    async def main():
        async with serving(link, keys, sent) as path:
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(REQUEST)
            while not link.requests:
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
            sent.touch()
            await asyncio.sleep(0.6)

    asyncio.run(main())
    assert len(link.requests) == 1


def test_the_server_is_told_when_a_node_asks(keys, tmp_path):
    """It then looks for the answer that the node has sent before."""

    async def main():
        async with serving(link, keys, tmp_path / "sent") as path:
            asked = Asked(tmp_path / "asked")
            found = [asked.nodes()]
            for node in ("12", "12", "7", "../x", ""):
                head = f"fleet/pull-messages HTTP/1.1\r\nChronofed-Node: {node}\r\n".encode()
                await ask(path, REQUEST.replace(b"fleet/pull-messages HTTP/1.1\r\n", head))
                found.append(asked.nodes())
            return found

    (tmp_path / "asked").mkdir()
    link = Link(ORDER)
    assert asyncio.run(main()) == [set(), {12}, {12}, {7}, set(), set()]
    assert {path.name for path in (tmp_path / "asked").iterdir()} == {"7", "12"}
    assert all(b"Chronofed-Node" not in request for request in link.requests)


def test_a_node_does_not_wait_for_ever(keys, tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "HOLD_S", 0.1)
    link = Link(NOTHING)

    async def main():
        async with serving(link, keys, tmp_path / "sent") as path:
            return await ask(path)

    assert asyncio.run(main()) == NOTHING


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nbad",
    ],
)
def test_an_error_is_passed_on_at_once(answer, keys, tmp_path):
    async def main():
        async with serving(Link(answer), keys, tmp_path / "sent") as path:
            return await ask(path)

    assert asyncio.run(main()) == answer


def test_a_request_that_is_too_large_or_malformed_gets_no_answer(keys, tmp_path):
    link = Link(ORDER)

    async def main():
        async with serving(link, keys, tmp_path / "sent") as path:
            large = REQUEST.replace(b"Length: 4", b"Length: 99999999")
            odd = REQUEST.replace(b"Length: 4", b"Length: four")
            return [await ask(path, request) for request in (large, odd)]

    assert asyncio.run(main()) == [b"", b""]
    assert link.requests == []


def test_a_superlink_that_is_gone_gives_no_answer(keys, tmp_path):
    """The proxy then asks it directly, and tells the node."""

    async def main():
        made = Relay(
            1, ssl.create_default_context(cafile=keys / CA), tmp_path / "sent", tmp_path / "asked"
        )
        path = str(keys / "socket")
        async with await asyncio.start_unix_server(made.serve, path):
            return await ask(path)

    assert asyncio.run(main()) == b""

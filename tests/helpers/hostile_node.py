"""A node with a key that runs other code than Flower's and chronofed's: every round it attacks in another way.

Run as a program: ``python -m tests.helpers.hostile_node NODE APP KIND...``, with the folder that the hub made
for the node, the folder of the app, and what to do in each round. It may use Flower's private modules: it
imitates somebody who would.
"""

import json
import math
import random
import signal
import socket
import ssl
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message as FlowerMessage
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from chronofed.flower import transport
from chronofed.flower.client_app import make_node
from chronofed.flower.codec import read_result, write_result
from chronofed.flower.hub import NODE_KEY, read_node
from chronofed.flower.keys import CA
from chronofed.flower.messages import Message, encode_header, read_reply, read_request
from chronofed.flower.transport import BODY, from_content, to_content

# Its replies are arrays, whose parts it can play with.
transport.SMALL_BYTES = 0
HUGE = 500_000_000
"""Bytes of the reply that is too large."""
LOUDER = 1e4
"""Factor of the update that is only too long."""
LATER_S = 3600.0


# Replies that are messages of chronofed: from the order and the honest reply, what is sent instead.


def scaled(change):
    """Return an attack that changes the update."""

    def attack(request, honest, earlier):
        header = read_reply(honest)
        result = read_result(header, honest.body)
        upload = dict(result.upload)
        upload["delta"] = change(upload["delta"])
        return write_result(request, replace(result, upload=upload), header.held)

    return attack


def spoiled(value):
    return scaled(lambda delta: torch.cat([delta[1:], delta.new_tensor([value])]))


def with_header(**changes):
    """Return an attack that changes the header."""

    def attack(request, honest, earlier):
        header = read_reply(honest)
        given = {k: v(header) if callable(v) else v for k, v in changes.items()}
        fields = {f: getattr(header, f) for f in header.__struct_fields__} | given
        return replace(honest, header=encode_header(type(header)(**fields)))

    return attack


def enormous(request, honest, earlier):
    """A tensor of the right name, and 500 MB."""
    result = read_result(read_reply(honest), honest.body)
    delta = torch.arange(HUGE // 4, dtype=torch.float32)
    return write_result(request, replace(result, upload={**result.upload, "delta": delta}))


def promises(request, honest, earlier):
    """A header of tensors that announces a terabyte."""
    entry = {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}
    header = json.dumps({"upload/delta": entry}, separators=(",", ":")).encode()
    return replace(honest, body=len(header).to_bytes(8, "little") + header + bytes(64))


def many_values(request, honest, earlier):
    """A JSON header that takes far more memory than it has bytes, and is as large as the proxy lets pass."""
    return replace(honest, header="[" + ",".join(["[]"] * 1_800_000) + "]")


def garbage(request, honest, earlier):
    return replace(honest, body=random.Random(0).randbytes(len(honest.body)))


def other_round(header):
    run, round_, kind, client = header.name.split("/")
    return f"{run}/{int(round_) + 1}/{kind}/{client}"


# Replies that are no messages of Flower, or never become one: the objects that are sent.


class Line:
    """The connection to the hub, with everything that a node may do."""

    def __init__(self, node: Path, connection) -> None:
        self.node = node
        (_, self.receive, self.send, _, _, self.pull, self.push, self.confirm) = connection

    def order(self):
        """Return the next order and its Flower message, if there is one."""
        received = self.receive()
        if received is None:
            return None
        message, tree = received
        run, name = message.metadata.run_id, message.metadata.message_id
        ids = [each.object_id for each in iterate_object_tree(tree)]
        contents = pull_objects(ids, lambda i: self.pull(run, i))
        self.confirm(run, name)
        whole = inflate_object_from_contents(name, contents)
        whole.metadata.__dict__["_message_id"] = name
        return whole

    def reply(self, order, message: Message, change=lambda reply: None, parts=math.inf) -> None:
        """Send a reply as Flower would; ``change`` it before, and leave parts of it away."""
        reply = FlowerMessage(to_content(message), reply_to=order)
        change(reply)
        self.objects(reply, parts)

    def objects(self, reply, parts=math.inf) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
        wanted, session = self.send(reply, tree, 0.0)
        run = reply.metadata.run_id
        for count, name in enumerate(each.object_id for each in iterate_object_tree(tree)):
            if name in wanted and count < parts:
                wanted.discard(name)
                self.push(run, session, name, objects[name].deflate())

    def drip(self) -> None:
        """Hold a request open whose body comes byte by byte."""
        about = read_node(self.node)
        host, port = about.hub.rsplit(":", 1)
        context = ssl.create_default_context(cafile=self.node / CA)
        with (
            socket.create_connection((host, int(port)), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=host) as server,
        ):
            lines = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000000\r\n\r\n"
            server.sendall(lines.encode())
            for _ in range(int(LATER_S)):
                server.sendall(b"x")
                time.sleep(1.0)


def unfolds(line, order, honest):
    """One part of 5 MB that is named 20,000 times: 100 GB."""

    def change(reply):
        array = reply.content[BODY]["tensors"]
        array.data = bytes(5_000_000)
        array.__dict__["_chunks"] = array.slice_array() * 20_000

    line.reply(order, honest, change)


def not_a_message(line, order, honest):
    """The head of the reply is a part of an array."""
    reply = FlowerMessage(to_content(honest), reply_to=order)
    chunk = next(iter(reply.content[BODY]["tensors"].children.values()))
    reply.metadata.__dict__["_message_id"] = chunk.object_id
    wanted, session = line.send(reply, get_object_tree(chunk), 0.0)
    for name in wanted:
        line.push(reply.metadata.run_id, session, name, chunk.deflate())


def other_records(line, order, honest):
    """A message of Flower's without chronofed's header."""
    reply = FlowerMessage(to_content(honest), reply_to=order)
    del reply.content["chronofed.header"]
    line.objects(reply)


def claims_another(line, order, honest):
    """A reply that says in its head that it answers a message that nobody has sent."""

    reply = FlowerMessage(to_content(honest), reply_to=order)
    truth = reply.metadata.reply_to_message_id
    reply.metadata.__dict__["_reply_to_message_id"] = "ab" * 32
    reply.metadata.__dict__["_message_id"] = reply.object_id
    tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
    contents = {name: each.deflate() for name, each in objects.items()}
    reply.metadata.__dict__["_reply_to_message_id"] = truth
    wanted, session = line.send(reply, tree, 0.0)
    for name in wanted:
        line.push(reply.metadata.run_id, session, name, contents[name])


def slow_drip(line, order, honest):
    """The head of the reply comes, its parts never do; a request stays open besides."""
    threading.Thread(target=line.drip, daemon=True).start()
    line.reply(order, honest, parts=1)


MESSAGES = {
    "nan": spoiled(math.nan),
    "inf": spoiled(math.inf),
    "1e30": spoiled(1e30),
    "shape": scaled(lambda delta: delta.reshape(2, -1)),
    "dtype": scaled(lambda delta: delta.double()),
    "500 MB": enormous,
    "header bomb": promises,
    "JSON bomb": many_values,
    "other round": with_header(name=other_round),
    "replay": lambda request, honest, earlier: earlier,
    "other client": with_header(client=lambda header: header.client - 1),
    "malformed": garbage,
}
OBJECTS = {
    "unfolds": unfolds,
    "not a message": not_a_message,
    "other records": other_records,
    "claims another": claims_another,
    "slow drip": slow_drip,
}
LOUD = {"loud": scaled(lambda delta: -LOUDER * delta)}


def main(folder: Path, app: Path, kinds: list[str]) -> None:
    """Answer orders until the run ends."""
    # Flower's own client interrupts a node that is refused; this one goes on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    about = read_node(folder)
    key = load_ssh_private_key((folder / NODE_KEY).read_bytes(), None)
    pair, certificate = (key, key.public_key()), (folder / CA).read_bytes()
    client = make_node({"client": about.clients[0], "state": str(folder / "state")}, {}, app)
    with http_request_response(about.hub, False, certificate, pair) as connection:
        print("joined", flush=True)
        line, earlier = Line(folder, connection), None
        while True:
            try:
                order = line.order()
            except (Exception, RunNotRunningException) as error:
                # It is hostile, and stays so.
                print(f"no order: {type(error).__name__}: {error}", flush=True)
                order = None
            if order is None:
                time.sleep(0.2)
                continue
            message = from_content(order.content)
            request, honest = read_request(message), client.answer(message)
            kind = kinds[request.round] if request.kind == "train" else "honest"
            print(request.kind, request.round, kind, flush=True)
            try:
                if kind in OBJECTS:
                    OBJECTS[kind](line, order, honest)
                else:
                    attack = {**MESSAGES, **LOUD}.get(kind, lambda request, honest, earlier: honest)
                    line.reply(order, attack(request, honest, earlier))
            except (Exception, RunNotRunningException) as error:
                print(f"{kind}: {type(error).__name__}: {error}", flush=True)
            earlier = honest if request.kind == "train" and earlier is None else earlier


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

"""Clients of a federation in this process, to compare a run on real processes with."""

from collections.abc import Callable
from pathlib import Path

from chronofed.clients.messages import Order
from chronofed.flower.client_app import make_node
from chronofed.flower.codec import OrderWriter, read_result
from chronofed.flower.messages import read_reply


class InProcess:
    """An engine that sends every order as a message to a client in this process.

    Attributes:
        before: Called before every order.
        restored: Orders, by round and client, whose client works from an older state than was accepted.
    """

    def __init__(self, app: Path, nodes: list[dict], fingerprint: str):
        self.client_states = {}
        self.clients = [make_node(node, {}, app) for node in nodes]
        self.writer = OrderWriter("00c0ffee", fingerprint)
        self.accepted = {}
        self.before: Callable[[Order], None] = lambda order: None
        self.restored: set[tuple[int, int]] = set()

    def map(self, method, orders, plan):
        for order in orders:
            self.before(order)
            # A client keeps its new state once it is told that its reply was accepted.
            accepted = self.accepted.get(order.client, -1)
            request = self.writer.write(order, "train", accepted)[1]
            message = self.clients[order.client].answer(request)
            reply = read_reply(message)
            assert reply.error == ""
            assert (reply.held < accepted) == ((order.round, order.client) in self.restored)
            self.accepted[order.client] = order.round
            yield read_result(reply, message.body)

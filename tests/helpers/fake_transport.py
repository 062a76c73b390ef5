"""A transport in memory between a server and client nodes: no Flower, no processes."""

import itertools
from dataclasses import dataclass, field

from chronofed.flower.messages import read_request
from chronofed.flower.node import ClientNode


@dataclass
class FakeClock:
    """A clock that only sleeping moves."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeTransport:
    """Delivers messages to client nodes; ``tamper`` may change, delay or drop any answer."""

    clock: FakeClock
    client_nodes: dict[int, ClientNode]
    tamper: object = None
    counter: itertools.count = field(default_factory=itertools.count)
    answers: dict[str, tuple[float, object]] = field(default_factory=dict)
    sent: list[tuple[int, str]] = field(default_factory=list)

    def nodes(self):
        return set(self.client_nodes)

    def send(self, messages, ttl_s, reply_bytes=0):
        message_ids = []
        for node, message in messages:
            message_id = str(next(self.counter))
            message_ids.append(message_id)
            request = read_request(message)
            self.sent.append((node, request.name))
            answer, delay = self.answer(node, message), 0.0
            if self.tamper is not None and request.kind != "hello":
                answer, delay = self.tamper(
                    request, answer, lambda n=node, x=message: self.answer(n, x)
                )
            if answer is not None:
                self.answers[message_id] = (self.clock.now + delay, answer)
        return message_ids

    def answer(self, node, message):
        try:
            return self.client_nodes[node].answer(message)
        except ZeroDivisionError as error:
            return f"error 2: {error}"

    def collect(self, message_ids, max_bytes):
        due = [i for i in message_ids if i in self.answers and self.answers[i][0] <= self.clock.now]
        return [(i, self.answers.pop(i)[1]) for i in due]

    def wait(self, seconds):
        self.clock.sleep(seconds)

    def pause(self):
        """There is nothing to do."""

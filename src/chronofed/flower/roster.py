"""Roster: which node stands for which client.

Flower knows nodes, chronofed knows clients. A node says in its reply to ``hello`` which client it is. It may
come back under another number after a restart, and is then still the same client.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from chronofed.flower.messages import Message, MessageError, read_reply, write_hello
from chronofed.flower.transport import Answer, Transport

HELLO_LOOKS = 15
"""Looks at the nodes online after which a node is asked again: a busy SuperLink may have lost its reply."""
MAX_HELLOS = 8
"""Maximum number of times that a node is asked which client it is."""


@dataclass(slots=True)
class Roster:
    """Maps clients to nodes.

    Attributes:
        transport: Carries messages to nodes.
        run: Name of the run.
        report: Called with an event and its details: a client joined, left or moved, or a node is unknown.
        expected: Returns the clients of every node that may join, by node; by default a node may say what it
            likes. Nodes have fixed numbers only if they have keys.
    """

    transport: Transport
    run: str
    report: Callable[..., None]
    expected: Callable[[], Mapping[int, Collection[int]]] | None = None
    _nodes: dict[int, int] = field(init=False, default_factory=dict)
    """Node of every client."""
    _online: set[int] = field(init=False, default_factory=set)
    _asked: dict[int, int] = field(init=False, default_factory=dict)
    """Number of times that a node was asked."""
    _looks: dict[str, int] = field(init=False, default_factory=dict)
    """Looks at the nodes online since a message was sent that has no reply yet."""
    _hellos: dict[str, int] = field(init=False, default_factory=dict)
    """Node by id of a message that has no reply yet."""

    def node_of(self, client: int) -> int | None:
        """Return the node of a client; ``None`` if it is not online."""
        return self._nodes.get(client)

    def any_online(self, clients: Iterable[int]) -> bool:
        """Tell if at least one of these clients is online."""
        return not self._nodes.keys().isdisjoint(clients)

    @property
    def message_ids(self) -> list[str]:
        """Ids of messages that have no reply yet."""
        return list(self._hellos)

    def refresh(self, ttl_s: float) -> None:
        """Drop nodes that are gone, and ask new ones which client they are."""
        online = self.transport.nodes()
        for client, node in list(self._nodes.items()):
            if node not in online:
                del self._nodes[client]
                self.report("left", client=client, node=node)
        for node in self._online - online:
            self._asked.pop(node, None)
        self._online = online
        self._looks = {i: self._looks.get(i, 0) + 1 for i in self._hellos}
        # A node that is late is asked again, and may still answer what it was asked first.
        waiting = {self._hellos[i] for i, looks in self._looks.items() if looks <= HELLO_LOOKS}
        known = waiting | set(self._nodes.values())
        new = [n for n in sorted(online - known) if self._asked.get(n, 0) < MAX_HELLOS]
        hello = write_hello(self.run)
        message_ids = self.transport.send([(node, hello) for node in new], ttl_s)
        for node, message_id in zip(new, message_ids, strict=True):
            self._asked[node] = self._asked.get(node, 0) + 1
            if message_id is not None:
                self._hellos[message_id] = node

    def receive(self, message_id: str, answer: Answer) -> bool:
        """Take a reply if it answers a ``hello``; return ``False`` if it does not."""
        if message_id not in self._hellos:
            return False
        node = self._hellos.pop(message_id)
        if isinstance(answer, str):
            # Its app process was killed, or it was away.
            self.report("failed", node=node, reason=answer)
            return True
        try:
            if isinstance(answer, MessageError):
                raise answer
            for client in _clients(answer):
                self._assign(node, client)
            # Other answers of this node say nothing new.
            self._hellos = {i: asked for i, asked in self._hellos.items() if asked != node}
        except MessageError as error:
            self.report("unknown", node=node, reason=str(error))
        return True

    def _assign(self, node: int, client: int) -> None:
        right = (client,) if self.expected is None else self.expected().get(node, ())
        if client not in right:
            known = f"is for client {', '.join(map(str, right))}" if right else "is not known"
            raise MessageError(f"the node says that it is client {client}, but its key {known}")
        before = self._nodes.get(client)
        if before is not None and before != node:
            # The old node has answered before: do not ask it again.
            self._asked[before] = MAX_HELLOS
            self.report("moved", client=client, node=node, before=before)
        elif before is None:
            self.report("joined", client=client, node=node)
        self._nodes[client] = node


def _clients(answer: Message) -> tuple[int, ...]:
    """Read which clients a node has."""
    reply = read_reply(answer)
    if reply.error or reply.client < 0:
        raise MessageError(reply.error or "the node does not say which client it is")
    return (reply.client, *reply.others)

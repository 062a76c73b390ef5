"""Fetching replies from a Flower grid so that no node can hold up, spoil or exhaust those of the others.

Flower's ``pull_messages`` fetches every part of every reply that has arrived, and puts them together. A node
decides what is there: it may announce parts that come late or never, parts that are no message, or a few that
unfold to more than the memory. So the replies of every node are fetched in a thread of their own, what fails
there is that node's failure, and the memory of the process is limited meanwhile.
"""

import os
import queue
import resource
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock, Thread, stack_size
from typing import Any, TypeAlias

from chronofed.flower.messages import MessageError

COPIES, SPARE_BYTES = 6, 2**29
"""Memory that fetching replies may take: copies of the largest one, and what else happens meanwhile."""
LEAST_BYTES = 2**26
"""Memory that stays free for everything else, whatever was fetched already."""
WAIT_S = 0.25
"""Seconds to wait for nodes that were asked; what comes later is found next time."""
NODES_AT_ONCE = 8
"""Nodes to ask in one turn; each is a request to the SuperLink."""
MAX_PULLS = 3
"""Replies of one node that may be under way before it is asked for more."""

STACK_BYTES = 2**20
"""Memory that a thread may take for its calls: with the usual 8 MB, some threads take all that is allowed."""

Pulled: TypeAlias = Any
"""A reply of Flower's, the reason why it must be refused, or the error in its place."""


class Pulls:
    """Fetches the replies to messages, node by node.

    Args:
        grid: Flower's grid.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        stack_size(STACK_BYTES)
        self._node_of: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        self._busy: Counter[int] = Counter()
        self._turn: list[int] = []
        self._done: queue.SimpleQueue[tuple[str, Pulled | BaseException]] = queue.SimpleQueue()
        self._kept: dict[str, Pulled] = {}
        self._again: set[int] = set()
        self._lock, self._memory = Lock(), MemoryLimit()

    def expect(self, message_id: str, node: int) -> None:
        """Note which node a message was sent to."""
        self._node_of[message_id] = node

    @property
    def ready(self) -> bool:
        """True if something has arrived that :meth:`collect` has not seen yet."""
        return not self._done.empty()

    def collect(
        self, wanted: Sequence[str], max_bytes: int, nodes: Collection[int] | None = None
    ) -> list[tuple[str, Pulled]]:
        """Return the replies to these messages that have arrived, each once and with its id.

        Args:
            wanted: Ids of messages.
            max_bytes: Size of the largest reply that may be honest.
            nodes: The nodes that may have sent a reply; by default some, in turns.

        Raises:
            Exception: If Flower itself fails.
        """
        with self._lock:
            self._memory.limit(COPIES * max_bytes + SPARE_BYTES, anew=not self._under_way)
            try:
                own = self._start(wanted, nodes)
                self._wait(own)
            finally:
                if not self._under_way:
                    self._memory.lift()
            found = {i: self._kept.pop(i) for i in wanted if i in self._kept}
            for message_id in found:
                self._node_of.pop(message_id, None)
            return list(found.items())

    def pause(self) -> None:
        """Let others have memory: nothing is collected for now, and something may be under way."""
        with self._lock:
            self._memory.relax()
            if not self._under_way:
                self._memory.lift()

    def _start(self, wanted: Sequence[str], nodes: Collection[int] | None) -> set[str]:
        """Ask some nodes; return the ids that are asked for."""
        due: dict[int, list[str]] = {}
        for message_id in wanted:
            node = self._node_of.get(message_id)
            free = message_id not in self._kept and message_id not in self._under_way
            if node is not None and free and self._busy[node] < MAX_PULLS:
                due.setdefault(node, []).append(message_id)
        if nodes is None:
            now = self._in_turn(due)
        else:
            now = [node for node in (*self._again, *nodes) if node in due]
            now = list(dict.fromkeys(now))[:NODES_AT_ONCE]
            # Those that are under way may have been asked too early.
            self._again = (self._again | set(nodes)) - set(now)
            self._again &= set(self._node_of.values())
        for node in now:
            self._busy[node] += len(due[node])
            self._under_way |= dict.fromkeys(due[node], node)
            Thread(target=self._pull, args=(due[node],), daemon=True).start()
        return {message_id for node in now for message_id in due[node]}

    def _in_turn(self, due: Collection[int]) -> list[int]:
        waiting = [node for node in self._turn if node in due]
        waiting += [node for node in due if node not in waiting]
        self._turn = waiting[NODES_AT_ONCE:]
        return waiting[:NODES_AT_ONCE]

    def _pull(self, message_ids: list[str]) -> None:
        for message_id in message_ids:
            found: Pulled | BaseException
            try:
                # At most one reply is expected; a node may claim that it answers something else.
                found = next(iter(self._grid.pull_messages([message_id])), None)
                if found is not None and found.metadata.reply_to_message_id != message_id:
                    found = MessageError("the reply is for another message")
            except BaseException as error:
                found = error
            self._done.put((message_id, found))

    def _wait(self, own: set[str]) -> None:
        while own or not self._done.empty():
            try:
                message_id, found = self._done.get(timeout=WAIT_S)
            except queue.Empty:
                return
            own.discard(message_id)
            self._busy[self._under_way.pop(message_id)] -= 1
            if isinstance(found, BaseException) and not isinstance(found, MessageError):
                found = _refusal(found)
            if found is not None:
                self._kept[message_id] = found


def _refusal(error: BaseException) -> MessageError | str | None:
    """Return the reason why a reply cannot be used, if its node is the cause.

    A SuperLink that fails, for example because its database is locked, is asked again: ``None``. If this
    process is short of threads, nobody is to blame: the node is asked again.

    Raises:
        BaseException: If it is not: the run has ended, or the SuperLink is gone.
    """
    if is_busy(error):
        return None
    status = _status(error)
    if not isinstance(error, _SPOILED) and status not in _SPOILED_STATUS:
        raise error
    if isinstance(error, MemoryError):
        return MessageError("the reply does not fit into the memory that replies may take")
    if isinstance(error, RuntimeError) and "new thread" in str(error):
        return f"the server was short of memory: {error}"
    return MessageError(f"the reply cannot be put together: {str(error) or type(error).__name__}")


def is_busy(error: BaseException) -> bool:
    """Tell if this is the answer of a SuperLink whose database is locked, and which should be asked again."""
    return _status(error) in _BUSY_STATUS


def _status(error: BaseException) -> int | None:
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


_SPOILED_STATUS, _BUSY_STATUS = (400,), (500,)
_SPOILED = (MemoryError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)
"""Errors of Flower's when the parts of a reply do not fit together."""


class MemoryLimit:
    """Limits what this process may allocate, on Linux; elsewhere nothing is limited.

    A thread that wants more gets a ``MemoryError`` there, and nothing else happens.
    """

    def __init__(self) -> None:
        self._usual = resource.getrlimit(resource.RLIMIT_DATA)
        self._base = self._least = 0

    def limit(self, more_bytes: int, anew: bool) -> None:
        """Allow so many bytes more than were allocated at first.

        Args:
            more_bytes: Bytes.
            anew: Count from now on. Otherwise as before, and a little more if others have grown in a pause.
        """
        now = _allocated_bytes()
        if now is None:
            return
        if anew or not self._base:
            self._base = self._least = now
        if not self._least:
            self._least = now + LEAST_BYTES
        self._set(max(self._base + more_bytes, self._least))

    def relax(self) -> None:
        """Allow half of the machine's memory, because others go on with their work."""
        now, self._least = _allocated_bytes(), 0
        if now is not None:
            self._set(now + os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)

    def lift(self) -> None:
        """Allow what was allowed at first."""
        resource.setrlimit(resource.RLIMIT_DATA, self._usual)

    def _set(self, soft: int) -> None:
        usual, hard = self._usual
        if usual != resource.RLIM_INFINITY:
            soft = min(soft, usual)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _allocated_bytes() -> int | None:
    """Return what this process has allocated; ``None`` if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        return pages * resource.getpagesize()
    except OSError:
        return None

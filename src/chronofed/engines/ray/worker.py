"""The worker's side: an actor that owns the data, a model, and the states of the clients that it served."""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from chronofed.clients.messages import Exchange, Order, Result
from chronofed.clients.partial_sums import PartialSum, add_up, without_upload
from chronofed.clients.state import ClientState
from chronofed.core.errors import IncompatibleError
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Objective, Task
from chronofed.engines.base import Job, answer, keep_freed_memory
from chronofed.engines.processes import explained
from chronofed.engines.ray.connect import this_node
from chronofed.engines.ray.states import Change
from chronofed.engines.shared_memory import Parcel, dumps, fresh_block, loads
from chronofed.methods.method import Method
from chronofed.scenarios.base import Visit

SMALL_BYTES = 2**16
"""States below this size are kept batch by batch in one block."""
Common: TypeAlias = tuple[Exchange, Method, Order, bool]
"""The part that all orders of an exchange share, and whether workers add up the uploads of a batch."""
Reply: TypeAlias = tuple[Result, Change | None] | Exception | None
"""A client's result and what changed in its state; an error; or nothing if its state is not here."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A client to serve.

    Attributes:
        client: The client.
        visit: The data that it holds.
        order: Its order, if that differs from the common one in more than the client.
        client_state: Its state; ``None`` if it has none, or ``kept``.
        kept: Whether the worker has kept its state.
    """

    client: int
    visit: Visit
    order: Order | None
    client_state: ClientState | None
    kept: bool


@dataclass(frozen=True, slots=True)
class Replies:
    """The answer to a batch.

    Attributes:
        by_client: The reply of every client that was served.
        total: The sum of what they upload, if the worker adds up; then their results are without it.
        left_out_bytes: Bytes of what results are without.
        seconds: Time spent by phase.
    """

    by_client: dict[int, Reply] = field(default_factory=dict)
    total: PartialSum | None = None
    left_out_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class KeptStates:
    """Client states, at most so many bytes; those used least recently are dropped: the driver has all.

    They are kept as bytes, because thousands of small tensors between the large ones that come and go would
    leave gaps, too small for the next large one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._states: OrderedDict[int, memoryview] = OrderedDict()
        self._total = 0

    def clients(self) -> list[int]:
        """Return the clients whose states are here."""
        return list(self._states)

    def put_all(self, states: dict[int, ClientState]) -> None:
        """Keep the states of a batch."""
        pickled = {client: dumps(state, "state", abroad=True) for client, state in states.items()}
        small = {client: each for client, each in pickled.items() if len(each) < SMALL_BYTES}
        self._put_together(small)
        for client, each in pickled.items():
            if client not in small:
                self._put_together({client: each})

    def get(self, client: int) -> ClientState | None:
        """Return a client's state, if it is still here."""
        if client not in self._states:
            return None
        self._states.move_to_end(client)
        state: ClientState = loads(self._states[client])
        return state

    def forget(self, client: int) -> None:
        """Drop a client's state."""
        if client in self._states:
            self._total -= len(self._states.pop(client))

    def _put_together(self, pickled: dict[int, bytes]) -> None:
        block, start = fresh_block(sum(map(len, pickled.values()))).data, 0
        for client, each in pickled.items():
            place = block[start : start + len(each)]
            place[:] = each
            self._put(client, place)
            start += len(each)

    def _put(self, client: int, place: memoryview) -> None:
        self.forget(client)
        self._states[client] = place
        self._total += len(place)
        while self._total > self._limit_bytes:
            self.forget(next(iter(self._states)))


class Worker:
    """Serves orders with the same client code as every other engine; Ray makes an actor of it.

    Args:
        task: The task. Its data stay in Ray's memory of this node, where all workers share them.
        dtype: Torch's default on the driver.
        paths: Where the driver finds modules; those that exist here are searched, too.
        cache_bytes: Most bytes of client states to keep.
    """

    def __init__(
        self, task: Parcel, dtype: torch.dtype, paths: Sequence[str], cache_bytes: int
    ) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        torch.set_num_threads(1)
        torch.set_default_dtype(dtype)
        keep_freed_memory()
        self._parcel = task
        self._task: Task | None = None
        self._objective: Objective | None = None
        self._common: tuple[int, Common] | None = None
        self._states = KeptStates(cache_bytes)
        self._timer = PhaseTimer()

    def node(self) -> str:
        """Return the identity of this worker's node."""
        return this_node()

    def forget(self, clients: Sequence[int] | None) -> None:
        """Drop the states of some clients, which the driver has replaced or deleted; or of all."""
        for client in self._states.clients() if clients is None else clients:
            self._states.forget(client)

    def serve(self, number: int, common: Parcel, batch: Parcel) -> Parcel:
        """Serve some clients, one after another; after a failure only those with lower numbers.

        Args:
            number: Identifies ``common``.
            common: What all orders of this exchange share.
            batch: The clients, a sequence of :class:`Assignment`.

        Returns:
            The :class:`Replies`.
        """
        todo: list[Assignment] = []
        try:
            todo = batch.load()
            exchange, method, order, adds_up = self._read(number, common)
        except Exception as error:
            lowest = min((each.client for each in todo), default=0)
            return Parcel.of(Replies({lowest: explained(_readable(error))}), "error")
        # All at once, because what the first ones keep may push out what later ones need.
        states = {each.client: self._state(each) for each in todo}
        missing = [each.client for each in todo if each.kept and states[each.client] is None]
        if missing:
            return Parcel.of(Replies(dict.fromkeys(missing)), "missing")
        replies, lowest, after = dict[int, Reply](), sys.maxsize, dict[int, ClientState]()
        for each in todo:
            if each.client < lowest:
                job = _job(each, method, order, states[each.client])
                replies[each.client] = reply = self._reply(job, exchange, after)
                lowest = each.client if isinstance(reply, Exception) else lowest
        self._states.put_all(after)
        added = _add_up(replies, method) if adds_up else Replies(replies)
        return Parcel.of(replace(added, seconds=self._timer.drain()), "result")

    def _state(self, each: Assignment) -> ClientState | None:
        return self._states.get(each.client) if each.kept else each.client_state

    def _reply(self, job: Job, exchange: Exchange, kept: dict[int, ClientState]) -> Reply:
        """Serve a client; add its next state to those to keep."""
        try:
            result, after = self._answer(job, exchange)
        except Exception as error:
            return explained(error)
        if after is None or not (job.method.stateful or after.optimizer_state):
            return result, None
        kept[job.order.client] = after
        return result, Change.between(job.client_state, after)

    def _answer(self, job: Job, exchange: Exchange) -> tuple[Result, ClientState | None]:
        if self._task is None or self._objective is None:
            self._task = self._parcel.view()
            self._objective = self._task.objective()
        return answer(job.build_client(self._task, self._objective, self._timer), exchange)

    def _read(self, number: int, parcel: Parcel) -> Common:
        """Return what the orders have in common; every exchange is read once."""
        if self._common is None or self._common[0] != number:
            self._common = number, parcel.load()
        return self._common[1]


def _add_up(replies: dict[int, Reply], method: Method) -> Replies:
    """Add up what a batch uploads, in the order of clients, unless one of them failed."""
    served = [(replies[client], client) for client in sorted(replies)]
    found = [reply for reply, _ in served if isinstance(reply, tuple)]
    if len(found) < len(served):
        return Replies(replies)
    results = [result for result, _ in found]
    total = add_up(results[0].client, results, method.average)
    thin = [without_upload(result) for result in results]
    kept: dict[int, Reply] = {
        result.client: (result, change)
        for (result, _), (_, change) in zip(thin, found, strict=True)
    }
    return Replies(kept, total, sum(size for _, size in thin))


def _job(each: Assignment, method: Method, order: Order, state: ClientState | None) -> Job:
    own = replace(order, client=each.client) if each.order is None else each.order
    return Job(method, own, each.visit, state)


def _readable(error: Exception) -> Exception:
    """Explain that a class of the driver is not to be found here."""
    if isinstance(error, AttributeError | ImportError):
        return IncompatibleError(
            f"engine ray: a worker cannot import a class ({error}); put it into a module that is installed, "
            "or in PYTHONPATH, on every node"
        )
    return error

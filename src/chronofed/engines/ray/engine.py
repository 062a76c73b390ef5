"""The driver's side of the Ray engine: workers on any number of machines, and the same bits as on one."""

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from chronofed.clients.cache import StateCache
from chronofed.clients.messages import Exchange, Order
from chronofed.clients.partial_sums import PartialSum, SummedRound, by_part
from chronofed.clients.state import ClientState
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Task
from chronofed.engines.base import Answer
from chronofed.engines.cluster import Cluster
from chronofed.engines.parallel import Outcome, WholeRounds
from chronofed.engines.processes import COMMON_FIELDS
from chronofed.engines.ray.connect import connect, total_workers
from chronofed.engines.ray.placement import Placement
from chronofed.engines.ray.pool import Exchanged, Member, WorkerPool
from chronofed.engines.ray.queues import MOST, PartQueues, Queues
from chronofed.engines.ray.states import own, own_record
from chronofed.engines.ray.worker import Assignment, Replies, Reply
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan

MOST_BATCH_BYTES = 2**26
"""Bytes that the results of one batch may take, about; a single client's may take more."""

logger = logging.getLogger(__name__)


class RayEngine(WholeRounds):
    """Train several clients at a time, in workers on the machines of a Ray cluster.

    The data are shipped once to every node, whose workers share them. A client's state stays with its own
    worker, by a hash of its number, and a copy with the driver: so what a round changed travels once, and a
    worker or node that dies costs nothing but the time to train its clients again, to the same bits.

    Ray pickles, so it is for clusters that you trust. It is never chosen by ``auto``.

    Attributes:
        task: Source of samples and models.
        workers: Number of workers; by default one for each core of the cluster.
        client_states: States that the simulated clients keep between their visits.
        timer: Records the time spent in each phase; the times of all workers are added up.
        cluster: The machines.

    Raises:
        MissingExtraError: If Ray is not installed.
        ChronofedError: If the cluster cannot be reached.
        IncompatibleError: If the task cannot be sent to another process.
    """

    summary: ClassVar[str] = "clients in parallel, on the machines of a Ray cluster"
    clustered: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        workers: int | None = None,
        client_states: MutableMapping[int, ClientState] | None = None,
        timer: PhaseTimer | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.cluster = cluster or Cluster()
        ray = connect(self.cluster, workers)
        states = StateCache() if client_states is None else client_states
        super().__init__(task, workers or total_workers(ray), states, timer)
        self._pool = WorkerPool(ray, task, self.cluster, self.timer)
        self._placement = Placement(self.client_states)
        self._sums: _Sums | None = None

    @property
    def traffic(self) -> Exchanged:
        """Traffic between driver and workers in the latest exchange."""
        return self._pool.exchanged

    def close(self) -> None:
        """Stop all workers; they hold nothing that the driver does not have."""
        self._pool.stop()
        self._placement.clear()

    def store_state(self, method: Method, client: int, state: ClientState | None) -> None:
        """Keep a copy of a client's state, and remember which worker has it."""
        super().store_state(method, client, state)
        self._placement.settle(client)

    def _collect(
        self, exchange: Exchange, method: Method, orders: Iterable[Order], plan: Plan
    ) -> list[Answer]:
        try:
            return super()._collect(exchange, method, orders, plan)
        except Exception:
            # Workers may have kept states of a round that does not count.
            self._placement.clear()
            self._pool.forget_all()
            raise

    def _start_workers(self, count: int) -> None:
        self._pool.start(count)
        for worker, clients in self._placement.stale().items():
            self._pool.forget(worker, clients)

    def map_summed(
        self, method: Method, orders: Sequence[Order], plan: Plan, parts: int
    ) -> SummedRound:
        """Train the clients; their workers add up the uploads of every part, so that only the sums travel."""
        self._sums = _Sums(parts)
        try:
            results = sorted(self.map(method, orders, plan), key=lambda result: result.client)
            # The first client of a part tells which one it is.
            sums = [replace(each, part=each.part % parts) for each in self._sums.found]
            sums.sort(key=lambda each: each.part)
            return SummedRound(results, sums, self._sums.left_out_bytes)
        finally:
            self._sums = None

    def _outcomes(
        self, exchange: Exchange, method: Method, queue: list[Order], plan: Plan
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield client and outcome; after a failure start only clients with a lower number."""
        if not queue:
            return
        queues, first = self._queues(method, queue, plan), queue[0]
        self._pool.begin((exchange, method, first, self._sums is not None))
        while queues or self._pool.busy:
            for member in self._pool.free(len(queues)):
                if batch := queues.take(member.place):
                    jobs = [self._assignment(member, first, order, plan) for order in batch]
                    self._pool.submit(member, batch, jobs)
            for member, batch, replies in self._pool.collect():
                if self._served(replies):
                    yield from self._noted(queues, member, replies)
                else:
                    # Without a reply the worker died, and one of the clients may be the reason.
                    queues.put_back(batch, apart=not replies.by_client)
        self._pool.end()
        logger.info("round %d: %s", plan.round, self.traffic)

    def _served(self, replies: Replies) -> bool:
        """Tell if a batch was served: its worker may have died, or have dropped the states that it needs."""
        missing = [client for client, reply in replies.by_client.items() if reply is None]
        self._placement.lose(missing)
        return bool(replies.by_client) and not missing

    def _noted(
        self, queues: Queues | PartQueues, member: Member, replies: Replies
    ) -> Iterator[tuple[int, Outcome]]:
        if self._sums is not None and replies.total is not None:
            self._sums.found.append(replies.total)
            self._sums.left_out_bytes += replies.left_out_bytes
        for client, reply in replies.by_client.items():
            outcome = self._outcome(member, client, reply)
            if isinstance(outcome, Exception):
                queues.drop_above(client)
            yield client, outcome

    def _queues(self, method: Method, queue: list[Order], plan: Plan) -> Queues | PartQueues:
        if self._sums is not None:
            return PartQueues(by_part(queue, self._sums.parts), len(self._pool))
        sticky = method.stateful or any(client in self.client_states for client in plan.visits)
        size = sum(tensor.nbytes for tensor in queue[0].server.values())
        most = max(min(MOST, MOST_BATCH_BYTES // max(size, 1)), 1)
        return Queues(queue, len(self._pool), sticky, most)

    def _assignment(self, member: Member, first: Order, order: Order, plan: Plan) -> Assignment:
        client = order.client
        kept = self._placement.at(client) == member.name
        state = None if kept else self.client_states.get(client)
        own = None if _alike(first, order) else order
        return Assignment(client, plan.visits[client], own, state, kept)

    def _outcome(self, member: Member, client: int, reply: Reply) -> Outcome:
        """Rebuild a client's next state from the one that the driver has."""
        assert reply is not None
        if isinstance(reply, Exception):
            return reply
        result, change = reply
        # Uploads are gone after the round; these may stay.
        result = replace(result, record=own_record(result.record), probe=own_record(result.probe))
        if change is None:
            return result, None
        change = replace(change, state=own(change.state))
        self._placement.propose(client, member.name)
        before = self.client_states[client].items if change.uses_old else ()
        return result, change.applied(before)


@dataclass(slots=True)
class _Sums:
    """The partial sums of a round so far."""

    parts: int
    found: list[PartialSum] = field(default_factory=list)
    left_out_bytes: int = 0


def _alike(one: Order, other: Order) -> bool:
    """Decide whether two orders differ in nothing but the client."""
    return all(getattr(one, name) is getattr(other, name) for name in COMMON_FIELDS)

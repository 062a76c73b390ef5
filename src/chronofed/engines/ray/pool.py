"""The workers of a Ray cluster as the driver sees them: started, given batches, and replaced when they die."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from chronofed.clients.messages import Order
from chronofed.core.errors import ChronofedError
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Task
from chronofed.core.user_code import in_one_line
from chronofed.engines.cluster import Cluster
from chronofed.engines.parallel import POLL_S
from chronofed.engines.ray.worker import Assignment, Common, Replies, Worker
from chronofed.engines.shared_memory import Parcel

START_S = 180.0
"""Seconds to wait for the first worker to start."""
MOST_DEATHS = 3
"""Workers that may die on the same clients, or while they start, before the round is given up."""


@dataclass(slots=True)
class Exchanged:
    """Traffic between driver and workers in one exchange.

    Attributes:
        down_bytes: To the workers; what orders have in common counts once a node.
        up_bytes: From the workers.
        batches: Number of batches.
        lost: Workers that died.
    """

    down_bytes: int = 0
    up_bytes: int = 0
    batches: int = 0
    lost: int = 0

    def __str__(self) -> str:
        sent, received = self.down_bytes / 1e6, self.up_bytes / 1e6
        died = f", {self.lost} workers lost" if self.lost else ""
        return f"sent {sent:.2f} MB, received {received:.2f} MB in {self.batches} batches{died}"


@dataclass(eq=False, slots=True)
class Member:
    """A worker, as the driver sees it.

    Attributes:
        place: Its number among the workers; the one that replaces it has the same.
        name: A number of its own.
        actor: Ray's handle.
        starting: Ray's reference to the answer that it has started; then ``None``.
        node: The node that it is on, once it has started.
        batches: The batches that it has, the first in work, by Ray's reference to the reply.
    """

    place: int
    name: int
    actor: Any
    starting: Any
    node: str = ""
    batches: dict[Any, list[Order]] = field(default_factory=dict)


class WorkerPool:
    """Workers, each an actor with one core.

    Args:
        ray: The module, connected.
        task: The task, shipped to Ray's memory, from where every node fetches it once.
        cluster: What a worker owns.
        timer: Records the time that workers spend.
    """

    def __init__(self, ray: Any, task: Task, cluster: Cluster, timer: PhaseTimer) -> None:
        self._ray, self._cluster, self._timer = ray, cluster, timer
        self._task, self._shipped = task, self._put(Parcel.of(task, "task"))
        self._members: list[Member] = []
        self._names, self._numbers = count(), count()
        self._deaths: Counter[tuple[int, ...]] = Counter()
        self._common: tuple[int, Any, int] = (-1, None, 0)
        self._informed: set[str] = set()
        self._began = 0.0
        self.exchanged = Exchanged()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def busy(self) -> bool:
        """True while any batch is out."""
        return any(member.batches for member in self._members)

    def start(self, workers: int) -> None:
        """Have at least so many workers; they start in the background."""
        if self._shipped is None:
            self._shipped = self._put(Parcel.of(self._task, "task"))
        while len(self._members) < workers:
            self._members.append(self._member(len(self._members)))

    def stop(self) -> None:
        """Kill all workers."""
        members, self._members, self._shipped = self._members, [], None
        for member in members:
            self._kill(member)

    def forget(self, worker: int, clients: Sequence[int]) -> None:
        """Let a worker drop the states of some clients, if it is still there."""
        for member in self._members:
            if member.name == worker:
                member.actor.forget.remote(list(clients))

    def forget_all(self) -> None:
        """Let all workers drop all client states."""
        for member in self._members:
            member.actor.forget.remote(None)

    def begin(self, common: Common) -> None:
        """Begin an exchange: store what its orders have in common, once for all workers."""
        parcel = Parcel.of(common, "method")
        self._common = next(self._numbers), self._put(parcel), parcel.nbytes
        self.exchanged, self._began = Exchanged(), time.monotonic()
        self._informed.clear()
        self._deaths.clear()

    def end(self) -> None:
        """End an exchange: nobody needs its parcel any more."""
        self._common = (-1, None, 0)

    def free(self, waiting: int) -> Iterator[Member]:
        """Yield workers that may take another batch; while many clients wait, each has one ahead."""
        depth = 2 if waiting > 2 * len(self._members) else 1
        for member in sorted(self._members, key=lambda member: len(member.batches)):
            if member.starting is None and len(member.batches) < depth:
                yield member

    def submit(self, member: Member, batch: list[Order], assignments: list[Assignment]) -> None:
        """Give a worker a batch."""
        number, common, size = self._common
        parcel = Parcel.of(assignments, f"client {batch[0].client}")
        member.batches[member.actor.serve.remote(number, common, parcel)] = batch
        self.exchanged.batches += 1
        self.exchanged.down_bytes += parcel.nbytes + (0 if member.node in self._informed else size)
        self._informed.add(member.node)

    def collect(self) -> Iterator[tuple[Member, list[Order], Replies]]:
        """Wait for some workers; yield worker, batch and replies, none if the batch was lost.

        Raises:
            ChronofedError: If no worker can start, or the same clients bring down one worker after another.
        """
        owners = {reference: member for member in self._members for reference in member.batches}
        owners |= {member.starting: member for member in self._members if member.starting}
        ready, _ = self._ray.wait(list(owners), timeout=POLL_S)
        self._check_start()
        for reference in ready:
            member = owners[reference]
            # Replaced a moment ago, because of another batch of its own.
            if member not in self._members:
                continue
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError:
                raise
            except self._ray.exceptions.RayError as error:
                yield from self._replace(member, error)
            else:
                yield from self._received(member, reference, answer)

    def _received(
        self, member: Member, reference: Any, answer: Any
    ) -> Iterator[tuple[Member, list[Order], Replies]]:
        if reference == member.starting:
            member.starting, member.node = None, answer
            return
        self.exchanged.up_bytes += answer.nbytes
        replies = answer.load()
        for phase, spent in replies.seconds.items():
            self._timer.add(phase, spent)
        yield member, member.batches.pop(reference), replies

    def _replace(
        self, member: Member, error: Exception
    ) -> Iterator[tuple[Member, list[Order], Replies]]:
        """Start another worker in the place of one that died, and give back its batches."""
        self._kill(member)
        self.exchanged.lost += 1
        # The first one was in work, or the worker was starting.
        batches = list(member.batches.values())
        blamed = tuple(order.client for order in batches[0]) if batches else ()
        self._deaths[blamed] += 1
        if self._deaths[blamed] == MOST_DEATHS:
            raise ChronofedError(_given_up(batches[0][0] if batches else None, error)) from error
        self._members[member.place] = self._member(member.place)
        for batch in batches:
            yield member, batch, Replies()

    def _check_start(self) -> None:
        if all(m.starting for m in self._members) and time.monotonic() - self._began > START_S:
            has = self._ray.cluster_resources()
            msg = (
                f"engine ray: no worker has started in {START_S:.0f} s; each needs a core"
                f"{' and a share of a GPU' * bool(self._cluster.gpus)}, and the cluster has "
                f"{has.get('CPU', 0):g} cores and {has.get('GPU', 0):g} GPUs, perhaps in use by others"
            )
            raise ChronofedError(msg)

    def _member(self, place: int) -> Member:
        made = self._ray.remote(num_cpus=1, num_gpus=self._cluster.gpus, max_restarts=0)(Worker)
        cache = int(self._cluster.cache_mb * 2**20)
        actor = made.remote(self._shipped, torch.get_default_dtype(), sys.path, cache)
        return Member(place, next(self._names), actor, actor.node.remote())

    def _kill(self, member: Member) -> None:
        # It may be dead already, and Ray shut down.
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)

    def _put(self, parcel: Parcel) -> Any:
        return self._ray.put(parcel)


def _given_up(order: Order | None, error: Exception) -> str:
    """Explain in one line that workers die again and again."""
    reason = in_one_line(error)[:300]
    if order is None:
        return f"engine ray: {MOST_DEATHS} workers died while they started ({reason})"
    return (
        f"round {order.round}, client {order.client}: {MOST_DEATHS} workers died on it, killed by the "
        f"system if memory ran out; use fewer workers ({reason})"
    )

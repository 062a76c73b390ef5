"""A scheduler of threads: more clients are in flight than compute, so that none is left to run alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock


class StoppedError(Exception):
    """The engine was closed; nobody waits for this client any more."""


class Scheduler:
    """Let ``count`` threads compute at a time; of the waiting ones, the one with most work left is next.

    That is the shortest schedule of work that can be paused (Muntz and Coffman, 1969): three equal clients on
    two workers take one and a half times as long as one, and not twice. The right to compute passes directly
    to the next thread. With a semaphore, the thread that releases it would get it back before any other wakes.
    """

    def __init__(self, count: int) -> None:
        # While any is free, no thread waits.
        self._free = count
        # First come, first in the list.
        self._waiting: list[Slot] = []
        self._lock = Lock()
        self.closed = False

    def close(self) -> None:
        """Wake all waiting threads and stop them."""
        with self._lock:
            self.closed = True
            while self._waiting:
                self._waiting.pop().granted.set()

    def request(self, slot: "Slot") -> None:
        """Queue a thread, or grant its request at once; does not wait."""
        with self._lock:
            self._enqueue(slot)
            if self._free:
                self._free -= 1
                self._grant(slot)

    def wait(self, slot: "Slot") -> None:
        """Wait until a request is granted.

        Raises:
            StoppedError: If the scheduler was closed.
        """
        slot.granted.wait()
        if self.closed:
            raise StoppedError

    def yield_to_longest(self, slot: "Slot") -> None:
        """Let the next thread continue, and wait, if that one has more work left."""
        with self._lock:
            longest = self._longest_waiting()
            if longest is None or longest.work_left <= slot.work_left:
                return
            self._enqueue(slot)
            self._grant(longest)
        self.wait(slot)

    def release(self) -> None:
        """Give up the right to compute."""
        with self._lock:
            longest = self._longest_waiting()
            if longest is None:
                self._free += 1
            else:
                self._grant(longest)

    def _longest_waiting(self) -> "Slot | None":
        return max(self._waiting, key=lambda slot: slot.work_left, default=None)

    def _enqueue(self, slot: "Slot") -> None:
        slot.granted.clear()
        self._waiting.append(slot)

    def _grant(self, slot: "Slot") -> None:
        self._waiting.remove(slot)
        slot.granted.set()


class Slot:
    """One thread's place in a scheduler.

    Attributes:
        work_left: Work that its client has still to do, as far as is known.
        granted: Set while the thread may compute.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.work_left = 0.0
        self.granted = Event()
        self._work_per_step = 0.0
        self._scheduler = scheduler
        self._paused_s = 0.0

    def request(self, steps: int, work_per_step: float) -> None:
        """Request the right to compute, on behalf of the thread, for a number of steps.

        The caller that submits the job requests it, not the thread when it wakes: so the order of submission
        decides who computes first.
        """
        self.work_left, self._work_per_step = steps * work_per_step, work_per_step
        self._scheduler.request(self)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wait for the right to compute, and hold it inside the block."""
        self._scheduler.wait(self)
        try:
            yield
        finally:
            # Also after StoppedError, when it no longer matters.
            self._scheduler.release()

    def step(self) -> None:
        """Begin a step; another thread may continue first."""
        begin = time.perf_counter()
        self._scheduler.yield_to_longest(self)
        self._paused_s += time.perf_counter() - begin
        self.work_left -= self._work_per_step

    def raise_if_closed(self) -> None:
        """Stop the thread if the scheduler was closed.

        Raises:
            StoppedError: If it was.
        """
        if self._scheduler.closed:
            raise StoppedError

    def clock_s(self) -> float:
        """Read a clock, in seconds, that stands still while the thread is paused."""
        return time.perf_counter() - self._paused_s

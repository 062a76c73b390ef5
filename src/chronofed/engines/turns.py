"""Threads that take turns: more clients are under way than compute, so that none is left to run alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock


class StoppedError(Exception):
    """The engine was closed; nobody waits for this client any more."""


class Turns:
    """Lets so many threads compute at a time; of those that wait, the one with most work left is next.

    That is the shortest schedule of work that can be paused (Muntz and Coffman, 1969): three equal clients on
    two workers take one and a half times as long as one, and not twice. A turn is handed to the next thread
    directly. With a semaphore, whoever gives it back would have it again before anyone else wakes.
    """

    def __init__(self, count: int) -> None:
        self._free = count  # as long as there is any, nobody waits
        self._waiting: list[Turn] = []  # who came first is first
        self._lock = Lock()
        self.closed = False

    def close(self) -> None:
        """Wake all that wait: they go no further."""
        with self._lock:
            self.closed = True
            while self._waiting:
                self._waiting.pop().given.set()

    def ask(self, turn: "Turn") -> None:
        """Put a thread into the line, if need be; it does not wait yet."""
        with self._lock:
            self._queue(turn)
            if self._free:
                self._free -= 1
                self._hand(turn)

    def wait(self, turn: "Turn") -> None:
        """Wait for a turn that was asked for.

        Raises:
            StoppedError: If it is over.
        """
        turn.given.wait()
        if self.closed:
            raise StoppedError

    def offer(self, turn: "Turn") -> None:
        """Let the next thread go on first, and wait, if it has more work left."""
        with self._lock:
            following = self._following()
            if following is None or following.left <= turn.left:
                return
            self._queue(turn)
            self._hand(following)
        self.wait(turn)

    def leave(self) -> None:
        """Give a turn back."""
        with self._lock:
            following = self._following()
            if following is None:
                self._free += 1
            else:
                self._hand(following)

    def _following(self) -> "Turn | None":
        return max(self._waiting, key=lambda turn: turn.left, default=None)

    def _queue(self, turn: "Turn") -> None:
        turn.given.clear()
        self._waiting.append(turn)

    def _hand(self, turn: "Turn") -> None:
        self._waiting.remove(turn)
        turn.given.set()


class Turn:
    """A thread's place among those that take turns.

    Attributes:
        left: Work that its client has still to do, as far as is known.
        given: Set when it may go on.
    """

    def __init__(self, turns: Turns) -> None:
        self.left = 0.0
        self.given = Event()
        self._step = 0.0
        self._turns = turns
        self._paused = 0.0

    def ask(self, steps: int, step: float) -> None:
        """Ask for a turn, on behalf of the thread: for a number of steps, each so much work.

        Whoever hands out the work does so, and not the thread when it wakes: who comes first computes first.
        """
        self.left, self._step = steps * step, step
        self._turns.ask(self)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Compute inside the block, when the turn has come."""
        self._turns.wait(self)
        try:
            yield
        finally:
            self._turns.leave()  # also after StoppedError, when it no longer matters who has it

    def step(self) -> None:
        """Begin a step, which may be the moment to let another thread go on."""
        begin = time.perf_counter()
        self._turns.offer(self)
        self._paused += time.perf_counter() - begin
        self.left -= self._step

    def check(self) -> None:
        """Go no further after the end.

        Raises:
            StoppedError: If it is over.
        """
        if self._turns.closed:
            raise StoppedError

    def time(self) -> float:
        """Seconds on a clock that stands still while this thread waits for its turn."""
        return time.perf_counter() - self._paused

"""Timing of the phases of a run."""

import time
from collections.abc import Callable
from threading import Lock


class PhaseTimer:
    """Seconds by phase: data, memory, train, probe, aggregate, evaluate, write.

    >>> timer = PhaseTimer()
    >>> with timer("train"):
    ...     pass
    >>> list(timer.drain())
    ['train']

    Attributes:
        now: The clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._seconds: dict[str, float] = {}
        self._lock = Lock()

    def __call__(self, phase: str) -> "_Span":
        """Time a ``with`` block."""
        return _Span(self, phase)

    def add(self, phase: str, seconds: float) -> None:
        """Add time that was measured elsewhere, such as in another process."""
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def drain(self) -> dict[str, float]:
        """Return the seconds of every phase since the last call, and reset them."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return seconds


class _Span:
    """A timed block; cheaper than a generator, since every client has a few."""

    __slots__ = ("_phase", "_start", "_timer")

    def __init__(self, timer: PhaseTimer, phase: str) -> None:
        self._timer, self._phase = timer, phase

    def __enter__(self) -> None:
        self._start = self._timer.now()

    def __exit__(self, *_: object) -> None:
        self._timer.add(self._phase, self._timer.now() - self._start)

"""Where the time of a run goes."""

import time
from collections.abc import Callable
from threading import Lock


class Clock:
    """Seconds by phase: data, memory, train, probe, aggregate, evaluate, write.

    >>> clock = Clock()
    >>> with clock("train"):
    ...     pass
    >>> list(clock.read())
    ['train']

    Attributes:
        now: Where the time is read.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._seconds: dict[str, float] = {}
        self._lock = Lock()

    def __call__(self, phase: str) -> "_Span":
        """Book the time that a ``with`` block takes."""
        return _Span(self, phase)

    def add(self, phase: str, seconds: float) -> None:
        """Book time that was measured elsewhere, such as in another process."""
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def read(self) -> dict[str, float]:
        """Seconds of every phase since the last reading, which starts anew."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return seconds


class _Span:
    """A block that is timed; cheaper than a generator, for there are some a client."""

    __slots__ = ("_clock", "_phase", "_start")

    def __init__(self, clock: Clock, phase: str) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        self._start = self._clock.now()

    def __exit__(self, *_: object) -> None:
        self._clock.add(self._phase, self._clock.now() - self._start)

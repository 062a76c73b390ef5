"""Where the time of a run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class Clock:
    """Seconds by phase: data, memory, train, probe, aggregate, evaluate, write.

    >>> clock = Clock()
    >>> with clock("train"):
    ...     pass
    >>> list(clock.read())
    ['train']
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = Lock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Book the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            with self._lock:
                self._seconds[phase] = self._seconds.get(phase, 0.0) + spent

    def read(self) -> dict[str, float]:
        """Seconds of every phase since the last reading, which starts anew."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return seconds

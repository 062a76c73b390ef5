"""Waiting for a condition, with a limit that only a test that hangs will meet."""

import time
from collections.abc import Callable

# Seconds; far more than a loaded machine needs.
LIMIT_S = 300.0


def wait_until(condition: Callable[[], bool], what: str, seconds: float = LIMIT_S) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s until {what}"
        time.sleep(0.02)

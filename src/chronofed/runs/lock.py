"""Two lock files: one keeps a second process off a run, the other shows that the run is running.

Readers test the second only, so that looking at a run can never keep it from being resumed.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from chronofed.core.errors import RunError, cannot_write

LOCK = "lock"
RUNNING = "running"
# A reader holds the second lock for an instant only.
_ATTEMPTS = 1000
_PAUSE_S = 0.001


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run; the kernel releases it when the process ends, however it ends.

    Raises:
        RunError: If another process holds it.
        StorageError: If nothing can be written there.
    """
    with _opened(folder / LOCK) as file, _opened(folder / RUNNING) as sign:
        if not _acquire(file):
            msg = f"{folder}: another process is using this run; wait for it or stop it"
            raise RunError(msg)
        for _ in range(_ATTEMPTS):
            if _acquire(sign):
                break
            time.sleep(_PAUSE_S)
        yield


def is_running(folder: Path) -> bool:
    """Return whether some process is running a run."""
    # Without a file, or without permission to read it, nobody can tell.
    with suppress(OSError), (folder / RUNNING).open("rb") as sign:
        return not _acquire(sign, fcntl.LOCK_SH)
    return False


def _opened(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except OSError as error:
        raise cannot_write(path, error) from error


def _acquire(file: IO[str] | IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

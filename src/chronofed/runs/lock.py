"""A lock file that keeps two processes from running the same run."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chronofed.core.errors import RunError


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when the process ends, however it ends.

    Raises:
        RunError: If another process holds it.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            msg = f"{path.parent}: another process is using this run; wait for it or stop it"
            raise RunError(msg) from error
        yield


def is_locked(path: Path) -> bool:
    """Return whether some process holds a lock file."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False

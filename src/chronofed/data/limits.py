"""Limits on what a data file may ask for, checked before anything is allocated."""

import os
from pathlib import Path

from chronofed.core.errors import DataError

MOST_COLUMNS = 10_000
"""Columns of a table, or arrays of an npz file."""
IMAGE_FILE_BYTES = 2**30
"""Bytes of one file of an image data set, unpacked; the largest known has 153,600,000."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container that this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(_CGROUP.read_text()))
    except (OSError, ValueError):
        return total


def check_bytes(path: Path, promised: int) -> None:
    """Refuse a file that takes more than half of the memory; its features are a copy of it.

    Raises:
        DataError: If it does.
    """
    most = memory_bytes() // 2
    if promised > most:
        sizes = f"{promised / 2**30:,.1f} GiB in memory, more than half of this machine's"
        raise DataError(f"{path}: takes {sizes} {memory_bytes() / 2**30:,.1f} GiB")


def check_columns(path: Path, count: int) -> None:
    """Refuse a file with too many columns.

    Raises:
        DataError: If it has.
    """
    if count > MOST_COLUMNS:
        raise DataError(f"{path}: {count} columns, more than {MOST_COLUMNS}")

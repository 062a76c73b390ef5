"""Memory that a process has freed and will need again."""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep what was freed, for the next round's updates: fetching it anew is slow.

    Returns:
        Whether it does; only glibc can be told.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wishes = {M_TRIM_THRESHOLD: 2**30, M_TOP_PAD: 2**26, M_MMAP_THRESHOLD: 2**25}
    return all(mallopt(*wish) == 1 for wish in wishes.items())

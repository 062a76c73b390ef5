"""Fewer points for long curves, chosen so that peaks and drops stay."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def downsample(values: Numbers, most: int) -> NDArray[np.int64]:
    """Choose positions of at most ``most`` values: both ends, and the minimum and maximum of every stretch.

    >>> downsample(np.array([0.0, 1.0, 9.0, 1.0, 1.0, -5.0, 1.0, 2.0]), 6).tolist()
    [0, 1, 2, 4, 5, 7]
    """
    count = len(values)
    if count <= max(most, 2):
        return np.arange(count)
    stretches = max(1, (most - 2) // 2)
    edges = np.linspace(1, count - 1, stretches + 1).round().astype(int)
    kept = {0, count - 1}
    filled = np.where(np.isfinite(values), values, 0.0)
    for start, stop in pairwise(edges):
        if stop > start:
            part = filled[start:stop]
            kept |= {start + int(part.argmin()), start + int(part.argmax())}
    return np.array(sorted(kept))


def evenly_spaced(count: int, most: int) -> list[int]:
    """Choose at most ``most`` of ``count`` positions, evenly spaced, with both ends.

    >>> evenly_spaced(10, 4), evenly_spaced(3, 9)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(k) for k in np.linspace(0, count - 1, max(most, 2))})

"""The surrogate of memories that replay samples, real or synthetic."""

from collections.abc import Sequence

import numpy as np
import torch

from chronofed.core.types import Samples
from chronofed.methods.memories.base import MemoryItem, Moment, timeline
from chronofed.methods.surrogate import Pool, Surrogate
from chronofed.methods.weighting import RoundWeights, Weights


def replay(past: Sequence[MemoryItem], weights: RoundWeights, moment: Moment) -> Surrogate:
    """Replay the recalled items, each with the weight of its round."""
    about = timeline(past, moment)
    p = weights(about)
    return Surrogate(present=float(p[-1]), replay=_pool(past, about.sizes, p[:-1]))


def _pool(past: Sequence[MemoryItem], sizes: tuple[int, ...], p: Weights) -> Pool | None:
    """Pool all samples with a weight; the samples of an item share its weight equally."""
    counted = [item.record for item, weight in zip(past, p, strict=True) if weight != 0]
    if not counted:
        return None
    lengths, some = np.asarray(sizes), p != 0
    shares = np.repeat((p / lengths)[some], lengths[some])
    pieces = [Samples(record["x"], record["y"], outputs=record.get("logits")) for record in counted]
    return Pool(pieces, torch.from_numpy(shares))

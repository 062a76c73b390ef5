"""The surrogate of memories that replay samples, real or synthetic."""

from collections.abc import Iterable

import numpy as np
import torch

from chronofed.core.types import Samples
from chronofed.methods.memories.base import MemoryItem, Moment
from chronofed.methods.surrogate import Pool, Surrogate
from chronofed.methods.weighting import RoundWeights, Timeline, Weights


def replay(kept: Iterable[MemoryItem], weights: RoundWeights, moment: Moment) -> Surrogate:
    """Replay the items of all data sets but the present one, each with the weight of its round."""
    past = [item for item in kept if item.record and item.key != moment.key]
    sizes = tuple(item.record["y"].shape[0] for item in past)
    timeline = Timeline(tuple(k.round for k in past), sizes, moment.round, moment.size)
    p = weights(timeline)
    return Surrogate(present=float(p[-1]), replay=_pool(past, sizes, p[:-1]))


def _pool(past: list[MemoryItem], sizes: tuple[int, ...], p: Weights) -> Pool | None:
    """Pool all samples with a weight; the samples of an item share its weight equally."""
    counted = [item.record for item, weight in zip(past, p, strict=True) if weight != 0]
    if not counted:
        return None
    lengths, some = np.asarray(sizes), p != 0
    shares = np.repeat((p / lengths)[some], lengths[some])
    pieces = [Samples(record["x"], record["y"]) for record in counted]
    return Pool(pieces, torch.from_numpy(shares))

"""Samples of the past, real or made, as a surrogate: what memories that replay have in common."""

from collections.abc import Iterable

import numpy as np
import torch

from chronofed.memories.base import Keepsake, Moment
from chronofed.surrogate import Pool, Surrogate
from chronofed.types import Samples
from chronofed.weights import RoundWeights, Timeline, Weights


def replay(kept: Iterable[Keepsake], weights: RoundWeights, moment: Moment) -> Surrogate:
    """Replay what was kept of other data sets than the present one, each with the weight of its round."""
    past = [keepsake for keepsake in kept if keepsake.record and keepsake.key != moment.key]
    sizes = tuple(keepsake.record["y"].shape[0] for keepsake in past)
    timeline = Timeline(tuple(k.round for k in past), sizes, moment.round, moment.size)
    p = weights(timeline)
    return Surrogate(present=float(p[-1]), replay=_pool(past, sizes, p[:-1]))


def _pool(past: list[Keepsake], sizes: tuple[int, ...], p: Weights) -> Pool | None:
    """All samples that have a weight; a round's weight is shared by its samples."""
    counted = [keepsake.record for keepsake, weight in zip(past, p, strict=True) if weight != 0]
    if not counted:
        return None
    lengths, some = np.asarray(sizes), p != 0
    shares = np.repeat((p / lengths)[some], lengths[some])
    pieces = [Samples(record["x"], record["y"]) for record in counted]
    return Pool(pieces, torch.from_numpy(shares))

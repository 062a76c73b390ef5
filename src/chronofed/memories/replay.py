"""Samples of the past, real or made, as a surrogate: what memories that replay have in common."""

from collections.abc import Iterable

import torch

from chronofed.memories.base import Keepsake, Moment
from chronofed.surrogate import Pool, Surrogate
from chronofed.types import Samples
from chronofed.weights import RoundWeights, Timeline, Weights


def replay(kept: Iterable[Keepsake], weights: RoundWeights, moment: Moment) -> Surrogate:
    """Replay what was kept of other data sets than the present one, each with the weight of its round."""
    past = [keepsake for keepsake in kept if keepsake.record and keepsake.key != moment.key]
    sizes = tuple(len(keepsake.record["y"]) for keepsake in past)
    timeline = Timeline(tuple(k.round for k in past), sizes, moment.round, moment.size)
    p = weights(timeline)
    return Surrogate(present=float(p[-1]), replay=_pool(past, p))


def _pool(past: list[Keepsake], p: Weights) -> Pool | None:
    """All samples that have a weight; a round's weight is shared by its samples."""
    counted = [(k.record, weight) for k, weight in zip(past, p[:-1], strict=True) if weight != 0]
    if not counted:
        return None
    samples = Samples(*(torch.cat([record[name] for record, _ in counted]) for name in ("x", "y")))
    shares = [
        torch.full((len(r["y"]),), weight / len(r["y"]), dtype=torch.float64)
        for r, weight in counted
    ]
    return Pool(samples, torch.cat(shares))

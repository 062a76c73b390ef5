"""CFL-Core-Set: a few real samples of every past data set, replayed."""

from typing import ClassVar

import torch
from torch import Generator

from chronofed.config import Count
from chronofed.memories.base import Home, Keepsake, Memory, Moment
from chronofed.surrogate import Pool, Surrogate
from chronofed.types import Objective, Record, Samples, Vector
from chronofed.weights import RoundWeights, Timeline, Weights


class CoreSet(Memory, tag="core-set"):
    r"""Keeps samples of each past data set on the client: :math:`\tilde f_\tau` is their mean loss.

    Samples are drawn uniformly without replacement ("naive" in ``Ablation Study Table``). A data set that
    comes back replaces what was kept of it, and while it is present it needs no remembering.

    Attributes:
        size: Samples kept of each data set (100 in the paper's main runs).
    """

    home: ClassVar[Home] = "client"
    reference: ClassVar[str] = "Rebuffi et al. (2017), iCaRL; Guo et al., CFL-Core-Set"

    size: Count = 100

    def observe(
        self,
        objective: Objective,  # noqa: ARG002
        params: Vector,  # noqa: ARG002
        samples: Samples,
        generator: Generator,
    ) -> Record:
        """The samples to keep."""
        pick = torch.randperm(len(samples), generator=generator)[: self.size]
        chosen = samples[pick]
        record = {"x": chosen.x, "y": chosen.y}
        return record if chosen.rows is None else {**record, "rows": chosen.rows}

    def recall(
        self, kept: tuple[Keepsake, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay what was kept of other data sets, each with the weight of its round."""
        past = [keepsake for keepsake in kept if keepsake.key != moment.key]
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

"""Selection of the samples to keep.

Picks are ordered by importance, so the first picks of a selection are a smaller selection.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

BINS = 10
"""Bins of a data set's targets that stand for classes where targets are numbers."""


def uniform(n: int, size: int, generator: Generator) -> Tensor:
    """Pick ``size`` of ``n`` positions, at most all, at random without replacement."""
    return torch.randperm(n, generator=generator)[:size]


def group_codes(y: Tensor) -> Tensor:
    """Return the class of every sample; of numbers, the bin between quantiles of these samples' own targets.

    >>> group_codes(torch.tensor([0.3, 9.0, 0.1, 0.2])).tolist()
    [2, 3, 0, 1]
    """
    if not y.is_floating_point():
        return y
    bins = min(BINS, len(y))
    places = torch.arange(1, bins, dtype=torch.float64) / bins
    edges = y.double().quantile(places, interpolation="higher")
    return torch.searchsorted(edges, y.double(), right=True)


def balanced(labels: Tensor, size: int, generator: Generator) -> Tensor:
    """Pick positions of every class in numbers as equal as possible; at random within a class."""

    def shuffled(index: Tensor, count: int) -> Tensor:
        return index[uniform(len(index), count, generator)]

    return _deal(labels, size, shuffled, proportional=False)


def herding(features: Tensor, labels: Tensor, size: int) -> Tensor:
    r"""Pick samples whose mean features are near those of their class (``iCaRL Core Set``).

    Greedily, and without taking a sample twice,

    .. math:: p_k = \arg\min_x \Big\|\mu - \frac1k \Big(\phi(x) + \sum_{j<k} \phi(p_j)\Big)\Big\|.

    Classes have quotas in proportion to their samples, so that the selection keeps the mean of the data set.
    """
    phi = features.double()

    def herd(index: Tensor, count: int) -> Tensor:
        return index[_herd(phi[index], count)]

    return _deal(labels, size, herd, proportional=True)


def _herd(phi: Tensor, count: int) -> Tensor:
    r"""Pick from one class: with centred features, minimise :math:`\|\phi(x) + \sum_j \phi(p_j)\|`."""
    phi = phi - phi.mean(0)
    # Squared norms; infinite for samples that are taken.
    free = phi.square().sum(1)
    total = torch.zeros_like(phi[0])
    picks = torch.empty(count, dtype=torch.int64)
    for k in range(count):
        best = (free + 2 * (phi @ total)).argmin()
        picks[k], free[best] = best, torch.inf
        total += phi[best]
    return picks


def _deal(
    labels: Tensor, size: int, rank: Callable[[Tensor, int], Tensor], *, proportional: bool
) -> Tensor:
    """Let classes take turns, the largest first; ``rank`` orders the positions of a class."""
    counts, classes = labels.bincount().sort(descending=True, stable=True)
    turn = turns(counts, size, proportional=proportional)
    picks = torch.empty_like(turn)
    for place, label in enumerate(classes[counts > 0]):
        mine = turn == place
        picks[mine] = rank((labels == label).nonzero().flatten(), int(mine.sum()))
    return picks


def turns(counts: Tensor, size: int, *, proportional: bool = False) -> Tensor:
    r"""Assign each of ``size`` picks to a group, such that the shares of any number of first picks are fair.

    Equal shares: groups take turns while they have something left. Proportional shares: the next pick goes to
    the group with the smallest :math:`(k + \frac12)/n` after *k* picks (Sainte-Laguë), so that quotas are the
    nearest whole numbers that sum to ``size``. In a tie the first group wins.

    Args:
        counts: Size of each group, ``(groups,)``.
        size: Number of picks; there are fewer if the groups together have fewer.
        proportional: Whether shares are proportional to ``counts`` instead of equal.

    >>> turns(torch.tensor([5, 1, 3]), 6).tolist()
    [0, 1, 2, 0, 2, 0]
    >>> turns(torch.tensor([5, 1, 3]), 6, proportional=True).bincount().tolist()
    [3, 1, 2]
    """
    picked = torch.arange(min(size, int(counts.max())), dtype=torch.float64)[:, None]
    keys = (picked + 0.5) / counts if proportional else picked.expand(-1, len(counts))
    keys = keys.masked_fill(picked >= counts, torch.inf)  # (picks, groups)
    order = keys.flatten().argsort(stable=True)[: min(size, int(counts.sum()))]
    return order % len(counts)


def admitted(seen: int, new: int, size: int, generator: Generator) -> int:
    """Draw the number of ``new`` samples that enter a reservoir of ``size`` after ``seen`` others.

    This is the number of new ones in a uniform sample of all ``seen + new`` (hypergeometric): all steps of
    Vitter's algorithm R for a whole data set at once.
    """
    chosen = torch.randperm(seen + new, generator=generator)[:size]
    return int((chosen >= seen).sum())

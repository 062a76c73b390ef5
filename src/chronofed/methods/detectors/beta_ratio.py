"""BetaRatio."""

import math
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from chronofed.core.config import Count, Fraction, NonNegative
from chronofed.core.types import Record
from chronofed.methods.detectors.base import Detector

# Numbers are kept this far from 0 and 1, where densities may be infinite.
MARGIN = 1e-3
# Least variance of a fit, so that equal numbers have a density, too.
LEAST_VARIANCE = 1e-6
# Two parameters of a beta distribution, each (splits,).
Shape: TypeAlias = tuple[Tensor, Tensor]


class BetaRatio(Detector, tag="beta-ratio"):
    r"""Likelihood ratio of beta distributions before and after a split; for confidences, which a change lowers.

    For every split :math:`k` with at least ``window`` numbers on both sides and
    :math:`\bar x_{>k} \le (1 - \lambda)\, \bar x_{\le k}`, beta distributions are fitted to both sides, and to
    all numbers, by their moments. With their log-likelihoods :math:`L`, the score is

    .. math::
        \text{two-sided:}\quad & s_k = L_{\le k}(x_{\le k}) + L_{>k}(x_{>k}) - L(x) \\
        \text{one-sided:}\quad & s_k = L_{>k}(x_{>k}) - L_{\le k}(x_{>k})

    and a change is at the largest :math:`s_k`, if that exceeds the threshold. The one-sided form, SAND's, does
    not locate the change and raises more false alarms; it is here for comparison. Neither is a calibrated test:
    of 1000 streams of 100 numbers without a change, the two-sided form finds one in 11 % (Beta(8, 2)) or 0.1 %
    (Beta(20, 2)); raise ``sensitivity`` if confidences vary much.

    Attributes:
        window: Least numbers on each side of a split.
        sensitivity: :math:`\lambda`, the relative fall of the mean from which on a split counts.
        threshold: Least score of a change; by default :math:`-\log 0.05`.
        form: The score.
        limit: Most numbers to keep, at least twice the window; the oldest leave.
    """

    finds: ClassVar[Literal["rise", "fall"]] = "fall"
    reference: ClassVar[str] = (
        "Casado et al. (2021), Concept Drift Detection and Adaptation for Federated and Continual Learning"
    )

    window: Count = 20
    sensitivity: Fraction = 0.05
    threshold: NonNegative = -math.log(0.05)
    form: Literal["two-sided", "one-sided"] = "two-sided"
    limit: Count = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit < 2 * self.window:
            raise ValueError(
                f"BetaRatio.limit: {self.limit} numbers have no split; use {2 * self.window} or more"
            )

    def init(self) -> Record:
        """Return a state of no numbers."""
        return {"values": torch.empty(0, dtype=torch.float64)}

    def update(self, state: Record, values: Tensor) -> tuple[Record, int | None]:
        """Add the numbers, and keep those after a change."""
        every = torch.cat([state["values"], values.double()])[-self.limit :]
        scores = self.scores(every)
        if not len(scores) or float(scores.max()) <= self.threshold:
            return {"values": every}, None
        place = self.window + int(scores.argmax())
        return {"values": every[place:].clone()}, place

    def scores(self, values: Tensor) -> Tensor:
        """Return the score of every split, from ``window`` on; minus infinity where the mean does not fall."""
        if len(values) < 2 * self.window:
            return torch.empty(0, dtype=torch.float64)
        total = _moments(values.clamp(MARGIN, 1 - MARGIN))
        splits = torch.arange(self.window, len(values) - self.window + 1)
        before, every = total[:, splits], total[:, -1:]
        after = every - before
        shapes = [_fitted(part) for part in (before, after, every)]
        if self.form == "two-sided":
            score = sum(map(_likelihood, (before, after), shapes)) - _likelihood(every, shapes[2])
        else:
            score = _likelihood(after, shapes[1]) - _likelihood(after, shapes[0])
        falls = after[1] / after[0] <= (1 - self.sensitivity) * before[1] / before[0]
        return torch.where(falls, score, -math.inf)


def _moments(x: Tensor) -> Tensor:
    """Return count and sums of x, its square, log x and log(1 - x) of the first k numbers, ``(5, n + 1)``."""
    rows = torch.stack([torch.ones_like(x), x, x.square(), x.log(), torch.log1p(-x)])
    return torch.cat([rows.new_zeros(5, 1), rows.cumsum(1)], dim=1)


def _fitted(moments: Tensor) -> Shape:
    r"""Fit beta distributions by mean *m* and variance *v*: :math:`a = m c, b = (1-m) c, c = m(1-m)/v - 1`."""
    mean = moments[1] / moments[0]
    most = mean * (1 - mean)
    # Numbers that are all 0 or 1 have no fit: the variance of a beta distribution is below m(1 - m).
    variance = (moments[2] / moments[0] - mean.square()).clamp(min=LEAST_VARIANCE)
    sharpness = (most / variance - 1).clamp(min=MARGIN)
    return mean * sharpness, (1 - mean) * sharpness


def _likelihood(moments: Tensor, shape: Shape) -> Tensor:
    """Return the log-likelihood of some numbers, from their sums."""
    a, b = shape
    scale = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    return (a - 1) * moments[3] + (b - 1) * moments[4] - moments[0] * scale

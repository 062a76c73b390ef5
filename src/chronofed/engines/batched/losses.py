"""Losses that the batched kernel computes by itself, as numbers that TorchScript can branch on."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from chronofed.models.losses import (
    Absolute,
    CrossEntropy,
    Huber,
    Loss,
    Quantile,
    Squared,
    WeightedCrossEntropy,
)

CROSS_ENTROPY: Final[int] = 0
SQUARED: Final[int] = 1
ABSOLUTE: Final[int] = 2
HUBER: Final[int] = 3
QUANTILE: Final[int] = 4


@dataclass(frozen=True, slots=True)
class BatchedLoss:
    """A loss that the kernel knows.

    Attributes:
        kind: One of the numbers above.
        setting: Huber's delta, or the quantile.
        factors: Factor of every class; empty if all are 1.
    """

    kind: int = CROSS_ENTROPY
    setting: float = 0.0
    factors: tuple[float, ...] = ()

    def weighted(self, y: Tensor, weight: Tensor) -> Tensor:
        """Multiply weights by the factors of their samples' classes."""
        if not self.factors:
            return weight
        return weight * torch.tensor(self.factors, dtype=weight.dtype)[y]

    def encoded(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Return targets as the kernel needs them: numbers in the model's dtype, classes as they are."""
        return y if self.kind == CROSS_ENTROPY else y.to(dtype)


def batched_loss(loss: Loss) -> BatchedLoss | str:
    """Return a loss for the kernel; if it does not know it, the reason in one line."""
    if type(loss) is CrossEntropy and not loss.class_weights:
        return BatchedLoss()
    if type(loss) is WeightedCrossEntropy:
        return BatchedLoss(factors=loss.factors)
    if type(loss) is Huber:
        return BatchedLoss(HUBER, loss.delta)
    if type(loss) is Quantile:
        return BatchedLoss(QUANTILE, loss.q)
    plain: dict[type[Loss], int] = {Squared: SQUARED, Absolute: ABSOLUTE}
    if type(loss) in plain:
        return BatchedLoss(plain[type(loss)])
    return f"the loss is {type(loss).__name__}, which the kernel does not compute"


def residual_slope_(residual: Tensor, kind: int, setting: float) -> Tensor:
    r"""Turn residuals :math:`f - y` into the derivative of the loss, in place where that is possible.

    Also runs as TorchScript; the numbers are those of :mod:`chronofed.models.losses`.
    """
    if kind == 2:
        return residual.sign_()
    if kind == 3:
        return residual.clamp_(-setting, setting)
    if kind == 4:
        above = residual.gt(0).to(residual.dtype).mul_(1 - setting)
        return above.sub_(residual.lt(0).to(residual.dtype).mul_(setting))
    return residual

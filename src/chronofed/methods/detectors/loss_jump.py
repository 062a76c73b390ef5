"""LossJump."""

from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import NonNegative
from chronofed.core.types import Record
from chronofed.methods.detectors.base import Detector


class LossJump(Detector, tag="loss-jump"):
    r"""A mean loss that exceeds the last one by a threshold, :math:`\bar\ell_t - \bar\ell_{t-1} > \delta`.

    All numbers of one update count as one step. A change is at their first number, position 0. To use
    accuracies, pass their negatives.

    Attributes:
        threshold: :math:`\delta`, in units of the loss.

    >>> detector = LossJump(threshold=0.2)
    >>> state, change = detector.update(detector.init(), torch.tensor([0.5, 0.7]))
    >>> state, change = detector.update(state, torch.tensor([0.7, 0.9]))
    >>> change is None, detector.update(state, torch.tensor([1.1]))[1]
    (True, 0)
    """

    reference: ClassVar[str] = (
        "Jothimurugesan et al. (2023), Federated Learning under Distributed Concept Drift"
    )

    threshold: NonNegative = 0.1

    def init(self) -> Record:
        """Return a state without a last loss."""
        return {"last": torch.empty(0, dtype=torch.float64)}

    def update(self, state: Record, values: Tensor) -> tuple[Record, int | None]:
        """Compare the mean with the last one."""
        if not len(values):
            return state, None
        now, last = values.double().mean().reshape(1), state["last"]
        jumped = bool(len(last)) and float(now - last) > self.threshold
        return {"last": now}, 0 if jumped else None

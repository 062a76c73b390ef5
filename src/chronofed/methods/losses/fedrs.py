"""FedRs."""

from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import Fraction
from chronofed.methods.losses.base import LocalLoss
from chronofed.methods.surrogate import LossTerms


class FedRs(LocalLoss, tag="fedrs"):
    r"""Restricted softmax: the logits of classes that a client lacks are scaled down.

    .. math:: \ell_w(f, y) = \ell(\alpha \odot f, y), \qquad
        \alpha_k = 1 \text{ for the client's classes},\; \alpha \text{ for others}

    The gradient in the rows of absent classes shrinks by :math:`\alpha`, so they are pushed away more slowly.
    It keeps a gradient for a client with one class. In the publication the last layer has no bias; here
    the bias is scaled with the rest of the logit.

    Attributes:
        scale: :math:`\alpha`; with 1 it is the task's loss.
    """

    reference: ClassVar[str] = (
        "Li and Zhan (2021), FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID "
        "Data"
    )

    scale: Fraction = 0.5

    def terms(self, counts: Tensor) -> LossTerms:
        """Return a scale for each class."""
        if self.scale == 1.0:
            return LossTerms()
        return LossTerms(scale=torch.ones_like(counts).masked_fill(counts <= 0, self.scale))

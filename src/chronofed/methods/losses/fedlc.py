"""FedLc."""

from typing import ClassVar

from torch import Tensor

from chronofed.core.config import NonNegative
from chronofed.methods.losses.base import LocalLoss
from chronofed.methods.surrogate import LossTerms


class FedLc(LocalLoss, tag="fedlc"):
    r"""Logits calibration: rarer classes get a larger margin.

    .. math:: \ell_w(f, y) = -\log \frac{e^{f_y - \tau n_y^{-1/4}}}{\sum_k e^{f_k - \tau n_k^{-1/4}}}

    A class that the client lacks has a margin without bound, and so is left out of the softmax. The margins of
    classes with hundreds of samples differ by little, so it is milder than ``prior-correction`` among present
    classes, but **a client with one class has no gradient**, as there. It helps where most clients have several
    classes.

    Attributes:
        temperature: :math:`\tau`; with 0 it is the task's loss.
    """

    reference: ClassVar[str] = (
        "Zhang et al. (2022), Federated Learning with Label Distribution Skew via Logits Calibration"
    )

    temperature: NonNegative = 1.0

    def terms(self, counts: Tensor) -> LossTerms:
        """Return an offset for each class."""
        if not self.temperature:
            return LossTerms()
        return LossTerms(offset=-self.temperature * counts.clamp(min=0).pow(-0.25))

"""PriorCorrection."""

from typing import ClassVar

from torch import Tensor

from chronofed.core.config import NonNegative
from chronofed.methods.losses.base import LocalLoss
from chronofed.methods.surrogate import LossTerms


class PriorCorrection(LocalLoss, tag="prior-correction"):
    r"""Logits are shifted by the client's class shares, so that classes are learnt as if all were alike.

    .. math:: \ell_w(f, y) = \ell(f + \tau \log \pi, y), \qquad \pi_k = \frac{n_k + s}{n + s C}

    With ``strength = 1, smoothing = 0`` it is balanced softmax: a class that the client lacks is left out of
    the softmax. **With one class in a data set that leaves no gradient at all**, and with two or three
    little: full correction loses where clients have few classes. Mild ones, with smoothing and a strength
    below 1, keep most of the gradient and take off some of the pull towards the classes that are present.

    Attributes:
        strength: :math:`\tau`; with 0 it is the task's loss.
        smoothing: Samples :math:`s` that are added to every class.
    """

    reference: ClassVar[str] = (
        "Ren et al. (2020), Balanced Meta-Softmax for Long-Tailed Visual Recognition; Menon et al. (2021), "
        "Long-Tail Learning via Logit Adjustment"
    )

    strength: NonNegative = 0.5
    smoothing: NonNegative = 1.0

    def terms(self, counts: Tensor) -> LossTerms:
        """Return an offset for each class."""
        if not self.strength:
            return LossTerms()
        smooth = counts + self.smoothing
        return LossTerms(offset=self.strength * (smooth / smooth.sum()).log())

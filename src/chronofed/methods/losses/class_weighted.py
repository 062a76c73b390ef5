"""ClassWeighted."""

from typing import ClassVar

from torch import Tensor

from chronofed.core.config import NonNegative
from chronofed.methods.losses.base import LocalLoss
from chronofed.methods.surrogate import LossTerms


class ClassWeighted(LocalLoss, tag="class-weighted"):
    r"""Rare classes of a client count more.

    .. math:: \ell_w(f, y) = c_y\, \ell(f, y), \qquad c_k = n_k^{-p} \Big/ \frac1n \sum_j n_j^{1 - p}

    so that the weights of a client's samples keep their sum. It helps where clients have most classes, but
    unequally many samples of each. It cannot help a client with one class, and says nothing about classes that
    are absent. Mini-batches are drawn as without it.

    Attributes:
        power: :math:`p`; with 1 all classes of a client count alike, with 0 it is the task's loss.
    """

    reference: ClassVar[str] = "King and Zeng (2001), Logistic Regression in Rare Events Data"

    power: NonNegative = 1.0

    def terms(self, counts: Tensor) -> LossTerms:
        """Return a factor for each class."""
        present = counts > 0
        raised = counts.where(present, 1.0).pow(-self.power).masked_fill(~present, 0.0)
        mean = (counts * raised).sum() / counts.sum()
        return LossTerms(factors=raised / mean)

"""Local losses in which the received model teaches."""

from typing import ClassVar

from torch import Tensor

from chronofed.core.config import NonNegative, Positive
from chronofed.methods.losses.base import LocalLoss, absent
from chronofed.methods.surrogate import LossTerms, Teacher


class VacantDistillation(LocalLoss, tag="vacant-distillation"):
    r"""The received model teaches the probabilities of the classes that a client lacks (FedVLS).

    .. math:: \ell_w(f, y) = \ell(f, y) + \lambda \sum_{k: n_k = 0} q_k \log \frac{q_k}{p_k}, \qquad
        p = \mathrm{softmax}(f), \; q = \mathrm{softmax}(f^{\mathrm{server}})

    The softmax is over all classes, the sum over the absent ones. It keeps what the server's model knows about
    absent classes while others are learnt, and holds even for a client with one class. It needs a model that
    knows something: in the first rounds it slows training. The suppression of logits of the publication is not
    here. A step costs a forward pass more, and a gradient.

    Attributes:
        weight: :math:`\lambda`.
    """

    reference: ClassVar[str] = (
        "Guo et al. (2025), Exploring Vacant Classes in Label-Skewed Federated Learning (FedVLS)"
    )

    weight: NonNegative = 0.1

    def terms(self, counts: Tensor) -> LossTerms:
        """Return the server's model as a teacher of the absent classes."""
        vacant = absent(counts)
        if not len(vacant) or not self.weight:
            return LossTerms()
        return LossTerms(teachers=(Teacher(None, self.weight, 1.0, vacant, form="part"),))


class NotTrueDistillation(LocalLoss, tag="not-true-distillation"):
    r"""The received model teaches the proportions of all classes but the sample's own (FedNTD).

    .. math:: \ell_w(f, y) = \ell(f, y) + \beta \tau^2 \sum_{k \ne y} q_k \log \frac{q_k}{p_k}, \qquad
        p = \mathrm{softmax}_{k \ne y}(f / \tau), \; q = \mathrm{softmax}_{k \ne y}(f^{\mathrm{server}} / \tau)

    It lets a client learn its own classes freely and keeps the order of the others. On data sets with one or
    two classes it holds back too much at the weight of the publication. A step costs a forward pass more, and a
    gradient.

    Attributes:
        weight: :math:`\beta`.
        temperature: :math:`\tau`.
    """

    reference: ClassVar[str] = (
        "Lee et al. (2022), Preservation of the Global Knowledge by Not-True Distillation in Federated Learning"
    )

    weight: NonNegative = 1.0
    temperature: Positive = 1.0

    def terms(self, counts: Tensor) -> LossTerms:
        """Return the server's model as a teacher of what is not true."""
        if not self.weight:
            return LossTerms()
        scaled = self.weight * self.temperature**2
        return LossTerms(teachers=(Teacher(None, scaled, self.temperature, form="not-true"),))

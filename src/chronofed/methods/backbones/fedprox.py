"""FedProx."""

from typing import ClassVar

from chronofed.core.config import NonNegative
from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone


class FedProx(Backbone, tag="fedprox"):
    r"""FedAvg with a proximal term that pulls every client towards the server's model.

    .. math:: \min_w\; f_i(w) + \frac{\mu}{2}\|w - w_t\|^2

    Attributes:
        mu: Weight of the proximal term; 0 is FedAvg, 0.1 the paper's choice.
    """

    reference: ClassVar[str] = "Li et al. (2020), Federated Optimization in Heterogeneous Networks"

    mu: NonNegative = 0.1

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        r"""Add the gradient of the proximal term, :math:`g + \mu (w - w_t)`."""
        return grad.add_(params - server["params"], alpha=self.mu)

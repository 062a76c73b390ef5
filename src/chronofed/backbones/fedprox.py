"""FedProx."""

from typing import ClassVar

from chronofed.backbones.base import Backbone, stacked
from chronofed.config import NonNegative
from chronofed.types import Record, Vector


class FedProx(Backbone, tag="fedprox"):
    r"""FedAvg with a proximal term that ties every client to the server's model.

    .. math:: \min_w\; f_i(w) + \frac{\mu}{2}\|w - w_t\|^2

    Attributes:
        mu: Weight of the proximal term; 0 is FedAvg, 0.1 the paper's choice.
    """

    reference: ClassVar[str] = "Li et al. (2020), Federated Optimization in Heterogeneous Networks"

    mu: NonNegative = 0.1

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:  # noqa: ARG002
        r"""Gradient of the loss plus that of the proximal term, :math:`g + \mu (w - w_t)`."""
        return grad.add_(params - server["params"], alpha=self.mu)

"""MimeLite."""

from typing import ClassVar

import torch

from chronofed.core.config import Decay
from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, from_means, weighted_mean
from chronofed.methods.local import Local


class MimeLite(Backbone, tag="mimelite"):
    r"""Local steps with the server's momentum, which is fixed during a round.

    .. math::
        w \gets w - \eta_l \big((1 - \beta)\, g(w) + \beta\, m_t\big), \qquad
        m_{t+1} = (1 - \beta) \sum_i a_i \nabla f_i(w_t) + \beta\, m_t

    Besides its update, a client sends the full gradient of its objective at the server's model.

    Attributes:
        beta: Weight of the momentum; 0 is FedAvg, 0.01 the paper's choice.
    """

    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "gradient")
    reference: ClassVar[str] = (
        "Karimireddy et al. (2020), Mime: Mimicking Centralized Stochastic Algorithms"
    )

    beta: Decay = 0.01

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start the momentum at zero."""
        return {**super().init_server(params, clients), "momentum": torch.zeros_like(params)}

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        r"""Mix the gradient with the momentum, :math:`(1 - \beta) g + \beta m_t`."""
        return grad.lerp_(server["momentum"], self.beta)

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update and the full gradient at the server's model."""
        upload, state = super().finish(params, server, client, local)
        return {**upload, "gradient": local.full_gradient(server["params"])}, state

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates; update the momentum with the mean gradient."""
        gradient = weighted_mean(uploads, "gradient")
        momentum = gradient.lerp_(server["momentum"], self.beta)
        return {**super().aggregate(server, uploads), "momentum": momentum}

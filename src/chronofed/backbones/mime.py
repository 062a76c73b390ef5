"""Mime."""

from typing import ClassVar

import torch

from chronofed.backbones.base import Backbone, Decay, Uploads, stacked, weighted_mean
from chronofed.local import Local
from chronofed.types import Record, Vector


class Mime(Backbone, tag="mime"):
    r"""MimeLite whose local steps are also corrected towards the mean gradient of the round's clients.

    .. math::
        w \gets w - \eta_l \big((1 - \beta) (g(w) - g(w_t) + c) + \beta\, m_t\big), \qquad
        c = \sum_i a_i \nabla f_i(w_t), \qquad
        m_{t+1} = (1 - \beta)\, c + \beta\, m_t

    Both :math:`g` are of the same mini-batch. The clients send what :math:`c` is made of in an exchange of
    its own, before they train; it is forgotten after the round.

    Attributes:
        beta: Weight of the momentum. The correction takes the clients' own drift out of the steps, so that
            the usual 0.9 suits here; the little that MimeLite gets in the paper would leave only :math:`c`.
    """

    prepares: ClassVar[bool] = True
    sends: ClassVar[tuple[str, ...]] = ("gradient", "delta")
    reference: ClassVar[str] = (
        "Karimireddy et al. (2020), Mime: Mimicking Centralized Stochastic Algorithms"
    )

    beta: Decay = 0.9

    def init_server(self, params: Vector, clients: int) -> Record:
        """The momentum starts at zero."""
        return {**super().init_server(params, clients), "momentum": torch.zeros_like(params)}

    def prepare(self, server: Record, local: Local) -> Record:
        """Send the full gradient at the server's model."""
        return {"gradient": local.full_gradient(server["params"])}

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Add the mean gradient of this round's clients."""
        return {**server, "control": weighted_mean(uploads, "gradient")}

    @stacked
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """One mini-batch's gradient, with its own error at the server's model taken out."""
        here, there = local.stochastic_gradients(params, server["params"])
        return here.sub_(there).add_(server["control"])

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:  # noqa: ARG002
        r"""Corrected gradient and momentum, :math:`(1 - \beta) g + \beta m_t`."""
        return grad.lerp_(server["momentum"], self.beta)

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates; the momentum follows the mean gradient."""
        momentum = server["control"].lerp(server["momentum"], self.beta)
        return {**super().aggregate(server, uploads), "momentum": momentum}

"""Mime."""

from typing import ClassVar

import torch

from chronofed.core.config import Decay
from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, from_means, weighted_mean
from chronofed.methods.local import Local, Train


class Mime(Backbone, tag="mime"):
    r"""MimeLite with local steps corrected towards the mean gradient of the round's clients.

    .. math::
        w \gets w - \eta_l \big((1 - \beta) (g(w) - g(w_t) + c) + \beta\, m_t\big), \qquad
        c = \sum_i a_i \nabla f_i(w_t), \qquad
        m_{t+1} = (1 - \beta)\, c + \beta\, m_t

    Both :math:`g` use the same mini-batch. Clients send their part of :math:`c` in an extra exchange before
    they train; it is dropped after the round.

    Attributes:
        beta: Weight of the momentum. The correction removes the clients' own drift from the steps, so the usual
            0.9 works here; with the small value that the paper uses for MimeLite, only :math:`c` would be left.
    """

    two_phase: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("gradient", "delta")
    reference: ClassVar[str] = (
        "Karimireddy et al. (2020), Mime: Mimicking Centralized Stochastic Algorithms"
    )

    beta: Decay = 0.9

    def unsuited(self, train: Train) -> str | None:
        r"""Refuse clipping: clipped, :math:`g(w_t)` has no longer the mean :math:`\nabla f_i(w_t)`."""
        if train.clip_norm is None:
            return None
        return "clip_norm: Mime's correction needs gradients that are not clipped; leave it out"

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start the momentum at zero."""
        return {**super().init_server(params, clients), "momentum": torch.zeros_like(params)}

    def prepare(self, server: Record, local: Local) -> Record:
        """Send the full gradient at the server's model."""
        return {"gradient": local.full_gradient(server["params"])}

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Add the mean gradient of this round's clients."""
        return {**server, "control": weighted_mean(uploads, "gradient")}

    @stacked
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute one mini-batch's gradient, minus its error at the server's model."""
        here, there = local.stochastic_gradients(params, server["params"])
        return here.sub_(there).add_(server["control"])

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        r"""Mix the corrected gradient with the momentum, :math:`(1 - \beta) g + \beta m_t`."""
        return grad.lerp_(server["momentum"], self.beta)

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates; update the momentum with the mean gradient."""
        momentum = server["control"].lerp(server["momentum"], self.beta)
        return {**super().aggregate(server, uploads), "momentum": momentum}

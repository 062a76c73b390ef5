"""FedAcg."""

from typing import ClassVar

import torch

from chronofed.core.config import Decay
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.wrappers.base import ClientWrapper

MOMENTUM, BASE = "acg_momentum", "acg_base"


class FedAcg(ClientWrapper, tag="fedacg"):
    r"""Clients start where the server's momentum is going, around any backbone.

    .. math:: v_t = w_t + \lambda m_t, \qquad w_{t+1} = v_t + D_t, \qquad m_{t+1} = w_{t+1} - w_t
        = \lambda m_t + D_t

    where :math:`D_t` is the inner backbone's step from :math:`v_t`. So the momentum of the server needs no
    state on clients, and they see it before they train, unlike with ``fedopt``. Nothing more is sent: clients
    get :math:`v_t` in place of :math:`w_t`, which is evaluated and saved. The publication adds the proximal
    term :math:`\frac{\beta}{2} \|w - v_t\|^2`: that is ``fedprox`` inside, with ``mu`` = :math:`\beta`.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone, which is a factor of *D*.
        momentum: :math:`\lambda`; with 0 it is the inner backbone.
    """

    reference: ClassVar[str] = (
        "Kim et al. (2024), Communication-Efficient Federated Learning with Accelerated Client Gradient"
    )

    momentum: Decay = 0.85

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone.several_models:
            raise ValueError(
                "FedAcg.backbone: it has several models, and FedAcg would move one; put FedAcg inside it"
            )

    def init_server(self, params: Vector, clients: int) -> Record:
        """Return the inner state, without momentum."""
        return {**self.backbone.init_server(params, clients), MOMENTUM: torch.zeros_like(params)}

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """Move the model ahead for the round."""
        base = server["params"]
        ahead = base.add(server[MOMENTUM], alpha=self.momentum)
        return {**super().draw({**server, "params": ahead}, seed, round_), BASE: base}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; momentum and the model before it stay on the server."""
        inner = {n: t for n, t in server.items() if n not in (MOMENTUM, BASE)}
        return self.backbone.broadcast(inner)

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone, from the model that was ahead."""
        inner = self.backbone.aggregate(server, uploads)
        return {**inner, BASE: server[BASE], MOMENTUM: server[MOMENTUM]}

    def serve(self, server: Record) -> Record:
        """Note how far the round has moved the model, when all is done that changes it."""
        server = super().serve(server)
        kept = {n: t for n, t in server.items() if n != BASE}
        return {**kept, MOMENTUM: server["params"] - server[BASE]}

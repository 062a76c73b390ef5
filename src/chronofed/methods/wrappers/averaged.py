"""Averaged."""

from typing import ClassVar

import torch

from chronofed.core.config import Decay, NonNegative
from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.backbones.base import SERVED, Uploads
from chronofed.methods.wrappers.base import ClientWrapper

AVERAGED = "averaged"
"""The entry of the server's state with the mean of its models."""
ROUNDS = "averaged_rounds"


class Averaged(ClientWrapper, tag="averaged"):
    r"""The mean of the server's models over rounds is evaluated and saved, around any backbone.

    .. math:: \bar w_t = d_t \bar w_{t-1} + (1 - d_t) w_t, \qquad d_t = \min\Big(d, \frac{t}{t + k}\Big)

    for the rounds :math:`t = 0, 1, \dots` with clients, so :math:`\bar w_0 = w_0`. Clients start from the last
    model :math:`w_t`, so training is the inner backbone's. It takes off the swing of the model from round to
    round, and nothing more is sent. Put it around everything that changes the model. The statistics of
    BatchNorm are those of the last model. Refused around several models.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
        decay: Largest share :math:`d` of the mean that is kept; with 0 it is the last model.
        warm_up: Rounds :math:`k` that delay it: with 1 it is the plain mean of all rounds until :math:`d`.
    """

    reference: ClassVar[str] = (
        "Polyak and Juditsky (1992), Acceleration of Stochastic Approximation by Averaging; Izmailov et al. "
        "(2018), Averaging Weights Leads to Wider Optima and Better Generalization"
    )

    decay: Decay = 0.95
    warm_up: NonNegative = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone.several_models:
            raise ValueError(
                "Averaged.backbone: it has several models, and Averaged would average one; put Averaged inside"
            )

    def init_server(self, params: Vector, clients: int) -> Record:
        """Return the inner state, with the first model as the mean of no rounds."""
        own = {AVERAGED: params.clone(), ROUNDS: torch.tensor(0)}
        return {**self.backbone.init_server(params, clients), **own}

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """As the inner backbone, which may change the first model."""
        server = super().init_layers(server, objective)
        return {**server, AVERAGED: server["params"].clone()}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; the mean stays on the server, unless a head sends it."""
        sent = self.backbone.broadcast(server)
        return {name: tensor for name, tensor in sent.items() if name not in (AVERAGED, ROUNDS)}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone; the mean is kept."""
        inner = self.backbone.aggregate(server, uploads)
        return {**inner, AVERAGED: server[AVERAGED], ROUNDS: server[ROUNDS]}

    def serve(self, server: Record) -> Record:
        """Let the model into the mean, which is evaluated."""
        server = super().serve(server)
        t = int(server[ROUNDS])
        kept = min(self.decay, t / (t + self.warm_up)) if t else 0.0
        mean = server["params"].lerp(server[AVERAGED], kept)
        return {**server, AVERAGED: mean, ROUNDS: torch.tensor(t + 1), SERVED: mean}

"""FedExp."""

from typing import ClassVar

from chronofed.core.config import Positive
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import SERVED, Uploads, weighted_mean
from chronofed.methods.wrappers.base import ClientWrapper, Computed, parts
from chronofed.methods.wrappers.clipped import Clipped

LAST = "exp_last"
"""The entry of the server's state with the model of the round before."""


class FedExp(ClientWrapper, tag="fedexp"):
    r"""A step of the server that is longer the more clients disagree, around any backbone.

    With the inner backbone's step :math:`D = w'_{t+1} - w_t` and the clients' updates :math:`\Delta_i`,

    .. math:: w_{t+1} = w_t + \eta D, \qquad
        \eta = \max\left(1, \frac{\sum_i a_i \|\Delta_i\|^2}{2 (\|\sum_i a_i \Delta_i\|^2 + \epsilon)}\right)

    in every round anew. The model that is evaluated and saved is the mean of the last two, as in the
    publication: the last one swings. Nothing more is sent. It needs every client's update, so it is refused in
    ``private``.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone, which is a factor of *D*.
        epsilon: Limits the step if the mean update is small.
        average: Evaluate the mean of the last two models, instead of the last one.
    """

    needs_each = Computed(lambda self: True)
    needs_models = Computed(lambda self: True)
    reference: ClassVar[str] = (
        "Jhunjhunwala et al. (2023), FedExP: Speeding up Federated Averaging via Extrapolation"
    )

    epsilon: Positive = 1e-3
    average: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(part, Clipped) for part in parts(self.backbone)):
            raise ValueError(
                "FedExp.backbone: it would see updates before they are clipped; put FedExp inside"
            )
        if self.backbone.several_models:
            raise ValueError(
                "FedExp.backbone: it has several models, and FedExp would step one; put FedExp inside it"
            )

    def init_server(self, params: Vector, clients: int) -> Record:
        """Return the inner state, with the first model as the one before."""
        return {**self.backbone.init_server(params, clients), LAST: params.clone()}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; the model before stays on the server."""
        return self.backbone.broadcast({n: t for n, t in server.items() if n != LAST})

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Let the inner backbone aggregate, and lengthen its step."""
        inner = self.backbone.aggregate(server, uploads)
        factor = extrapolation(uploads, self.epsilon)
        params = server["params"].lerp(inner["params"], factor)
        return {**inner, "params": params, LAST: server["params"]}

    def serve(self, server: Record) -> Record:
        """Return the mean of the last two models as the one to evaluate."""
        server = super().serve(server)
        if not self.average:
            return server
        return {**server, SERVED: server["params"].lerp(server[LAST], 0.5)}


def extrapolation(uploads: Uploads, epsilon: float) -> float:
    """Return the step size, at least 1; opposite updates of the same length have a long step.

    >>> import torch
    >>> from chronofed import Upload
    >>> one, other = torch.tensor([1.0, 3.0]), torch.tensor([1.0, -3.0])
    >>> extrapolation([Upload(0.5, {"delta": one}), Upload(0.5, {"delta": other})], 1e-9)
    4.999999995
    """
    total = sum(weight for weight, _ in uploads)
    squares = sum(
        weight / total * float(upload["delta"].double().square().sum())
        for weight, upload in uploads
    )
    mean = float(weighted_mean(uploads, "delta").double().square().sum())
    return max(1.0, squares / (2 * (mean + epsilon)))

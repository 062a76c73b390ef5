"""L2GD."""

from typing import ClassVar

import torch

from chronofed.core.config import Fraction
from chronofed.core.seeds import torch_generator
from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, from_means
from chronofed.methods.local import Local


class L2gd(Backbone, tag="l2gd"):
    r"""Personal models that train for themselves and are pulled towards their mean: a mixture of both.

    .. math::
        \min_{x_1, \dots, x_n} \frac1n \sum_i f_i(x_i) + \frac{\lambda}{2n} \sum_i \|x_i - \bar x\|^2, \qquad
        x_i \gets (1 - p)\, x_i + p\, \bar x, \quad\text{then K steps}\quad x_i \gets x_i - \eta_l g_i(x_i)

    Local steps begin at a client's own model, not at the server's, which is the mean :math:`\bar x` of the
    models that clients sent last. With one step a round the models before it end in the minimum of the above
    with :math:`\lambda = \frac{p}{(1 - p)\, \eta_l}`. A pull of 1 is FedAvg, and one of 0 is local training.
    The publication tosses a coin before every step: ``train.steps = 1`` and a ``probability`` below 1. A round
    without a pull needs no messages there; here the models travel all the same.

    It sends a model each way and keeps one on the client, for ``personal_accuracy``. The clients of the
    publication count equally (``average = "clients"``). The statistics of BatchNorm start from the server's in
    every round. Public code differs: that of FedRep's authors counts client 0 twice, pulls by 1 - p in place of
    p, and takes several epochs for one gradient.

    Attributes:
        pull: Share *p* of the way to the mean.
        probability: Probability that a round begins with a pull; the same for all clients.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Hanzely and Richtarik (2020), Federated Learning of a Mixture of Global and Local Models"
    )

    pull: Fraction = 0.5
    probability: Fraction = 1.0

    def init_server(self, params: Vector, clients: int) -> Record:
        """Begin with a pull."""
        return {**super().init_server(params, clients), "pulls": _number(1.0)}

    def init_client(self, params: Vector) -> Record:
        """Start the personal model from the global one."""
        return {"personal": params.clone()}

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """Toss the coin of the round."""
        coin = torch.rand((), generator=torch_generator(seed, "l2gd", round_), dtype=torch.float64)
        return {**server, "pulls": _number(float(coin < self.probability))}

    @stacked
    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """Begin at the own model, pulled towards the mean."""
        params = server["params"]
        pull = self.pull * server["pulls"].item()
        return torch.lerp(client["personal"], params.expand_as(client["personal"]), pull)

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the distance from the mean; keep the model."""
        upload, _ = super().finish(params, server, client, local)
        return upload, {"personal": params.clone(), "buffers": local.objective.buffers}

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the models."""
        return {**server, **super().aggregate(server, uploads)}


def _number(value: float) -> Vector:
    return torch.tensor(value, dtype=torch.float64)

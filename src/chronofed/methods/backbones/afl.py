"""AFL."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import NonNegative
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.local import Local, present_loss


class Afl(Backbone, tag="afl"):
    r"""FedAvg for the worst mixture of clients: their weights rise with their losses (agnostic learning).

    .. math::
        \min_w \max_{\lambda \in \Lambda} \sum_i \lambda_i f_i(w), \qquad
        w \gets w + \eta_g \sum_i \lambda_i \Delta_i, \qquad
        \lambda \gets \mathrm{proj}_\Lambda\big(\lambda + \eta_\lambda f(w_t)\big)

    with the simplex :math:`\Lambda`. All weights are equal at first, whatever ``average`` says. The loss is the
    mean over all present samples at the model that was sent. If only some clients take part, their weights are
    scaled to the sum 1 for the model, and weight moves among them alone: nothing is known about the others. So
    a client that is away keeps its weight, and one that joins gets the mean weight; the weight of a client that
    is deleted goes to the others.

    It sends a model each way and a number up, and costs a client one more pass over its data. The server keeps
    a number for every client and has to know who sent an update, so it does not go with ``private``. The
    weights belong to clients that come back: where none does it is FedAvg with equal clients. The publication
    takes one gradient a round (``train.steps = 1``), and returns the mean of all models; here it is the last
    one, since old models are of old data. Its authors' ``fair_flearn`` has the losses of mini-batches.

    Attributes:
        weights_lr: Step size :math:`\eta_\lambda` of the weights; 0 is FedAvg with equal clients.
    """

    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "loss")
    nonnegative: ClassVar[tuple[str, ...]] = ("loss",)
    names_clients: ClassVar[bool] = True
    reference: ClassVar[str] = "Mohri et al. (2019), Agnostic Federated Learning"

    weights_lr: NonNegative = 0.1

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start with equal weights."""
        equal = torch.full((clients,), 1 / clients, dtype=torch.float64)
        return {**super().init_server(params, clients), "weights": equal}

    def enrol(self, server: Record, clients: int) -> Record:
        """Give clients that joined the mean weight, and scale all to the sum 1."""
        known = server["weights"]
        if clients <= len(known):
            return server
        joined = known.new_full((clients - len(known),), 1 / len(known))
        weights = torch.cat([known, joined])
        return {**server, "weights": weights / weights.sum()}

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """Share the weights of deleted clients among the others."""
        stay = torch.ones_like(server["weights"])
        stay[[client for client in clients if client < len(stay)]] = 0
        left = server["weights"] * stay
        weights = left if left.any() else stay
        return {**server, "weights": weights / weights.sum().clamp(min=1e-300)}

    def broadcast(self, server: Record) -> Record:
        """Send the model alone."""
        return {"params": server["params"]}

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update, and the loss at the server's model."""
        upload, state = super().finish(params, server, client, local)
        return {**upload, "loss": present_loss(server["params"], local)}, state

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates by the weights, and move weight to the clients of high loss."""
        who = torch.tensor([upload.client for upload in uploads])
        server = self.enrol(server, int(who.max()) + 1)
        losses = torch.stack([record["loss"] for _, record in uploads]).double()
        mine = server["weights"][who]
        moved = projected(mine + self.weights_lr * losses, float(mine.sum()))
        params = server["params"]
        if mine.any():
            step = weighted_mean(_weighted(uploads, mine), "delta")
            params = params.add(step, alpha=self.server_lr)
        return {"params": params, "weights": server["weights"].index_put((who,), moved)}


def _weighted(uploads: Uploads, weights: Tensor) -> Sequence[tuple[float, Record]]:
    return [(a, record) for a, (_, record) in zip(weights.tolist(), uploads, strict=True)]


def projected(values: Tensor, total: float = 1.0) -> Tensor:
    """Return the nearest numbers that are not negative and have the given sum.

    >>> projected(torch.tensor([0.6, 0.8, -1.0]))
    tensor([0.4000, 0.6000, 0.0000])
    """
    largest = values.sort(descending=True).values
    excess = (largest.cumsum(0) - total) / torch.arange(1, len(values) + 1)
    # The threshold that takes from so many of the largest what they have too much.
    kept = max(1, int((largest > excess).sum()))
    return (values - excess[kept - 1]).clamp_(min=0)

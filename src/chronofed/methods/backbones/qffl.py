"""q-FFL."""

from typing import ClassVar

import torch

from chronofed.core.config import NonNegative
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.local import Local, present_loss

# Added to every loss, as in the authors' code: a power of 0 may not exist.
SMALLEST = 1e-10


class QFfl(Backbone, tag="q-ffl"):
    r"""FedAvg that gives clients of high loss more weight, for equal accuracy: fair federated learning.

    .. math::
        \min_w \sum_i \frac{a_i}{q + 1} f_i(w)^{q+1}, \qquad
        w \gets w + \eta_g \frac{\sum_i a_i F_i^q\, \Delta_i}{\sum_i a_i \big(F_i^q + q F_i^{q-1} L
        \|\Delta_i\|^2\big)}, \qquad F_i = f_i(w_t),\; L = 1/\eta_l

    The denominator estimates the curvature of the powers, so that one ``lr`` serves every *q* (the
    publication's q-FedAvg; :math:`\Delta_i = -\eta_l\, \Delta w_i` of its notation). :math:`F_i` is the mean
    loss of all present samples; what a memory remembers does not count in it. With ``average = "clients"`` it
    is the publication's rule, in which clients are drawn by their shares and count equally. A loss must not be
    negative; one that is counts as 0.

    It sends a model each way and two numbers up, keeps nothing, and costs a client one more pass over its data.
    Powers are relative to the largest loss of a round, so that they do not overflow. FedTorch differs: it
    squares the step after scaling it, and adds up the losses of mini-batches. ``private`` does not serve it: a
    mean over clients does not have the powers of each.

    Attributes:
        q: Strength of fairness. 0 is FedAvg, large ones lower the worst loss; the publication has 0.001 to 5.
    """

    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "loss", "per_lr")
    nonnegative: ClassVar[tuple[str, ...]] = ("loss", "per_lr")
    needs_each: ClassVar[bool] = True
    reference: ClassVar[str] = "Li et al. (2020), Fair Resource Allocation in Federated Learning"

    q: NonNegative = 1.0

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update, the loss at the server's model, and one over the learning rate."""
        upload, state = super().finish(params, server, client, local)
        loss = present_loss(server["params"], local)
        per_lr = torch.tensor(1 / local.train.lr, dtype=torch.float64)
        return {**upload, "loss": loss, "per_lr": per_lr}, state

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Weigh updates by powers of the losses, and divide by the estimated curvature."""
        losses = [max(u["loss"].item(), 0.0) + SMALLEST for _, u in uploads]
        powers = [(loss / max(losses)) ** self.q for loss in losses]
        weighted = [(a * power, u) for (a, u), power in zip(uploads, powers, strict=True)]
        curved = sum(
            a * self.q / loss * max(u["per_lr"].item(), 0.0) * _square(u["delta"])
            for (a, u), loss in zip(weighted, losses, strict=True)
        )
        total = sum(a for a, _ in weighted)
        step = weighted_mean(weighted, "delta")
        shorter = self.server_lr * (total / (total + curved))
        return {"params": server["params"].add(step, alpha=shorter)}


def _square(vector: Vector) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2

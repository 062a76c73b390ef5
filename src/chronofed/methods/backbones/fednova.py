"""FedNova."""

from typing import ClassVar

import torch

from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.local import Local


def effective_steps(steps: int, momentum: float) -> float:
    r"""Compute the total weight of the local gradients in a client's update, in plain steps.

    .. math::
        w_t - w_{i,K} = \eta_l \sum_{k=1}^K \frac{1 - \rho^{K-k+1}}{1 - \rho}\, g_k, \qquad
        a_i = \frac{1}{1 - \rho} \Big(K - \frac{\rho (1 - \rho^K)}{1 - \rho}\Big)

    >>> effective_steps(3, momentum=0.0), effective_steps(2, momentum=0.5)
    (3.0, 2.5)
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class FedNova(Backbone, tag="fednova"):
    r"""Normalised averaging: the number of local steps does not change a client's weight.

    .. math::
        w \gets w + \eta_g \Big(\sum_i p_i a_i\Big) \sum_i p_i \frac{\Delta_i}{a_i}

    with :math:`a_i` the :func:`effective_steps` of client :math:`i` and :math:`p_i` its weight. If all clients
    take the same number of steps it is FedAvg.
    """

    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "steps")
    nonnegative: ClassVar[tuple[str, ...]] = ("steps",)
    reference: ClassVar[str] = (
        "Wang et al. (2020), Tackling the Objective Inconsistency Problem in Heterogeneous "
        "Federated Optimization"
    )

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update of one effective step, and the number of steps."""
        steps = effective_steps(local.steps, local.train.momentum)
        delta = (params - server["params"]).div_(steps)
        return {"delta": delta, "steps": torch.tensor(steps, dtype=torch.float64)}, client

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Take the mean number of steps in the mean direction of one step."""
        steps = weighted_mean(uploads, "steps").item()
        direction = weighted_mean(uploads, "delta")
        return {"params": server["params"].add(direction, alpha=self.server_lr * steps)}

"""FedNova."""

from typing import ClassVar

import torch

from chronofed.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.local import Local
from chronofed.types import Record, Vector


def effective_steps(steps: int, momentum: float) -> float:
    r"""Total weight of the local gradients in a client's update, counted in plain steps.

    .. math::
        w_t - w_{i,K} = \eta_l \sum_{k=1}^K \frac{1 - \rho^{K-k+1}}{1 - \rho}\, g_k, \qquad
        a_i = \frac{1}{1 - \rho} \Big(K - \frac{\rho (1 - \rho^K)}{1 - \rho}\Big)

    >>> effective_steps(3, momentum=0.0), effective_steps(2, momentum=0.5)
    (3.0, 2.5)
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class FedNova(Backbone, tag="fednova"):
    r"""Normalised averaging: clients count the same, however many steps each of them took.

    .. math::
        w \gets w + \eta_g \Big(\sum_i p_i a_i\Big) \sum_i p_i \frac{\Delta_i}{a_i}

    with :math:`a_i` the :func:`effective_steps` of client :math:`i` and :math:`p_i` its weight. Where all take
    the same number of steps it is FedAvg.
    """

    sends: ClassVar[tuple[str, ...]] = ("delta", "steps")
    counts: ClassVar[tuple[str, ...]] = ("steps",)
    reference: ClassVar[str] = (
        "Wang et al. (2020), Tackling the Objective Inconsistency Problem in Heterogeneous "
        "Federated Optimization"
    )

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update of one effective step, and how many there were."""
        steps = effective_steps(local.steps, local.train.momentum)
        delta = (params - server["params"]).div_(steps)
        return {"delta": delta, "steps": torch.tensor(steps, dtype=torch.float64)}, client

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Go on as many steps as the clients took on average, in the mean direction of one step."""
        steps = weighted_mean(uploads, "steps").item()
        direction = weighted_mean(uploads, "delta")
        return {"params": server["params"].add(direction, alpha=self.server_lr * steps)}

"""FedNova."""

from typing import ClassVar

import torch

from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, from_means, weighted_mean
from chronofed.methods.local import Local, Train


def effective_steps(steps: int, momentum: float, nesterov: bool = False) -> float:
    r"""Compute the total weight of the local gradients in a client's update, in plain steps.

    .. math::
        w_t - w_{i,K} = \eta_l \sum_{k=1}^K \frac{1 - \rho^{K-k+1}}{1 - \rho}\, g_k, \qquad
        a_i = \frac{1}{1 - \rho} \Big(K - \frac{\rho (1 - \rho^K)}{1 - \rho}\Big)

    With Nesterov's momentum every step is :math:`g_k + \rho v_k`, so that it is :math:`K + \rho a_i`.

    >>> effective_steps(3, momentum=0.0), effective_steps(2, momentum=0.5)
    (3.0, 2.5)
    >>> effective_steps(2, momentum=0.5, nesterov=True)
    3.25
    """
    weight = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    return steps + momentum * weight if nesterov else weight


def uncountable(train: Train) -> str | None:
    """Say why an update is no sum of this round's gradients with known weights; ``None`` if it is."""
    if train.optimizer != "sgd":
        return f"optimizer: steps of {train.optimizer} have no known number of plain steps"
    if train.keeps_state:
        return "optimizer_state: kept momentum holds gradients of earlier rounds"
    return None


class FedNova(Backbone, tag="fednova"):
    r"""Normalised averaging: the number of local steps does not change a client's weight.

    .. math::
        w \gets w + \eta_g \Big(\sum_i p_i a_i\Big) \sum_i p_i \frac{\Delta_i}{a_i}

    with :math:`a_i` the :func:`effective_steps` of client :math:`i` and :math:`p_i` its weight. If all clients
    take the same number of steps it is FedAvg.
    """

    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "steps")
    nonnegative: ClassVar[tuple[str, ...]] = ("steps",)
    sends_model: ClassVar[bool] = False
    reference: ClassVar[str] = (
        "Wang et al. (2020), Tackling the Objective Inconsistency Problem in Heterogeneous "
        "Federated Optimization"
    )

    def unsuited(self, train: Train) -> str | None:
        """Refuse steps that cannot be counted."""
        reason = uncountable(train)
        return reason and f"{reason}, by which FedNova divides; use sgd, reset every round"

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update of one effective step, and the number of steps."""
        train = local.train
        steps = effective_steps(local.steps, train.momentum, train.nesterov)
        delta = (params - server["params"]).div_(steps)
        return {"delta": delta, "steps": torch.tensor(steps, dtype=torch.float64)}, client

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Take the mean number of steps in the mean direction of one step."""
        steps = weighted_mean(uploads, "steps").item()
        direction = weighted_mean(uploads, "delta")
        return {"params": server["params"].add(direction, alpha=self.server_lr * steps)}

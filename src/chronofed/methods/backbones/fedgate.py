"""FedGATE."""

from typing import ClassVar

import torch

from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.backbones.fednova import effective_steps, uncountable
from chronofed.methods.local import Local, Train


class FedGate(Backbone, tag="fedgate"):
    r"""Local steps corrected by the difference between a client's and the mean update: gradient tracking.

    .. math::
        w \gets w - \eta_l (g(w) - d_i), \qquad D_i = -\frac{\Delta_i}{a_i \eta_l}, \qquad
        d_i \gets d_i + D_i - \sum_j a_j D_j

    with the number of steps :math:`a_i = K`, by which each client divides its own update (public code divides
    by that of the last client). With momentum it is FedNova's
    :func:`~chronofed.methods.backbones.fednova.effective_steps`. The weights of the clients are those of the
    models, so the weighted objective is minimised. With all clients and equal weights it is SCAFFOLD II, for a
    model and a number up, and two models down. VRL-SGD is the same with ``server_lr = 1``.

    The mean arrives one round later, with the model. So a client keeps :math:`d_i + D_i`. One that was away
    takes the mean of the latest round instead of that of its own round, which is not stored; at the minimum
    both are equal. A client that is new has :math:`d_i = 0`.
    """

    stateful: ClassVar[bool] = True
    fixed_data: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "per_length")
    nonnegative: ClassVar[tuple[str, ...]] = ("per_length",)
    reference: ClassVar[str] = (
        "Haddadpour et al. (2021), Federated Learning with Compression: Unified Analysis and Sharp "
        "Guarantees"
    )

    def unsuited(self, train: Train) -> str | None:
        """Refuse steps that cannot be counted."""
        reason = uncountable(train)
        return reason and f"{reason}, by which FedGATE divides; use sgd, reset every round"

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start the mean gradient at zero."""
        return {**super().init_server(params, clients), "mean": torch.zeros_like(params)}

    def init_client(self, params: Vector) -> Record:
        """Start without a correction."""
        return {"control": torch.zeros_like(params), "trained": params.new_zeros(1)}

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        """Corrected gradient, :math:`g - d_i`."""
        return grad.sub_(self._correction(server, client))

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update, and what turns it into a mean gradient; keep the control."""
        delta, train = params - server["params"], local.train
        length = effective_steps(local.steps, train.momentum, train.nesterov) * train.lr
        control = self._correction(server, client) - delta / length
        per_length = torch.tensor(1 / length, dtype=torch.float64)
        state = {"control": control, "trained": params.new_ones(1)}
        return {"delta": delta, "per_length": per_length}, state

    def settle(self, state: Record, sent: Record, arrived: Record) -> Record:
        """Correct the control by the part of the update that did not arrive (FedCOMGATE)."""
        lost = (arrived["delta"] - sent["delta"]) * sent["per_length"].item()
        return {**state, "control": state["control"] - lost}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates, and the mean gradients of the clients."""
        slopes = [(a, {"mean": -u["delta"] * u["per_length"].item()}) for a, u in uploads]
        return {**super().aggregate(server, uploads), "mean": weighted_mean(slopes, "mean")}

    @staticmethod
    def _correction(server: Record, client: Record) -> Vector:
        """Compute :math:`d_i`: what the client kept, minus the mean."""
        return torch.addcmul(client["control"], client["trained"], server["mean"], value=-1)

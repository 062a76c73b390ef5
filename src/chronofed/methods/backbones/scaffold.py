"""SCAFFOLD."""

from typing import ClassVar, Literal

import torch

from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.backbones.fednova import effective_steps, uncountable
from chronofed.methods.local import Local, Train


class Scaffold(Backbone, tag="scaffold"):
    r"""Stochastic controlled averaging: local steps corrected for the client's drift.

    A local step follows :math:`g - c_i + c`, with controls of the client and of the server.

    .. math::
        \text{I:}\; c_i^+ = \nabla f_i(w_t), \qquad
        \text{II:}\; c_i^+ = c_i - c + \frac{w_t - w_{i,K}}{a_i \eta_l}, \qquad
        c \gets c + \frac{|S|}{N} \cdot \frac{1}{|S|} \sum_{i \in S} (c_i^+ - c_i)

    :math:`a_i = K` is the number of steps. With momentum on the client it is FedNova's
    :func:`~chronofed.methods.backbones.fednova.effective_steps`, so that option II still averages gradients.
    Controls have equal weights, as :math:`c = \frac1N \sum_i c_i` requires; models have the weights of the
    clients. All local steps follow :math:`c`, so in either case the plain mean of the objectives is minimised.

    Attributes:
        option: New control of a client: from the steps it took (``II``) or a full gradient (``I``).
    """

    stateful: ClassVar[bool] = True
    fixed_data: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "control")
    reference: ClassVar[str] = (
        "Karimireddy et al. (2020), SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
    )

    option: Literal["I", "II"] = "II"

    def unsuited(self, train: Train) -> str | None:
        """Refuse steps that cannot be counted (option II), and gradients unlike the full one (option I)."""
        if self.option == "II":
            reason = uncountable(train)
            return reason and f"{reason}, from which SCAFFOLD's option II computes; use option I"
        if train.clip_norm is None:
            return None
        return "clip_norm: SCAFFOLD's option I needs gradients that are not clipped; use option II"

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start the control at zero; its updates need the number of clients N."""
        number = torch.tensor(clients, dtype=torch.float64)
        start = super().init_server(params, clients)
        return {**start, "control": torch.zeros_like(params), "clients": number}

    def enrol(self, server: Record, clients: int) -> Record:
        """Replace the number of clients N."""
        return {**server, "clients": torch.full_like(server["clients"], clients)}

    def init_client(self, params: Vector) -> Record:
        """Start the control at zero."""
        return {"control": torch.zeros_like(params)}

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        """Corrected gradient, :math:`g - c_i + c`."""
        return grad.sub_(client["control"]).add_(server["control"])

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update and the change of the control; keep the new control."""
        delta = params - server["params"]
        if self.option == "I":
            control = local.full_gradient(server["params"])
        else:
            train = local.train
            steps = effective_steps(local.steps, train.momentum, train.nesterov)
            control = client["control"] - server["control"] - delta / (steps * train.lr)
        return {"delta": delta, "control": control - client["control"]}, {"control": control}

    def settle(self, state: Record, sent: Record, arrived: Record) -> Record:
        """Keep the control that the server knows."""
        return {"control": state["control"] + (arrived["control"] - sent["control"])}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates; move the control by the share of clients that took part."""
        change = weighted_mean([(1.0, upload) for _, upload in uploads], "control")
        share = len(uploads) / server["clients"].item()
        control = server["control"].add(change, alpha=share)
        return {**server, **super().aggregate(server, uploads), "control": control}

"""SCAFFOLD."""

from typing import ClassVar, Literal

import torch

from chronofed.backbones.base import Backbone, Uploads, stacked, weighted_mean
from chronofed.backbones.fednova import effective_steps
from chronofed.local import Local
from chronofed.types import Record, Vector


class Scaffold(Backbone, tag="scaffold"):
    r"""Stochastic controlled averaging: local steps are corrected for the client's drift.

    A step follows :math:`g - c_i + c`, with controls of the client and of the server.

    .. math::
        \text{I:}\; c_i^+ = \nabla f_i(w_t), \qquad
        \text{II:}\; c_i^+ = c_i - c + \frac{w_t - w_{i,K}}{a_i \eta_l}, \qquad
        c \gets c + \frac{|S|}{N} \cdot \frac{1}{|S|} \sum_{i \in S} (c_i^+ - c_i)

    :math:`a_i = K`, the number of steps; with momentum on the client it is FedNova's
    :func:`~chronofed.backbones.fednova.effective_steps`, so that option II still averages gradients. Controls
    count equally, as :math:`c = \frac1N \sum_i c_i` demands; models by the weights of the clients. Since all
    local steps lead along :math:`c`, it is the plain mean of the objectives that is minimised in either case.

    Attributes:
        option: How a client renews its control: from the steps it took (``II``) or by a full gradient (``I``).
    """

    stateful: ClassVar[bool] = True
    fixed_data: ClassVar[bool] = True
    sends: ClassVar[tuple[str, ...]] = ("delta", "control")
    reference: ClassVar[str] = (
        "Karimireddy et al. (2020), SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
    )

    option: Literal["I", "II"] = "II"

    def init_server(self, params: Vector, clients: int) -> Record:
        """The control starts at zero; the number of clients N is kept for its steps."""
        number = torch.tensor(clients, dtype=torch.float64)
        start = super().init_server(params, clients)
        return {**start, "control": torch.zeros_like(params), "clients": number}

    def init_client(self, params: Vector) -> Record:
        """The control starts at zero."""
        return {"control": torch.zeros_like(params)}

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:  # noqa: ARG002
        """Corrected gradient, :math:`g - c_i + c`."""
        return grad.sub_(client["control"]).add_(server["control"])

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update and the change of the control, which the client keeps."""
        delta = params - server["params"]
        if self.option == "I":
            control = local.full_gradient(server["params"])
        else:
            steps = effective_steps(local.steps, local.train.momentum)
            control = client["control"] - server["control"] - delta / (steps * local.train.lr)
        return {"delta": delta, "control": control - client["control"]}, {"control": control}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates; the control moves by the share of the clients that took part."""
        change = weighted_mean([(1.0, upload) for _, upload in uploads], "control")
        share = len(uploads) / server["clients"].item()
        control = server["control"].add(change, alpha=share)
        return {**server, **super().aggregate(server, uploads), "control": control}

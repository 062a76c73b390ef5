"""MIFA."""

from typing import ClassVar

import torch

from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, total
from chronofed.methods.local import Local


class Mifa(Backbone, tag="mifa"):
    r"""FedAvg with the latest update of every client, also of those that are away.

    .. math:: w \gets w + \frac{\eta_g}{N} \sum_{i=1}^N \Delta_i^{\mathrm{last}}

    So a client that comes rarely counts as much as one that comes always. A client sends
    :math:`\Delta_i - \Delta_i^{\mathrm{last}}`, and the server adds these up: one model each way, one kept on
    every client and one on the server. All clients count equally, whatever ``average`` says: with all of them
    in every round and ``average = "clients"`` it is FedAvg. The update of a client that never came is 0.

    The sum is right only as long as every change arrives. What ``clipped`` cuts off, noise, and an answer on
    Flower that came too late stay wrong in the sum; so does the latest update of a client that left for ever.
    """

    stateful: ClassVar[bool] = True
    fixed_data: ClassVar[bool] = True
    sends_model: ClassVar[bool] = False
    reference: ClassVar[str] = (
        "Gu et al. (2021), Fast Federated Learning in the Presence of Arbitrary Device Unavailability"
    )

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start with updates of zero; their mean needs the number of clients N."""
        number = torch.tensor(clients, dtype=torch.float64)
        start = super().init_server(params, clients)
        return {**start, "mean": torch.zeros_like(params), "clients": number}

    def init_client(self, params: Vector) -> Record:
        """Start with an update of zero."""
        return {"last": torch.zeros_like(params)}

    def broadcast(self, server: Record) -> Record:
        """Send the model alone."""
        return {"params": server["params"]}

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the change of the update since the last visit; keep the update."""
        delta = params - server["params"]
        return {"delta": delta - client["last"]}, {"last": delta}

    def settle(self, state: Record, sent: Record, arrived: Record) -> Record:
        """Keep the update that the server knows."""
        return {"last": state["last"] + (arrived["delta"] - sent["delta"])}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Follow the mean of everybody's latest update."""
        mean = server["mean"].add(total(uploads, "delta"), alpha=1 / server["clients"].item())
        params = server["params"].add(mean, alpha=self.server_lr)
        return {"params": params, "mean": mean, "clients": server["clients"]}

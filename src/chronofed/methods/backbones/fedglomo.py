"""FedGLOMO."""

from typing import ClassVar

import torch

from chronofed.core.config import Fraction
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, from_means, weighted_mean
from chronofed.methods.local import Local, Train

OPTIMIZER = "optimizer."


class FedGlomo(Backbone, tag="fedglomo"):
    r"""Variance reduction by momentum on both sides: of the local steps, and of the mean update.

    Every client trains twice on the same mini-batches, from :math:`w_t` and from :math:`w_{t-1}`, which gives
    :math:`\Delta_i` and :math:`\Delta_i^-`. The local directions are

    .. math::
        v_0 = \nabla f_i(w), \qquad v_k = g(w_k) + v_{k-1} - g(w_{k-1}),

    where both :math:`g` use the mini-batch of step *k*. The server's update is

    .. math::
        u_t = \beta \sum_i a_i \Delta_i + (1 - \beta) \Big(u_{t-1} + \sum_i a_i (\Delta_i - \Delta_i^-)\Big),
        \qquad w \gets w + \eta_g u_t, \qquad u_0 = \sum_i a_i \Delta_i

    With exact gradients and the same clients in every round it is FedAvg for every :math:`\beta`; with
    :math:`\beta = 1` only the local directions differ from it. The compression of the publication is
    ``compressed`` around it.

    It sends two models each way, and keeps nothing on the client and two models on the server. A round costs
    two full gradients, and a step after the first four: the batched engine does not serve it. The server's
    update is that of public code. In a co-author's the local directions differ: the first is of a mini-batch,
    and the others have :math:`0.8\, (v_{k-1} - g(w_{k-1}))`.

    Attributes:
        beta: Weight :math:`\beta` of the new updates alone.
    """

    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "change")
    reference: ClassVar[str] = (
        "Das et al. (2022), Faster Non-Convex Federated Learning via Global and Local Momentum"
    )

    beta: Fraction = 0.5

    def unsuited(self, train: Train) -> str | None:
        """Refuse gradients unlike the full one, and an optimiser that only one of the two runs would keep."""
        if train.clip_norm is not None:
            return (
                "clip_norm: FedGLOMO needs gradients that are not clipped, as the full one is not"
            )
        if train.keeps_state:
            return "optimizer_state: FedGLOMO trains twice a round; use 'reset'"
        return None

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start without an update before."""
        start = super().init_server(params, clients)
        none, first = torch.zeros_like(params), torch.tensor(1.0, dtype=torch.float64)
        return {**start, "before": params.clone(), "momentum": none, "first": first}

    def broadcast(self, server: Record) -> Record:
        """Send the model, and the one before."""
        return {"params": server["params"], "before": server["before"]}

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the direction, and take the same step from the model before."""
        notes = local.scratch
        if "other" not in notes:
            notes["other"] = server["before"].clone()
            state = local.train.first_state(notes["other"])
            ours, others = (local.full_gradient(w) for w in (params, notes["other"]))
        else:
            state = {n.removeprefix(OPTIMIZER): t for n, t in notes.items() if OPTIMIZER in n}
            points = params, notes["last"], notes["other"], notes["other_last"]
            here, there, other, other_there = local.stochastic_gradients(*points)
            ours = here.sub_(there).add_(notes["ours"])
            others = other.sub_(other_there).add_(notes["others"])
        notes |= {"last": params.clone(), "ours": ours.clone()}
        notes |= {"other_last": notes["other"].clone(), "others": others.clone()}
        local.train.step_(notes["other"], others, state)
        notes |= {f"{OPTIMIZER}{name}": tensor for name, tensor in state.items()}
        return ours

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update, and its difference from that of the model before."""
        upload, state = super().finish(params, server, client, local)
        before = local.scratch["other"] - server["before"]
        return {**upload, "change": upload["delta"] - before}, state

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Correct the last update by what changed, and mix it with the new ones."""
        delta, change = (weighted_mean(uploads, name) for name in self.upload_keys)
        beta = 1.0 if server["first"].item() else self.beta
        update = (server["momentum"] + change).mul_(1 - beta).add_(delta, alpha=beta)
        return {
            "params": server["params"].add(update, alpha=self.server_lr),
            "before": server["params"],
            "momentum": update,
            "first": torch.zeros_like(server["first"]),
        }

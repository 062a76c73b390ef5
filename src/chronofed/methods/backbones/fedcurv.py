"""FedCurv."""

from typing import ClassVar

import torch

from chronofed.core.config import NonNegative
from chronofed.core.stacking import stacked
from chronofed.core.types import Batch, Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, total
from chronofed.methods.local import Local, one_client


class FedCurv(Backbone, tag="fedcurv"):
    r"""FedAvg whose clients stay near each other where the others' losses are curved: EWC among clients.

    Client *s* minimises, with the ends :math:`w_j` of the clients :math:`\mathcal{S}_{t-1}` of the round before
    and their empirical Fisher diagonals :math:`I_j` there,

    .. math::
        f_s(w) + \lambda \sum_{j \in \mathcal{S}_{t-1},\, j \ne s} (w - w_j)^\top I_j (w - w_j), \qquad
        \nabla = \nabla f_s + 2\lambda \big((U - I_s)\, w - (V - I_s w_s)\big),

    with :math:`U = \sum_j I_j` and :math:`V = \sum_j I_j w_j`. There is no factor 1/2, and clients count
    equally in both sums. A client takes its own term out only if it was there in the round before, so it keeps
    the number of that round with it. Where :math:`U - I_s` is not positive (after clipping, or with
    the noise of ``private``) there is no penalty.

    It sends three models each way and keeps two on the client. The Fisher diagonals are of the present samples,
    by sample. Public code differs: OpenFL keeps that of the last mini-batch and squares the mean gradient of a
    batch, and FedReg's version never takes the own term out. So :math:`\lambda` cannot be carried over.

    Attributes:
        strength: Weight :math:`\lambda` of the penalty; 0 is FedAvg. Public settings are between 1e-5 and 1e-3.
    """

    stateful: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("delta", "fisher", "pull")
    nonnegative: ClassVar[tuple[str, ...]] = ("fisher",)
    curvatures: ClassVar[tuple[str, ...]] = ("fisher", "pull")
    reference: ClassVar[str] = (
        "Shoham et al. (2019), Overcoming Forgetting in Federated Learning on Non-IID Data"
    )

    strength: NonNegative = 1e-3

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start without curvature, and count rounds."""
        start = super().init_server(params, clients)
        return {**start, **_nothing(params), "rounds": torch.zeros(1, dtype=torch.float64)}

    def init_client(self, params: Vector) -> Record:
        """Start without a term of its own in any round."""
        return {**_nothing(params), "rounds": torch.full((1,), -1.0, dtype=torch.float64)}

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        r"""Add the gradient of the penalty, :math:`2\lambda ((U - I_s) w - (V - I_s w_s))`."""
        own = (client["rounds"] == server["rounds"]).to(params.dtype)
        fisher = server["fisher"] - own * client["fisher"]
        pull = server["pull"] - own * client["pull"]
        penalty = torch.addcmul(-pull, fisher, params).where(fisher > 0, torch.zeros_like(fisher))
        return grad.add_(penalty, alpha=2 * self.strength)

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update and the curvature at its end; keep the latter."""
        upload, _ = super().finish(params, server, client, local)
        batch = Batch.mean(one_client(local).samples)
        fisher = local.objective.squared_gradients(params, batch, (slice(0, len(params)),))
        own = {"fisher": fisher, "pull": fisher * params}
        return {**upload, **own}, {**own, "rounds": server["rounds"] + 1}

    def settle(self, state: Record, sent: Record, arrived: Record) -> Record:
        """Keep the term that the server knows."""
        return {**state, "fisher": arrived["fisher"], "pull": arrived["pull"]}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the updates, and add up the curvatures."""
        sums = {name: total(uploads, name) for name in ("fisher", "pull")}
        return {**super().aggregate(server, uploads), **sums, "rounds": server["rounds"] + 1}


def _nothing(params: Vector) -> Record:
    return {"fisher": torch.zeros_like(params), "pull": torch.zeros_like(params)}

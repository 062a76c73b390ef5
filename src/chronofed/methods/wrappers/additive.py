"""Additive: the idea of FedWeIT."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch.nn.functional import softshrink

from chronofed.core.config import NonNegative
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.layers import layer_factors
from chronofed.methods.local import Local, with_sources
from chronofed.methods.wrappers.base import Added, ClientWrapper


class Additive(ClientWrapper, tag="additive"):
    r"""A shared model plus a sparse one of every client, with the others' at hand: the idea of FedWeIT.

    Client *i* trains and uses

    .. math:: \theta_i = B + A_i + \alpha_i \bar A_{-i}, \qquad
        f_i(\theta_i) + \lambda \|A_i\|_1,

    with the server's model *B*, its own :math:`A_i`, the mean :math:`\bar A_{-i}` of what other clients sent
    last, and one number :math:`\alpha_i` for each parameter tensor. All three take a step together, with the
    gradient *g* in :math:`\theta_i`: *B* as in the inner backbone, :math:`A_i` by
    :math:`A \gets \mathrm{soft}(A - \eta g, \eta\lambda)`, :math:`\alpha` along
    :math:`\langle g, \bar A_{-i} \rangle`; the latter two without momentum. Large :math:`\lambda` is the inner
    backbone. The personal model :math:`\theta_i` is measured by ``personal_accuracy``.

    FedWeIT itself is not here: it has masks of units, an :math:`A` for every task, attention over single
    ones of other clients, a penalty against drift, and a head for every task. This stands in for it.

    Two models travel each way, a client keeps three, and the server one for every client. A memory sees the
    shared model. A client whose sample is deleted starts anew with :math:`A_i = 0`, and the server's copy
    follows with its next visit; that of a deleted client goes at once. The batched engine does not serve it,
    nor does ``private``, which hides who sent what.

    Attributes:
        backbone: The inner backbone.
        sparsity: Weight :math:`\lambda` of the l1 penalty. The publication's 0.001 leaves about half of what is
            learnt in the clients' own parts, so that the server's model learns at half the speed.
        transfer: Factor of the learning rate for :math:`\alpha`; 0: nothing of other clients is used.
        layers: Patterns for names of parameters that have an :math:`A`, such as ``fc.*``; by default all.
        server_lr: Unused: set that of the inner backbone.
    """

    stateful: ClassVar[bool] = True
    upload_keys = Added("adaptive")
    sends_model = False
    reference: ClassVar[str] = (
        "Yoon et al. (2021), Federated Continual Learning with Weighted Inter-client Transfer (FedWeIT)"
    )

    sparsity: NonNegative = 0.1
    transfer: NonNegative = 1.0
    layers: tuple[str, ...] = ("*",)

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start with zeros for every client, of which nobody has sent any."""
        own = {
            "additive_parts": params.new_zeros(clients, len(params)),
            "additive_known": torch.zeros(clients, dtype=torch.float64),
        }
        return {**self.backbone.init_server(params, clients), **own}

    def enrol(self, server: Record, clients: int) -> Record:
        """Make room for clients that joined."""
        more = clients - len(server["additive_known"])
        own = {
            name: torch.cat([server[name], server[name].new_zeros(more, *server[name].shape[1:])])
            for name in ("additive_parts", "additive_known")
            if more > 0
        }
        return {**server, **self.backbone.enrol(_inner(server), clients), **own}

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """As the inner backbone, and without the parts of these clients."""
        parts, known = server["additive_parts"].clone(), server["additive_known"].clone()
        for client in clients:
            parts[client : client + 1], known[client : client + 1] = 0, 0
        inner = self.backbone.forget(_inner(server), clients)
        return {**inner, "additive_parts": parts, "additive_known": known}

    def init_client(self, params: Vector) -> Record:
        """Start with a part of zero, and nothing from others."""
        own = {"additive_own": torch.zeros_like(params), "additive_alpha": params[:0].clone()}
        none = torch.empty(0, dtype=torch.int64)
        first = {"sources": none, **self.backbone.init_client(params)}
        return {**first, "personal": params.clone(), **own}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone, and what :meth:`address` needs."""
        own = {name: t for name, t in server.items() if name.startswith("additive_")}
        return {**self.backbone.broadcast(_inner(server)), **own}

    def address(self, sent: Record, client: int) -> Record:
        """Send a client the mean of what others sent last; zeros if nobody did."""
        known = sent["additive_known"].clone()
        if client < len(known):
            known[client] = 0
        weights = (known / known.sum().clamp(min=1)).to(sent["additive_parts"])
        inner = self.backbone.address(_inner(sent), client)
        return {**inner, "others": weights @ sent["additive_parts"]}

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """As the inner backbone; note the client's own part, and how much it uses of others'."""
        alpha = client["additive_alpha"]
        if not len(alpha):
            alpha = server["params"].new_zeros(len(local.objective.names))
        mask = layer_factors(dict.fromkeys(self.layers, 1.0), local.objective, server["params"])
        own = client["additive_own"]
        local.scratch.update(additive_own=own, additive_alpha=alpha, additive_mask=mask)
        return self.backbone.start(server, client, local)

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the inner backbone's gradient at the sum, and step with the client's own parts."""
        notes, lr = local.scratch, local.train.lr
        gradient = self.backbone.gradient(self._sum(params, server, local), server, local)
        stepped = notes["additive_own"].sub(gradient, alpha=lr)
        own = softshrink(stepped, min(lr * self.sparsity, 1e30)).mul_(notes["additive_mask"])
        slopes = torch.stack(
            [gradient[span] @ server["others"][span] for span in local.objective.names.values()]
        )
        alpha = notes["additive_alpha"].sub(slopes, alpha=lr * self.transfer)
        notes.update(additive_own=own, additive_alpha=alpha)
        return gradient

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the client's part with the update; keep it, and the personal model with its buffers."""
        upload, state = self.backbone.finish(params, server, client, local)
        names = ("additive_own", "additive_alpha")
        own = {name: local.scratch[name].clone() for name in names}
        personal = {
            "personal": self._sum(params, server, local),
            "buffers": local.objective.buffers,
            "sources": with_sources(client["sources"], local),
        }
        return {**upload, "adaptive": own["additive_own"]}, {**state, **own, **personal}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Let the inner backbone aggregate, and keep what every client sent."""
        parts, known = server["additive_parts"].clone(), server["additive_known"].clone()
        for upload in uploads:
            parts[upload.client], known[upload.client] = upload[1]["adaptive"], 1.0
        return {
            **self.backbone.aggregate(_inner(server), uploads),
            "additive_parts": parts,
            "additive_known": known,
        }

    def _sum(self, params: Vector, server: Record, local: Local) -> Vector:
        r"""Return :math:`\theta = B + A + \alpha \bar A`."""
        found = params + local.scratch["additive_own"]
        alpha = local.scratch["additive_alpha"]
        for number, span in enumerate(local.objective.names.values()):
            found[span] += alpha[number] * server["others"][span]
        return found


def _inner(server: Record) -> Record:
    return {name: tensor for name, tensor in server.items() if not name.startswith("additive_")}

"""FedRep."""

from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import Count
from chronofed.core.errors import SpecError
from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, from_means, weighted_mean
from chronofed.methods.local import Local, Train


class FedRep(Backbone, tag="fedrep"):
    r"""A shared body and a personal head on every client, which train one after the other.

    .. math::
        h_i \gets h_i - \eta_l \nabla_h f_i(B_t, h_i), \quad\text{then}\quad
        B_i \gets B_i - \eta_l \nabla_B f_i(B_i, h_i), \qquad B \gets B + \eta_g \sum_i a_i (B_i - B_t)

    First the head takes its steps with the body held still, ``head_passes`` times as many as ``train`` says;
    then the body takes its own with the head held still. Heads never leave their clients, so the head of the
    global model stays as it was at first: look at ``personal_accuracy``. Without a head it is FedAvg, and with
    nothing else it is local training.

    It receives a model, sends the parameters up to the last one of the body (in the models of this package that
    is the body; a linear model has none), and keeps a model on the client. Both phases cost gradients of the
    whole model. Public code differs: that of the authors averages the heads too and overwrites them again,
    which has the same effect for more traffic. ``a-gem`` and ``gem`` around it also move the head while the
    body trains.

    Attributes:
        layers: Parameters of the head, by patterns such as ``fc.*``.
        head_passes: Passes of the head for one of the body. The authors' code has nine or four epochs and one.
    """

    stateful: ClassVar[bool] = True
    sends_model: ClassVar[bool] = False
    reference: ClassVar[str] = (
        "Collins et al. (2021), Exploiting Shared Representations for Personalized Federated Learning"
    )

    layers: tuple[str, ...] = ("fc.*",)
    head_passes: Count = 1

    def unsuited(self, train: Train) -> str | None:
        """Refuse a decay that would move what is held still."""
        if train.optimizer == "adamw" and train.weight_decay:
            return "weight_decay: adamw's would shrink the part that FedRep holds still; use 0"
        return None

    def init_client(self, params: Vector) -> Record:
        """Start the personal model from the global one."""
        return {"personal": params.clone()}

    @stacked
    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """Join the own head and the shared body, and train the head."""
        head, params = self._head(local), server["params"]
        whole = torch.where(head, client["personal"], params)
        if not head.any():
            return whole
        for _ in range(self.head_passes):
            whole = local.descend(
                whole, lambda w: _of_part(head, local.stochastic_gradient(w), w, local)
            )
        return torch.where(head, whole, params)

    @stacked
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the gradient of the body alone."""
        return _of_part(~self._head(local), local.stochastic_gradient(params), params, local)

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update of the body; keep the whole model."""
        body = ~self._head(local)
        stop = int(body.nonzero().max()) + 1 if body.any() else 0
        delta = ((params - server["params"]) * body)[..., :stop]
        return {"delta": delta}, {"personal": params.clone(), "buffers": local.objective.buffers}

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Average the bodies."""
        step, params = weighted_mean(uploads, "delta"), server["params"].clone()
        params[: len(step)].add_(step, alpha=self.server_lr)
        return {"params": params}

    def _head(self, local: Local) -> Tensor:
        """Return which parameters belong to the head, ``(d,)``."""
        names = local.objective.names
        chosen = [n for n in names if any(fnmatchcase(n, pattern) for pattern in self.layers)]
        if self.layers and not chosen:
            raise SpecError(
                f"method.backbone.layers: no parameter of the model matches {', '.join(self.layers)}; "
                f"its parameters are {', '.join(names)}"
            )
        head = torch.zeros(max(span.stop for span in names.values()), dtype=torch.bool)
        for name in chosen:
            head[names[name]] = True
        return head


def _of_part(part: Tensor, gradient: Vector, params: Vector, local: Local) -> Vector:
    """Keep the gradient of some parameters, in place; the decay of the others, which comes later, is undone."""
    gradient.mul_(part)
    decay = local.train.weight_decay
    return gradient.addcmul_(params, (~part).to(params), value=-decay) if decay else gradient

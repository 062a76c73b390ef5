"""pFedMe."""

from dataclasses import replace
from itertools import repeat
from typing import ClassVar

from chronofed.core.config import Count, Positive
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.local import ClientLocal, Local, one_client


class PFedMe(Backbone, tag="pfedme"):
    r"""Personal models by proximal steps, whose mean distance moves the global one (Moreau envelopes).

    .. math::
        \min_w \sum_i a_i F_i(w), \qquad F_i(w) = \min_\theta\; f_i(\theta) + \frac{\lambda}{2}\|\theta - w\|^2,
        \qquad w \gets w - \eta_l\, \lambda (w - \theta(w))

    Every local step finds :math:`\theta(w)` by ``inner`` gradient steps from *w*, all on one mini-batch. The
    personal model that a client keeps, for ``personal_accuracy``, is :math:`\theta` of the model that it sends.
    The publication's :math:`\beta` is ``server_lr``, and its clients count equally (``average = "clients"``).

    It sends a model each way, keeps one on the client, and a step costs ``inner`` gradients. The batched engine
    does not serve it. Public code differs: it has a hidden weight decay of 0.001 in the inner steps, does not
    return to *w* between local steps, and weighs clients by samples.

    Attributes:
        tie: Weight :math:`\lambda` of the tie between personal and global model; large ones are plain SGD.
        inner: Gradient steps that find the personal model.
        inner_lr: Step size of these; with ``tie`` it must stay well below 2.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Dinh et al. (2020), Personalized Federated Learning with Moreau Envelopes"
    )

    tie: Positive = 15.0
    inner: Count = 5
    inner_lr: Positive = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_lr * self.tie >= 2:
            msg = (
                f"PFedMe.inner_lr: inner_lr * tie = {self.inner_lr * self.tie:g}, but steps diverge "
                "from 2 on; choose a smaller inner_lr"
            )
            raise ValueError(msg)

    def init_client(self, params: Vector) -> Record:
        """Start the personal model from the global one."""
        return {"personal": params.clone()}

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        r"""Compute the gradient of the envelope, :math:`\lambda (w - \theta(w))`."""
        return (params - self._personal(params, local)).mul_(self.tie)

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update; keep the personal model, which has its own buffers."""
        upload, _ = super().finish(params, server, client, local)
        shared = local.objective.buffers
        personal = self._personal(params, local)
        state = {"personal": personal, "buffers": local.objective.buffers}
        local.objective.buffers = shared
        return upload, state

    def _personal(self, params: Vector, local: Local) -> Vector:
        """Descend from the global model, with the tie, on the next mini-batch."""
        same, theta = one_batch(one_client(local)), params.clone()
        for _ in range(self.inner):
            step = same.stochastic_gradient(theta).add_(theta - params, alpha=self.tie)
            theta.sub_(step, alpha=self.inner_lr)
        return theta


def one_batch(local: ClientLocal) -> ClientLocal:
    """Draw the next mini-batch, and return a problem that has only this one."""
    same = replace(local)
    object.__setattr__(same, "_draws", repeat(local.draw()))
    return same

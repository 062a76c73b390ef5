"""FedLin."""

from typing import ClassVar

import torch

from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.backbones.fednova import effective_steps, uncountable
from chronofed.methods.local import Local, Train


class FedLin(Backbone, tag="fedlin"):
    r"""Corrected local steps of equal total length, whatever the number of steps that a client takes.

    .. math::
        w \gets w - \eta_l \frac{\bar K}{K_i} \big(g(w) - g(w_t) + c\big), \qquad
        c = \sum_i a_i \nabla f_i(w_t), \qquad \bar K = \sum_i a_i K_i

    Both :math:`g` use the same mini-batch. The publication has the step :math:`\eta/K_i`; here
    :math:`\eta = \eta_l \bar K`, so that ``lr`` keeps its meaning. If all clients take equally many steps it is
    Mime without momentum. If they do not (``train.slow``, or ``epochs`` of data sets of different sizes) it
    still ends in the minimum, where FedAvg does not. With momentum, :math:`K_i` is FedNova's
    :func:`~chronofed.methods.backbones.fednova.effective_steps`.

    Clients send the full gradient and the number of steps in an extra exchange before they train, and get
    :math:`c` back: two models each way. Nothing is kept. A client's steps have a length of its own, so the
    batched engine does not serve it. Sparse gradients, an option of the publication, are not here.
    """

    two_phase: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("gradient", "steps", "delta")
    nonnegative: ClassVar[tuple[str, ...]] = ("steps",)
    reference: ClassVar[str] = (
        "Mitra et al. (2021), Linear Convergence in Federated Learning: Tackling Client "
        "Heterogeneity and Sparse Gradients"
    )

    def unsuited(self, train: Train) -> str | None:
        """Refuse steps that cannot be counted, and gradients unlike the full one."""
        if train.clip_norm is not None:
            return "clip_norm: FedLin needs gradients that are not clipped, as the full one is not"
        reason = uncountable(train)
        return reason and f"{reason}, by which FedLin divides; use sgd, reset every round"

    def prepare(self, server: Record, local: Local) -> Record:
        """Send the full gradient at the server's model, and the number of steps."""
        steps = torch.tensor(_steps(local), dtype=torch.float64)
        return {"gradient": local.full_gradient(server["params"]), "steps": steps}

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Add the mean gradient and the mean number of steps of this round's clients."""
        control, steps = (weighted_mean(uploads, name) for name in ("gradient", "steps"))
        return {**server, "control": control, "steps": steps}

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute one mini-batch's gradient, minus its error at the server's model, to scale."""
        here, there = local.stochastic_gradients(params, server["params"])
        return here.sub_(there).add_(server["control"]).mul_(server["steps"].item() / _steps(local))


def _steps(local: Local) -> float:
    return effective_steps(local.steps, local.train.momentum, local.train.nesterov)

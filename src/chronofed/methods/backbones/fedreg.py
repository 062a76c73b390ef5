"""FedReg."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import Fraction, Natural
from chronofed.core.types import Batch, Record, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.backbones.pfedme import one_batch
from chronofed.methods.local import ClientLocal, Local, Train, one_client


class FedReg(Backbone, tag="fedreg"):
    r"""FedAvg whose local steps must not undo what the server's model says about made samples.

    Samples are made of the client's own by *E* steps :math:`x \gets x + \eta\, \mathrm{sign}\, \nabla_x \ell`
    with the server's model :math:`w_t`, within the range of all samples: *pseudo* ones with long steps,
    whose targets are the outputs of :math:`w_t`, and *perturbed* ones with short steps and the true labels. A
    local step is

    .. math::
        w' &= w - \eta_l \nabla f(\gamma w + (1 - \gamma) w_t), \qquad v = \tfrac12 (w' + w_t) \\
        w &\gets w' - a g_2 - b g_3, \quad
        a = \frac{\langle w' - w_t, g_2\rangle_+}{\|g_2\|^2}, \quad
        b = \frac{\langle w' - w_t - a g_2, g_3\rangle_+}{\|g_3\|^2}

    with the gradients :math:`g_2, g_3` at *v* of the loss of pseudo and of perturbed samples. So what was
    learnt in a round does not point against either. Clients count equally in the publication
    (``average = "clients"``).

    It keeps nothing and sends as FedAvg. A sample costs ``2 steps`` gradients in its input, once a round, and a
    local step three gradients. It needs plain steps, without momentum or weight decay, and the batched engine
    does not serve it. The publication has steps of absolute length, for images. Public code differs: its clamp
    has no effect, and on a CPU the made samples overwrite those that are trained on. Its option of masked
    gradients is not here. Of a regression, pseudo samples have the squared error to the outputs of
    :math:`w_t`.

    Attributes:
        mix: Share :math:`\gamma` of the client's own model in the point of the gradient; 1 is that of FedAvg.
        steps: Steps *E* that make a sample; 0 for no made samples at all.
        pseudo: Length of the steps of pseudo samples, as a share of the range of all samples' numbers; that of
            images is 0 to 1. Short steps hold a small model where it is.
        perturbed: Length of the steps of perturbed samples, likewise.
    """

    reference: ClassVar[str] = (
        "Xu et al. (2022), Acceleration of Federated Learning with Alleviated Forgetting in Local Training"
    )

    mix: Fraction = 0.5
    steps: Natural = 10
    pseudo: Fraction = 0.1
    perturbed: Fraction = 0.001

    def unsuited(self, train: Train) -> str | None:
        """Refuse everything but plain steps: corrections have a length of their own."""
        if train.optimizer != "sgd":
            return f"optimizer: FedReg needs plain steps, not {train.optimizer}; use sgd"
        for name in ("momentum", "weight_decay"):
            if getattr(train, name):
                return f"{name}: FedReg needs plain steps; set it to 0"
        return None

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the direction whose step ends at the corrected model."""
        same = one_batch(one_client(local))
        found = same.stochastic_gradient(torch.lerp(server["params"], params, self.mix))
        if not self.steps:
            return found
        lr, moved = local.train.lr, params - server["params"] - local.train.lr * found
        made = self._made(server["params"], same)
        correction = torch.zeros_like(found)
        for gradient in made.gradients(server["params"] + moved / 2, same):
            correction.add_(along(moved - correction, gradient))
        return found.add_(correction, alpha=1 / lr)

    def _made(self, shared: Vector, local: ClientLocal) -> "_Made":
        """Make the samples of the mini-batch, as far as they are not made yet."""
        notes, n = local.scratch, len(local.pool)
        pick, weight = local.draw()
        ready = notes.setdefault("fedreg_ready", torch.zeros(n, dtype=torch.bool))
        missing = torch.unique(pick[~ready[pick]])
        if len(missing):
            some = local.pool.samples[missing]
            x = local.objective.encode(some.x)
            for name, length in (("pseudo", self.pseudo), ("perturbed", self.perturbed)):
                found = self._climbed(x, some.y, length, shared, local)
                kept = notes.setdefault(f"fedreg_{name}", found.new_empty(n, *found.shape[1:]))
                kept[missing] = found
            ready[missing] = True
        pseudo, perturbed = (notes[f"fedreg_{name}"][pick] for name in ("pseudo", "perturbed"))
        return _Made(pseudo, perturbed, local.pool.samples.y[pick], weight.abs(), shared)

    def _climbed(
        self, x: Tensor, y: Tensor, length: float, shared: Vector, local: ClientLocal
    ) -> Tensor:
        """Ascend every sample's loss by steps of equal length, within the range of all samples."""
        low, high = _range(local)
        for _ in range(self.steps):
            slope = local.objective.input_gradient(shared, x, y)
            x = (x + slope.sign() * (high - low) * length).clamp_(low, high)
        return x


def _range(local: ClientLocal) -> tuple[Tensor, Tensor]:
    """Return the least and the largest number in all samples of training."""
    if "fedreg_range" not in local.scratch:
        every = local.objective.encode(local.pool.samples.x)
        local.scratch["fedreg_range"] = torch.stack(every.aminmax())
    low, high = local.scratch["fedreg_range"]
    return low, high


@dataclass(frozen=True, slots=True)
class _Made:
    """Made samples of a mini-batch, with their labels and weights, and the model that they are made with."""

    pseudo: Tensor
    perturbed: Tensor
    y: Tensor
    weight: Tensor
    shared: Vector

    def gradients(self, params: Vector, local: ClientLocal) -> tuple[Vector, Vector]:
        """Compute the gradients of their mean losses; the model's buffers do not change."""
        objective, buffers = local.objective, local.objective.buffers
        rest = self.y, self.weight / self.weight.sum()
        logits = objective.logits(self.shared, self.pseudo)
        first = objective.distilled(params, Batch(self.pseudo, *rest), logits, 1.0)
        second = objective.gradient(params, Batch(self.perturbed, *rest))
        objective.buffers = buffers
        return first, second


def along(moved: Vector, gradient: Vector) -> Vector:
    r"""Return the part of a movement along a gradient, :math:`\max(0, m^\top g) g / \|g\|^2`.

    In double precision: a gradient may be so small that one over its square is no single number.
    """
    wide = gradient.double()
    square, product = float(wide @ wide), float(moved.double() @ wide)
    return (product / square * wide).to(moved) if product > 0 < square else torch.zeros_like(moved)

r"""The step rules of local training, in place, on ``(d,)`` or on ``(clients, d)``.

A rule has a state, a record of tensors with one row for each client: nothing for plain steps, the velocity of
momentum, and the two running means of AdamW with the number of its steps.
"""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

State: TypeAlias = Mapping[str, Tensor]
"""Changed in place by every step."""


def sgd_state(params: Tensor, momentum: float) -> dict[str, Tensor]:
    """Return the state before the first step of SGD."""
    return {"velocity": torch.zeros_like(params)} if momentum else {}


def adamw_state(params: Tensor) -> dict[str, Tensor]:
    """Return the state before the first step of AdamW; every client has its own number of steps."""
    steps = torch.zeros((*params.shape[:-1], 1), dtype=torch.float64)
    return {"mean": torch.zeros_like(params), "square": torch.zeros_like(params), "steps": steps}


def sgd_(
    params: Tensor,
    gradient: Tensor,
    state: State,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> None:
    r"""Take a step of SGD; ``gradient`` is modified.

    .. math::
        g \gets g + \lambda w, \qquad v \gets \rho v + g, \qquad
        w \gets w - \eta v \quad\text{or, for Nesterov,}\quad w \gets w - \eta (g + \rho v)
    """
    if weight_decay:
        gradient.add_(params, alpha=weight_decay)
    step = gradient
    if momentum:
        velocity = state["velocity"].mul_(momentum).add_(gradient)
        step = gradient.add_(velocity, alpha=momentum) if nesterov else velocity
    params.sub_(step, alpha=lr)


def adamw_(
    params: Tensor,
    gradient: Tensor,
    state: State,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    r"""Take a step of AdamW (Loshchilov and Hutter, 2019), with bias correction and decoupled weight decay.

    .. math::
        m \gets \beta_1 m + (1 - \beta_1) g, \quad s \gets \beta_2 s + (1 - \beta_2) g^2, \quad
        w \gets (1 - \eta\lambda) w
        - \eta \frac{m / (1 - \beta_1^k)}{\sqrt{s / (1 - \beta_2^k)} + \epsilon}
    """
    first, second = betas
    mean = state["mean"].lerp_(gradient, 1 - first)
    square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
    steps = state["steps"].add_(1)
    scale = (1 - second**steps).sqrt().to(params)
    rate = (lr / (1 - first**steps)).to(params)
    if weight_decay:
        params.mul_(1 - lr * weight_decay)
    params.sub_(mean.div(square.sqrt().div_(scale).add_(eps)).mul_(rate))


def clip_(gradient: Tensor, bound: float) -> None:
    r"""Scale a gradient, or each row of several, to a norm of at most :math:`B`: :math:`g \min(1, B/\|g\|)`."""
    norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    gradient.mul_((bound / norm).clamp_(max=1.0))

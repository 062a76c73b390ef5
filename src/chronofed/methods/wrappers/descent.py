"""Descent on the server: Adam with a cosine schedule."""

import math
from collections.abc import Callable

import torch

from chronofed.core.types import Vector
from chronofed.methods.optimizers import adamw_, adamw_state, clip_

ROUNDING = 16
"""Norm below which a gradient is rounding alone, in units of the type's precision."""


def adam(
    start: Vector,
    gradient: Callable[[Vector, int], Vector],
    steps: int,
    lr: float,
    clip_norm: float | None = None,
) -> Vector:
    r"""Return where steps of Adam end; step *k* has the rate :math:`\eta (1 + \cos(\pi k / K)) / 2`.

    Adam divides by the size of gradients, so it would make full steps of mere rounding. A gradient whose norm
    is below 16 times the precision of its type counts as 0.

    Args:
        start: The first point; it is not changed.
        gradient: Returns the gradient at a point, in a step by number; the result is modified.
        steps: Number of steps *K*.
        lr: First rate :math:`\eta`.
        clip_norm: Largest norm of a gradient; longer ones are scaled down.

    >>> adam(torch.ones(2), lambda point, _: 2 * point, steps=200, lr=0.1).abs().max() < 1e-2
    tensor(True)
    """
    params, state = start.clone(), adamw_state(start)
    least = ROUNDING * torch.finfo(start.dtype).eps
    for step in range(steps):
        found = gradient(params, step)
        if float(torch.linalg.vector_norm(found)) < least:
            found = torch.zeros_like(found)
        elif clip_norm is not None:
            clip_(found, clip_norm)
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2
        adamw_(params, found, state, rate, 0.0, (0.9, 0.999), 1e-8)
    return params

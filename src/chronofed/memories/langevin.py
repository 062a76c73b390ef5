"""Langevin dynamics: samples of a distribution from the gradient of its energy."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor


def langevin(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    lr: float,
    noise: float,
    generator: Generator,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    r"""Walk down a noisy slope: :math:`x \gets x - \eta \nabla E(x) + \sqrt{2\eta}\,\sigma\,\mathcal N(0, I)`.

    With :math:`\sigma = 1` and small :math:`\eta` the walk ends up distributed as :math:`e^{-E}`; in general
    as :math:`e^{-E/\sigma^2}`, so that less noise means samples nearer to the minima.

    Args:
        gradient: Of the energy; all samples at once.
        start: Where the walks begin, ``(n, ...)``; it is left as it is.
        steps: Number of steps.
        lr: Step size :math:`\eta`.
        noise: Scale of the noise :math:`\sigma`.
        generator: Where the noise comes from.
        bounds: Least and largest values; a walk that would leave them is put back to the nearest.

    Returns:
        Where the walks end.
    """
    x = start
    for _ in range(steps):
        kick = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        x = x.sub(gradient(x), alpha=lr).add_(kick, alpha=math.sqrt(2 * lr) * noise)
        if bounds is not None:
            x = x.clamp_(*bounds)
    return x

"""Langevin dynamics: draw samples of a distribution from the gradient of its energy."""

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
    r"""Descend with noise: :math:`x \gets x - \eta \nabla E(x) + \sqrt{2\eta}\,\sigma\,\mathcal N(0, I)`.

    For small :math:`\eta` the samples tend to the distribution :math:`e^{-E/\sigma^2}`, which is :math:`e^{-E}`
    for :math:`\sigma = 1`. Less noise means samples nearer to the minima.

    Args:
        gradient: Gradient of the energy, for all samples at once.
        start: First samples, ``(n, ...)``; not modified.
        steps: Number of steps.
        lr: Step size :math:`\eta`.
        noise: Scale of the noise :math:`\sigma`.
        generator: Source of the noise.
        bounds: Smallest and largest values, to which every step is clamped.

    Returns:
        The samples after the last step.
    """
    x = start
    for _ in range(steps):
        kick = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        x = x.sub(gradient(x), alpha=lr).add_(kick, alpha=math.sqrt(2 * lr) * noise)
        if bounds is not None:
            x = x.clamp_(*bounds)
    return x

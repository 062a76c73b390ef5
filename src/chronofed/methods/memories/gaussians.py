"""Means and covariances by class, which are merged exactly."""

import torch
from torch import Tensor

from chronofed.core.types import Record


def moments(data: Tensor, codes: Tensor, classes: int, *, full: bool) -> Record:
    r"""Compute count, mean and scatter :math:`\sum_j (x_j - \mu)(x_j - \mu)^\top` of every class.

    Args:
        data: Samples, ``(n, k)`` in double precision.
        codes: Class of each, ``(n,)``.
        classes: Number of classes.
        full: Whether scatter is ``(classes, k, k)``; otherwise its diagonal, ``(classes, k)``.
    """
    counts = codes.bincount(minlength=classes).to(data.dtype)
    mean = data.new_zeros(classes, data.shape[1]).index_add_(0, codes, data)
    mean /= counts.clamp(min=1)[:, None]
    apart = data - mean[codes]
    if not full:
        return {"counts": counts, "mean": mean, "scatter": _by_class(apart.square(), codes, mean)}
    scatter = [part.T @ part for part in (apart[codes == c] for c in range(classes))]
    return {"counts": counts, "mean": mean, "scatter": torch.stack(scatter)}


def merged(one: Record, other: Record) -> Record:
    r"""Return the moments of the union of two sets of samples (Chan et al., 1979).

    .. math:: \mu = \mu_1 + \frac{n_2}{n} \delta, \qquad
        S = S_1 + S_2 + \frac{n_1 n_2}{n}\, \delta\delta^\top, \qquad \delta = \mu_2 - \mu_1
    """
    first, second = one["counts"], other["counts"]
    counts = first + second
    n = counts.clamp(min=1)
    delta = other["mean"] - one["mean"]
    mean = one["mean"] + (second / n)[:, None] * delta
    factor = first * second / n
    if one["scatter"].dim() == 2:
        between = factor[:, None] * delta.square()
    else:
        between = factor[:, None, None] * delta[:, :, None] * delta[:, None, :]
    return {"counts": counts, "mean": mean, "scatter": one["scatter"] + other["scatter"] + between}


def draw(record: Record, codes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a sample of each of these classes from its Gaussian, ``(n, k)``."""
    mean, scatter = record["mean"], record["scatter"]
    noise = torch.randn(len(codes), mean.shape[1], generator=generator, dtype=mean.dtype)
    n = record["counts"].clamp(min=1)
    if scatter.dim() == 2:
        return mean[codes] + (scatter / n[:, None]).sqrt()[codes] * noise
    # A covariance of few samples is singular, so that it has no Cholesky factor.
    values, vectors = torch.linalg.eigh(scatter / n[:, None, None])
    roots = vectors * values.clamp(min=0).sqrt()[:, None, :]
    for label in torch.unique(codes).tolist():
        mine = codes == label
        noise[mine] = noise[mine] @ roots[label].T
    return mean[codes] + noise


def _by_class(values: Tensor, codes: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_add_(0, codes, values)

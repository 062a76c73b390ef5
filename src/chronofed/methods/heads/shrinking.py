"""Shrunk covariances, from sums alone."""

import torch
from torch import Tensor

# Share of the largest eigenvalue below which one counts as this share: of noise and of rounding.
LEAST = 1e-9


def oas(covariance: Tensor, samples: float) -> float:
    r"""Return the shrinkage of Chen et al. (2010), the oracle approximation for normal features.

    .. math::
        \rho = \min\left(1, \frac{(1 - 2/k) \operatorname{tr}(S^2) + \operatorname{tr}^2(S)}
        {(n + 1 - 2/k) (\operatorname{tr}(S^2) - \operatorname{tr}^2(S) / k)}\right)
    """
    k = len(covariance)
    trace, square = float(covariance.trace()), float(covariance.square().sum())
    spread = (samples + 1 - 2 / k) * (square - trace**2 / k)
    if spread <= 0:
        return 1.0
    return min(1.0, ((1 - 2 / k) * square + trace**2) / spread)


def shrunk(covariance: Tensor, share: float) -> Tensor:
    r"""Return :math:`(1 - \rho) S + \rho \operatorname{tr}(S) / k\, I`, the form of scikit-learn."""
    k = len(covariance)
    mean = float(covariance.trace()) / k
    eye = torch.eye(k, dtype=covariance.dtype)
    return (1 - share) * covariance + share * mean * eye


def factor(covariance: Tensor) -> Tensor:
    """Return a Cholesky factor; of a matrix that is not positive definite, with small eigenvalues raised.

    Noise may make a covariance indefinite, and features that never vary make it singular.
    """
    found: Tensor
    found, info = torch.linalg.cholesky_ex(covariance)
    if not int(info) and bool(torch.isfinite(found).all()):
        return found
    values, vectors = torch.linalg.eigh(covariance)
    largest = float(values[-1])
    # The most negative eigenvalue says how large the noise is.
    least = max(LEAST * largest, -float(values[0])) if largest > 0 else 1.0
    raised = (vectors * values.clamp(min=least)) @ vectors.mT
    found = torch.linalg.cholesky((raised + raised.mT) / 2)
    return found

r"""``bounded approximation error``: an expansion is off by at most eps ||w - w_hat||, on logistic regression.

With two classes the Hessian of a sample is p (1-p) (1, -1; -1, 1) x x^T, with x extended by a one for the bias.
The factor p (1-p) of the logit z has a slope of at most 1/(6 sqrt 3), and z moves by at most
sqrt(2) ||x|| ||w - w_hat||. So Hessians between w and w_hat differ by at most
2 sqrt(2) / (6 sqrt 3) * mean ||x||^3 * ||w - w_hat||, and never by more than that of p (1-p) = 1/4.
"""

import math

import numpy as np
import pytest
import torch

from chronofed import Exact, Linear
from chronofed.core.types import Batch, Samples
from chronofed.engines.base import one_thread
from chronofed.methods.memories.curvature import MeanLoss
from chronofed.models.objective import TorchObjective

CHECKS = 1000


def case(seed):
    """A random problem: an objective, an expansion point, another point, samples."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    features, samples = 1 + seed % 7, 1 + seed % 23
    module = Linear().build((features,), 2).double()
    objective = TorchObjective(module)
    x = normal(samples, features) * 10 ** float(normal(1).clamp(-1.5, 1.5))
    y = torch.randint(2, (samples,), generator=generator)
    size = objective.flat.size
    here = normal(size) * float(normal(1).exp())
    there = here + normal(size) * 10 ** float(normal(1).clamp(-3, 1.5))
    return objective, here, there, Samples(x, y)


def bound(samples, distance):
    """The eps of the lemma, for all points between the two."""
    x = torch.cat([samples.x, torch.ones(len(samples), 1, dtype=torch.float64)], dim=1)
    largest = 2 * 0.25 * float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1])
    steepest = 2 * math.sqrt(2) / (6 * math.sqrt(3)) * float(x.norm(dim=1).pow(3).mean())
    return min(largest, steepest * distance)


def off(seed, diagonal=False):
    """What the expansion is off by, in units of the bound, and the size of the true gradient."""
    objective, here, there, samples = case(seed)
    batch, whole = Batch.mean(samples), (slice(0, len(here)),)
    move = there - here
    gradient = objective.loss_gradient(here, batch, whole)
    truth = objective.loss_gradient(there, batch, whole)
    if diagonal:
        loss = MeanLoss(objective, here, samples, whole)
        step = move * Exact().expand(loss, torch.Generator())[1]
    else:
        step = objective.hessian_product(here, batch, whole, move)
    distance = float(move.norm())
    most = bound(samples, distance) * distance
    return float((truth - gradient - step).norm()) / most, float(truth.norm())


@pytest.fixture(scope="module")
def checks():
    """Ratios and sizes, ``(2, 1000)``."""
    with one_thread():
        return np.array([off(seed) for seed in range(CHECKS)]).T


@pytest.mark.slow
def test_no_violation(checks):
    ratios, sizes = checks
    assert len(ratios) == CHECKS
    assert ratios.max() <= 1 + 1e-9
    assert np.median(sizes) > 0.1  # there is something to approximate


@pytest.mark.slow
def test_bound_is_not_idle(checks):
    """Where Hessians are nearly Lipschitz the error is half the bound: the lemma has a factor 2 to spare."""
    ratios, _ = checks
    assert ratios.max() > 0.3
    assert np.median(ratios) > 0.01


def test_diagonal_alone_violates_it():
    """The lemma is about the whole Hessian; what is kept is its diagonal, which can be off by more."""
    with one_thread():
        ratios = [off(seed, diagonal=True)[0] for seed in range(60)]
    assert max(ratios) > 2

r"""The noisy quadratic model in the eigenbasis of *A*, where a round is one line of code.

Let :math:`r = A w + B`; its norm is the loss. Coordinates do not mix, and clients differ only in what is added
to their gradients, so only the mean over clients matters. With
:math:`q = 1 - \eta_l (\lambda + m)`, where *m* is FedProx's :math:`\mu`, a round of *K* local steps is

.. math::
    r' = r - \kappa\,(r + d_t) - \eta_l \lambda \sum_{k=1}^{K} q^{K-k}\, \bar\nu_{t,k}, \qquad
    \kappa = \eta_l \lambda \sum_{k=1}^{K} q^{K-k},

and with the errors of the memories :math:`\bar\Delta_\tau` the drift of the surrogate objective is

.. math:: d_t = \bar\delta + \sum_{\tau \le t} p_\tau \bar\xi_\tau + \sum_{\tau < t} p_\tau \bar\Delta_\tau.

The mean of normal numbers over *N* clients is normal with :math:`1/N` of the variance, so no client is
simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from chronofed.core.seeds import numpy_generator
from chronofed.theory.nqm.model import Algorithm, Array, Model

# Numbers in a block of runs: they should fit in the processor's cache.
CACHED = 2**15


@dataclass(frozen=True, slots=True)
class Path:
    """All random numbers of some runs, as means over clients, in the eigenbasis of *A*.

    Attributes:
        start: First gradient, ``(runs, n)``.
        client: Client drift in every round, ``(T, runs, n)``.
        time: Time drift in every round, ``(T, runs, n)``.
        tilt: Direction of the mean information loss, of norm sqrt(n), ``(runs, n)``.
        blur: Standard normal deviations of the information loss, divided by sqrt(N), ``(T, runs, n)``.
        noise: Gradient noise in every local step, ``(T, K, runs, n)``.
    """

    start: Array
    client: Array
    time: Array
    tilt: Array
    blur: Array
    noise: Array


def draw(model: Model, seeds: Sequence[int]) -> Path:
    """Draw random paths, one per seed; the normal numbers do not depend on the drifts and curvatures."""
    n, rounds, scale = model.dimension, model.rounds, (model.dimension * model.clients) ** -0.5
    normal = _normals(n, rounds, model.steps, tuple(seeds))
    client = normal.client if model.stateless else normal.client[:1]
    size = np.linalg.norm(normal.tilt, axis=-1, keepdims=True)
    return Path(
        start=np.sqrt(model.start_variance) * normal.start,
        client=np.broadcast_to(scale * model.client_drift_sq**0.5 * client, normal.time.shape),
        time=scale * model.time_drift_sq**0.5 * correlated(normal.time, model.correlation),
        tilt=normal.tilt * (n**0.5 / size) if model.rotated else np.ones_like(normal.tilt),
        blur=model.clients**-0.5 * normal.blur,
        noise=scale * model.noise_sq**0.5 * normal.noise,
    )


@lru_cache(maxsize=1)
def _normals(n: int, rounds: int, steps: int, seeds: tuple[int, ...]) -> Path:
    """Draw standard normal numbers; cached, since a sweep reuses them."""
    generators = [numpy_generator(seed, "noisy quadratic model") for seed in seeds]

    def normal(*shape: int) -> Array:
        drawn = [generator.standard_normal((*shape, n)) for generator in generators]
        return np.stack(drawn, axis=-2)

    return Path(
        start=normal(),
        client=normal(rounds),
        time=normal(rounds),
        tilt=normal(),
        blur=normal(rounds),
        noise=normal(rounds, steps),
    )


def simulate(
    model: Model, algorithm: Algorithm, lrs: Sequence[float] | Array, seeds: int | Sequence[int] = 1
) -> Array:
    r"""Simulate many runs at once: their losses :math:`\|A w_t + B\|`.

    Args:
        model: The model to minimise.
        algorithm: The algorithm that minimises it.
        lrs: Local learning rates :math:`\eta_l`.
        seeds: Seeds of the runs, or their number; all learning rates share a seed's random numbers.

    Returns:
        Losses before the first and after every round, ``(lrs, seeds, T + 1)``; infinite where a run diverged.

    >>> from chronofed.theory import nqm
    >>> losses = nqm.simulate(nqm.Model(rounds=50), nqm.ALGORITHMS[2], lrs=[0.1, 0.2], seeds=3)
    >>> losses.shape, bool((losses[:, :, -1] < losses[:, :, 0]).all())
    ((2, 3, 51), True)
    """
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    return descend(model, algorithm, lrs, draw(model, seeds))


def descend(model: Model, algorithm: Algorithm, lrs: Sequence[float] | Array, path: Path) -> Array:
    """Simulate as :func:`simulate`, along given paths."""
    drift, rates = seen_drift(model, algorithm, path), np.asarray(lrs, dtype=np.float64)
    runs, n = path.start.shape
    losses = np.empty((len(rates), runs, model.rounds + 1))
    block = max(1, CACHED // (runs * n))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(rates), block):
            part = slice(first, first + block)
            _descend(coefficients(model, algorithm, rates[part]), path, drift, losses[part])
    losses[np.isnan(losses)] = np.inf
    return losses


def _descend(steps: Array, path: Path, drift: Array, losses: Array) -> None:
    """Run the recursion for a few learning rates; ``steps`` is ``(K, lrs, n)``."""
    kappa = steps.sum(0)[:, None]  # (lrs, 1, n)
    rho = 1 - kappa
    gradient = np.repeat(path.start[None], len(kappa), axis=0)  # (lrs, runs, n)
    change = np.empty_like(gradient)
    losses[:, :, 0] = np.linalg.norm(gradient, axis=-1)
    for t, seen in enumerate(drift):
        gradient *= rho
        np.multiply(kappa, seen, out=change)
        gradient -= change
        for step, noise in zip(steps, path.noise[t], strict=True):
            np.multiply(step[:, None], noise, out=change)
            gradient -= change
        np.einsum("...n,...n->...", gradient, gradient, out=losses[:, :, t + 1])
    np.sqrt(losses[:, :, 1:], out=losses[:, :, 1:])


def seen_drift(model: Model, algorithm: Algorithm, path: Path) -> Array:
    """Return the drift of the surrogate objective in every round, ``(T, runs, n)``."""
    weights = algorithm.schedule(model)
    past = np.tril(weights, -1)
    own = path.client + path.time if model.stateless else path.time
    seen = np.tensordot(weights, own, axes=1)
    if not model.stateless:
        seen += path.client
    level = algorithm.information_loss_level
    if level:
        seen += np.tensordot(past, (level / 1000) ** 0.5 * path.blur + level * path.tilt, axes=1)
    return seen


def coefficients(model: Model, algorithm: Algorithm, lrs: Array) -> Array:
    r"""Return the coefficient of every local step, :math:`\eta_l \lambda q^{K-k}`, ``(K, lrs, n)``."""
    curvatures = model.curvatures
    kept = 1 - lrs[:, None] * (curvatures + algorithm.mu)
    powers = np.arange(model.steps)[::-1, None, None]
    return np.asarray(lrs[:, None] * curvatures * kept**powers)


def correlated(normal: Array, correlation: float) -> Array:
    """Make a stationary chain along the first axis, with the variance of the normal numbers."""
    if correlation == 0:
        return normal
    chain = normal.copy()
    for t in range(1, len(chain)):
        chain[t] = correlation * chain[t - 1] + (1 - correlation**2) ** 0.5 * normal[t]
    return chain

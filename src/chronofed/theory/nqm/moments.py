r"""Exact second moments of the noisy quadratic model: the mean of infinitely many runs.

The recursion of :mod:`chronofed.theory.nqm.reduction` is linear, so after *t* rounds every random number has a
known coefficient. That of :math:`\bar\xi_\tau` is
:math:`c_{t,\tau} = \kappa \sum_{s=\tau}^{t} \rho^{t-s} p_{s,\tau}`, and so

.. math::
    E\,r_t^2 = \rho^{2t} E\,r_0^2 + b_t^2 + \frac{1}{nN} \Big( D^2 \sum_{\tau,\tau'} c_{t,\tau}
    \alpha^{|\tau-\tau'|} c_{t,\tau'} + G^2 \Big(\kappa \sum_{s \le t} \rho^{t-s}\Big)^2 \Big) + \dots

in every coordinate, where :math:`b_t = I \sum_{\tau<t} c'_{t,\tau}` is the bias of information loss and
:math:`c'` leaves out the present.
"""

from collections.abc import Sequence

import numpy as np

from chronofed.theory.nqm.model import Algorithm, Array, Model
from chronofed.theory.nqm.reduction import coefficients


def expected(model: Model, algorithm: Algorithm, lrs: Sequence[float] | Array) -> Array:
    r"""Compute the exact :math:`E\|A w_t + B\|^2` before the first and after every round.

    Args:
        model: The model to minimise.
        algorithm: The algorithm that minimises it.
        lrs: Local learning rates :math:`\eta_l`.

    Returns:
        Second moments, ``(lrs, T + 1)``.

    >>> from chronofed.theory import nqm
    >>> model = nqm.Model(time_drift_sq=1.0, rounds=3, client_drift_sq=0.0, noise_sq=0.0)
    >>> nqm.expected(model, nqm.ALGORITHMS[0], [0.2]).round(2)
    array([[100.  ,  21.48,   8.36,   3.89]])
    """
    rates = np.asarray(lrs, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = np.stack([_moments(model, algorithm, rate) for rate in rates])
    moments[np.isnan(moments)] = np.inf
    return moments


def _moments(model: Model, algorithm: Algorithm, lr: float) -> Array:
    """Follow the coefficients and variances of all coordinates through the rounds, for one learning rate."""
    steps = coefficients(model, algorithm, np.array([lr]))[:, 0]  # (K, n)
    kappa, level = steps.sum(0)[:, None], algorithm.information_loss_level or 0.0
    rho, mix = 1 - kappa, _mixing(model)
    start, noise = model.start_variance, np.zeros(model.dimension)
    time, lost = np.zeros((2, model.dimension, model.rounds))
    client = np.zeros((model.dimension, 1))
    moments = [start.sum()]
    for t, weights in enumerate(algorithm.schedule(model)):
        past = np.where(np.arange(model.rounds) < t, weights, 0.0)
        time, lost = rho * time + kappa * weights, rho * lost + kappa * past
        client = time if model.stateless else rho * client + kappa
        noise = rho[:, 0] ** 2 * noise + (steps**2).sum(0) * model.noise_sq
        start = rho[:, 0] ** 2 * start
        mixed = time @ mix if model.correlation else time
        drifts = model.time_drift_sq * _square(mixed) + model.client_drift_sq * _square(client)
        variance = (drifts + noise) / model.dimension + level / 1000 * _square(lost)
        bias = (level * lost.sum(-1)) ** 2
        moments.append((start + variance / model.clients + bias).sum())
    return np.array(moments)


def _square(counts: Array) -> Array:
    return np.asarray((counts**2).sum(-1))


def _mixing(model: Model) -> Array:
    """Return the matrix that gives independent numbers the model's correlation, ``(T, T)``."""
    rounds = np.arange(model.rounds)
    return np.linalg.cholesky(model.correlation ** np.abs(rounds[:, None] - rounds))

r"""A differential privacy accountant for rounds of the Gaussian mechanism.

A round releases a sum to which each client adds a vector of norm at most *B*, with Gaussian noise of standard
deviation :math:`zB`. Its Renyi divergence of order :math:`\alpha` from the same round without one client is

.. math::
    D_\alpha = \frac{\alpha}{2 z^2} \;\text{if everyone takes part, and}\quad
    D_\alpha \le \frac{1}{\alpha - 1} \log \sum_{k=0}^{\alpha} \binom{\alpha}{k} (1 - q)^{\alpha - k} q^k
    e^{(k^2 - k)/2z^2}

if each takes part with probability *q*, independently and secretly (Mironov, Talwar and Zhang, 2019).
Divergences of rounds add up, and *t* rounds are :math:`(\epsilon, \delta)`-private (Canonne, Kamath and
Steinke, 2020) with

.. math:: \epsilon = \min_{\alpha > 1}\; t D_\alpha + \log\frac{\alpha - 1}{\alpha}
    - \frac{\log(\delta\alpha)}{\alpha - 1}.
"""

import math

import numpy as np
from numpy.typing import NDArray

# The highest order that is tried if clients are sampled.
MOST = 1024
# Orders to try.
GRID = 1 + np.geomspace(1e-3, 1e6, 4000)


def epsilon(noise: float, rounds: int, delta: float, sampling: float = 1.0) -> float:
    """Compute an upper bound of the privacy loss after some rounds; infinite without noise.

    Args:
        noise: Standard deviation of the noise in the sum of the clients' vectors, in units of their largest
            norm.
        rounds: Rounds that a client may have taken part in.
        delta: Probability that the guarantee fails.
        sampling: Probability that a client takes part in a round, independently of the others and hidden from
            the adversary; 1 if clients are chosen in another way.

    Returns:
        Epsilon at ``delta``.

    Raises:
        ValueError: If a number is out of range.

    >>> round(epsilon(noise=1.0, rounds=1, delta=1e-5), 2)
    4.73
    >>> round(epsilon(noise=1.1, rounds=14063, delta=1e-5, sampling=256 / 60000), 2)
    2.6
    """
    _check(noise, rounds, delta, sampling)
    if rounds == 0 or sampling == 0:
        return 0.0
    if noise == 0:
        return math.inf
    found = _converted(GRID, rounds * GRID / (2 * noise**2), delta).min()
    if sampling < 1:
        # Sampling never costs more, though its bound, exact for whole orders only, may be larger.
        orders = GRID[GRID <= MOST]
        divergences = _log_moments(noise, sampling, orders) / (orders - 1)
        found = min(found, _converted(orders, rounds * divergences, delta).min())
    return max(0.0, float(found))


def combined(noise: float, releases: int) -> float:
    r"""Return the noise of one release that costs as much privacy as several, :math:`z/\sqrt{k}`.

    >>> combined(2.0, releases=4)
    1.0
    """
    return noise / math.sqrt(releases)


def _converted(
    orders: NDArray[np.float64], divergences: NDArray[np.float64], delta: float
) -> NDArray[np.float64]:
    """Return epsilon for each order."""
    rest = math.log(delta) + np.log(orders)
    converted: NDArray[np.float64] = divergences + np.log1p(-1 / orders) - rest / (orders - 1)
    return converted


def _log_moments(noise: float, sampling: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Bound :math:`(\alpha - 1) D_\alpha` from above: exact for whole orders, linear in between.

    It is convex in the order, so it lies below that line.
    """
    whole = np.arange(1, MOST + 1)
    exact = [_log_moment(noise, sampling, int(order)) for order in whole]
    line: NDArray[np.float64] = np.interp(orders, whole, exact)
    return line


def _log_moment(noise: float, sampling: float, order: int) -> float:
    k = np.arange(order + 1)
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, order + 1)))])
    terms = factorial[order] - factorial - factorial[::-1]
    terms += k * math.log(sampling) + (order - k) * math.log1p(-sampling)
    terms += (k * k - k) / (2 * noise**2)
    largest = terms.max()
    return float(largest + np.log(np.exp(terms - largest).sum()))


def _check(noise: float, rounds: int, delta: float, sampling: float) -> None:
    if not (noise >= 0 and math.isfinite(noise)):
        raise ValueError(f"noise: expected a number >= 0, not {noise}")
    if rounds < 0:
        raise ValueError(f"rounds: expected a number >= 0, not {rounds}")
    if not 0 < delta < 1:
        raise ValueError(f"delta: expected a number between 0 and 1, not {delta}")
    if not 0 <= sampling <= 1:
        raise ValueError(f"sampling: expected a number from 0 to 1, not {sampling}")

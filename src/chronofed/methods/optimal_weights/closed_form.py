r"""Closed forms of the optimal weights for drifts whose correlation decays.

The correlations :math:`\alpha^{|t_i - t_j|}` are those of a Markov chain, whatever the gaps between rounds, so
the inverse of their matrix *A* is tridiagonal. With
:math:`\rho_i = \alpha^{t_{i+1} - t_i}` (and :math:`\rho_0 = \rho_t = 0`),

.. math:: x = A^{-1} 1, \qquad x_i = \frac{1 - \rho_{i-1}\rho_i}{(1 + \rho_{i-1})(1 + \rho_i)},

which is never negative, and one step of elimination for :math:`R^2` gives all weights without solving a
linear system. For gaps of one round the result is an explicit expression, which the paper calls difficult to
provide; see :func:`closed_form`. Only the last recalled round can get a negative weight. If weights must not
be negative, rounds are dropped from the latest backwards until none is: between the last round that stays and
the present, the drift is a convex function of time, so no round in between can come back in.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chronofed.methods.optimal_weights.quadratic_program import Matrix, Weights


def covariance(
    rounds: int | Sequence[int],
    time_drift_sq: float,
    information_loss_sq: float,
    correlation: float = 0.0,
) -> Matrix:
    r"""Build the matrix *Q* of ``Optimal choice of weights with correlated time drifts``.

    .. math:: Q_{ij} = \alpha^{|t_i - t_j|} D^2 + R^2 \;(i, j < t), \qquad
        Q_{ij} = \alpha^{|t_i - t_j|} D^2 \;\text{where } i \text{ or } j \text{ is the present}.

    Args:
        rounds: Number of rounds to weigh, or the rounds themselves, with the present last.
        time_drift_sq: Time drift :math:`D^2`.
        information_loss_sq: Information loss :math:`R^2`.
        correlation: Correlation :math:`\alpha` of drifts one round apart.

    Returns:
        The matrix ``(t, t)``.

    >>> covariance(3, time_drift_sq=1.0, information_loss_sq=0.5, correlation=0.5)
    array([[1.5 , 1.  , 0.25],
           [1.  , 1.5 , 0.5 ],
           [0.25, 0.5 , 1.  ]])
    """
    _check(time_drift_sq, information_loss_sq, correlation)
    times = _times(rounds)
    matrix: Matrix = time_drift_sq * correlation ** np.abs(times[:, None] - times[None, :])
    matrix[:-1, :-1] += information_loss_sq
    return matrix


def closed_form(
    rounds: int | Sequence[int],
    time_drift_sq: float,
    information_loss_sq: float,
    correlation: float,
) -> Weights:
    r"""Solve ``Optimal choice of weights with correlated time drifts`` exactly, without a matrix.

    For gaps of one round, with :math:`e = 1 - \alpha`, :math:`n = 2 + (t-2)e` and
    :math:`d = n e (1+\alpha) D^2 + (n-e) R^2`, it is

    .. math::
        p_1 &= (e(1+\alpha)D^2 + \alpha R^2)/d, \qquad p_2 = \dots = p_{t-2} = e\,p_1, \\
        p_{t-1} &= (e^2(1+\alpha)D^2 - \alpha R^2((t-2)e + \alpha))/d, \\
        p_t &= (e(1+\alpha)D^2 + (\alpha+n-1)R^2)/d.

    For any :math:`\alpha, R^2 > 0` the weight of the last round :math:`p_{t-1}` becomes negative when *t* is
    large. For :math:`\alpha` near 1, LU factorisation loses all digits; this formula does not.

    Args:
        rounds: Number of rounds to weigh, or the rounds themselves, ascending, with the present last.
        time_drift_sq: Time drift :math:`D^2`; 0 gives all the weight to the present.
        information_loss_sq: Information loss :math:`R^2`.
        correlation: Correlation :math:`\alpha` of drifts one round apart.

    Returns:
        The weights ``(t,)``, the present last; they may be negative.

    >>> closed_form(4, time_drift_sq=1.0, information_loss_sq=1.0, correlation=0.5).round(4)
    array([ 0.2632,  0.1316, -0.0789,  0.6842])
    """
    return solve(rounds, time_drift_sq, information_loss_sq, correlation, nonnegative=False)[0]


def solve(
    rounds: int | Sequence[int],
    time_drift_sq: float,
    information_loss_sq: float,
    correlation: float,
    nonnegative: bool,
) -> tuple[Weights, float]:
    """Compute what :func:`~chronofed.methods.weighting.optimal` and :func:`closed_form` return."""
    drift, loss = time_drift_sq, information_loss_sq
    _check(drift, loss, correlation)
    gaps = _gaps(rounds)
    # In this unit nothing overflows.
    scale = max(drift, loss) or 1.0
    if len(gaps) == 0 or drift / scale == 0:
        return np.array([0.0] * len(gaps) + [1.0]), float(drift)
    weights, variance = _eliminate(gaps, drift / scale, loss / scale, correlation, nonnegative)
    return weights, variance * scale


def _eliminate(
    gaps: NDArray[np.int64], drift: float, loss: float, correlation: float, nonnegative: bool
) -> tuple[Weights, float]:
    """Eliminate as the module describes; only the share of the last past round is a difference."""
    near = _link(gaps[:-1], correlation)
    far = _link(gaps[::-1].cumsum()[::-1], correlation)
    # Nothing comes before the first round.
    before = np.hstack([[[0.0], [1.0]], near])
    # The x of a past round: if another past round follows it, and if only the present does.
    inner, last = _chained(before[:, :-1], near), _chained(before, far)
    earlier = np.concatenate([[0.0], inner.cumsum()])
    close, apart = far[0], far[1] * (1 + far[0])
    share = drift * apart * last - loss * close * earlier
    m = int(np.flatnonzero(share >= 0)[-1]) if nonnegative else len(gaps) - 1
    unit = drift * apart[m] + loss * close[m]
    past, now = earlier[m] + last[m], 1 / (1 + close[m])
    weights = np.zeros(len(gaps) + 1)
    weights[:m] = unit * inner[:m]
    weights[m] = share[m]
    weights[-1] = unit * now + loss * past
    total = unit * (past + now) + loss * past * far[1, m]
    return weights / total, float(drift * (unit + loss * past * apart[m]) / total)


def _link(gaps: NDArray[np.int64], correlation: float) -> NDArray[np.float64]:
    """Return the correlation of neighbours, and one minus it without cancellation: ``(2, n)``."""
    rate = math.log(correlation) if correlation > 0 else -math.inf
    return np.stack([correlation**gaps, -np.expm1(rate * gaps)])


def _chained(left: NDArray[np.float64], right: NDArray[np.float64]) -> Weights:
    """Compute the x of the module's formula: the value of a round between its neighbours."""
    return np.asarray((left[1] + left[0] * right[1]) / ((1 + left[0]) * (1 + right[0])))


def _gaps(rounds: int | Sequence[int]) -> NDArray[np.int64]:
    times = _times(rounds)
    gaps: NDArray[np.int64] = times[1:] - times[:-1]
    if (gaps < 1).any():
        msg = f"rounds: expected ascending rounds, the present last, not {times.tolist()}"
        raise ValueError(msg)
    return gaps


def _times(rounds: int | Sequence[int]) -> NDArray[np.int64]:
    times = np.arange(rounds) if isinstance(rounds, int) else np.asarray(rounds, dtype=np.int64)
    if len(times) == 0:
        msg = f"rounds: expected at least the present, not {rounds!r}"
        raise ValueError(msg)
    return times


def _check(drift: float, loss: float, correlation: float) -> None:
    for name, value in {"time_drift_sq": drift, "information_loss_sq": loss}.items():
        if not 0 <= value < math.inf:
            msg = f"{name}: expected a finite number >= 0, not {value}"
            raise ValueError(msg)
    if not 0 <= correlation < 1:
        msg = f"correlation: expected a number >= 0 and < 1, not {correlation}"
        raise ValueError(msg)

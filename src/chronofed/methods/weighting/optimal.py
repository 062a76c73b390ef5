"""Weights that minimise the paper's variance bound when drifts are alike in all rounds."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from chronofed.core.config import Count
from chronofed.methods.optimal_weights.closed_form import solve
from chronofed.methods.weighting.base import RoundWeights, Timeline, Weights

# The limit keeps the product with a number of rounds finite.
Square = Annotated[float, msgspec.Meta(ge=0, le=1e300)]


def optimal(
    rounds: int | Sequence[int],
    time_drift_sq: float,
    information_loss_sq: float,
    correlation: float = 0.0,
    nonnegative: bool = True,
) -> tuple[Weights, float]:
    r"""Compute the optimal round weights and their variance :math:`p^\top Q\, p`.

    Args:
        rounds: Number of rounds to weigh, or the rounds themselves, ascending, with the present last.
        time_drift_sq: Time drift :math:`D^2`; 0 gives all the weight to the present.
        information_loss_sq: Information loss :math:`R^2`.
        correlation: Correlation :math:`\alpha` of drifts one round apart.
        nonnegative: Whether to forbid negative weights (ascent on a past objective).

    Returns:
        The weights ``(t,)``, the present last, and the variance.

    >>> weights, variance = optimal(4, time_drift_sq=1.0, information_loss_sq=1.0, correlation=0.5)
    >>> weights.round(4), round(variance, 4)
    (array([0.2517, 0.0861, 0.    , 0.6623]), 0.7152)
    >>> optimal([0, 4, 5], time_drift_sq=1.0, information_loss_sq=0.5)[0]
    array([0.25, 0.25, 0.5 ])
    """
    return solve(rounds, time_drift_sq, information_loss_sq, correlation, nonnegative)


class Drifting(RoundWeights, kw_only=True):
    r"""Weights for given drifts, with two variants that the paper's theorems leave out.

    Stateless clients: if clients never come back, every remembered objective belongs to another client, so
    the client drift averages out like the time drift. The variance is :math:`(G^2 + D^2)\sum_\tau p_\tau^2`
    (``Bounded Gradient Noise of CFL``). Weights that use :math:`D^2` alone do not minimise it.

    Cohort aware: a server that averages *N* clients sees :math:`1/N` of the variance of independent drifts,
    but all of the bias that information loss causes.

    Attributes:
        client_drift_sq: Client drift :math:`G^2`, for stateless clients; 0 for clients that come back.
        cohort: Number *N* of clients that are averaged, to be cohort aware; 1 for the paper's weights.
    """

    client_drift_sq: Square = 0.0
    cohort: Count = 1


class Optimal(Drifting, tag="optimal"):
    r"""The weights that minimise the variance bound for independent drifts (``Convergence rate of CFL``).

    .. math::
        p_\tau = \frac{D^2}{t D^2 + (t-1) R^2} \;(\tau < t), \qquad
        p_t = \frac{(t-1) R^2 + D^2}{t D^2 + (t-1) R^2}.

    ``information_loss_sq -> inf`` gives FedAvg and ``information_loss_sq = 0`` gives :class:`Uniform`. If both
    squares are 0, the present has all the weight. With a client drift or a cohort, :math:`(D^2 + G^2)/N`
    replaces :math:`D^2`.

    Attributes:
        time_drift_sq: Time drift :math:`D^2`, a square as in the paper's table of weights.
        information_loss_sq: Information loss :math:`R^2` of the memory, a square.

    >>> timeline = Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)
    >>> Optimal(time_drift_sq=2.0, information_loss_sq=1.0)(timeline).round(4)
    array([0.1818, 0.1818, 0.1818, 0.4545])
    >>> Optimal(time_drift_sq=2.0, information_loss_sq=1.0, cohort=10)(timeline).round(4)
    array([0.0526, 0.0526, 0.0526, 0.8421])
    >>> Optimal(time_drift_sq=2.0, information_loss_sq=1.0, client_drift_sq=8.0)(timeline).round(4)
    array([0.2326, 0.2326, 0.2326, 0.3023])
    """

    time_drift_sq: Square
    information_loss_sq: Square

    def __call__(self, timeline: Timeline) -> Weights:
        """Return the weights of the theorem."""
        drift = (self.time_drift_sq + self.client_drift_sq) / self.cohort
        return _theorem(len(timeline.rounds), drift, self.information_loss_sq)


class Bounded(Drifting, tag="bounded"):
    r"""The weights for drifts of equal covariance (``Convergence rate of CFL with correlated time drifts``).

    The first case of correlated drifts: data sets of different rounds overlap, and all that is known is a
    bound :math:`F^2` of :math:`E\langle\xi_{t_1}, \xi_{t_2}\rangle`. No weights can lower what all rounds
    share, so these are the weights of :class:`Optimal` with :math:`M^2 = \max(0, D^2 - F^2)` instead of
    :math:`D^2`. With a client drift or a cohort it is :math:`(M^2 + G^2)/N`.

    Attributes:
        time_drift_sq: Time drift :math:`D^2`, a square.
        information_loss_sq: Information loss :math:`R^2` of the memory, a square.
        covariance: Covariance :math:`F^2` of the time drifts of any two rounds.

    >>> weights = Bounded(time_drift_sq=3.0, information_loss_sq=1.0, covariance=1.0)
    >>> weights(Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)).round(4)
    array([0.1818, 0.1818, 0.1818, 0.4545])
    """

    time_drift_sq: Square
    information_loss_sq: Square
    covariance: Square

    def __call__(self, timeline: Timeline) -> Weights:
        """Return the weights of the theorem."""
        own = max(0.0, self.time_drift_sq - self.covariance)
        drift = (own + self.client_drift_sq) / self.cohort
        return _theorem(len(timeline.rounds), drift, self.information_loss_sq)


def _theorem(past: int, drift: float, loss: float) -> Weights:
    """Evaluate the closed form; the present's weight is not one minus the rest, so it is exact too."""
    total = (past + 1) * drift + past * loss
    if total == 0:
        return np.array([0.0] * past + [1.0])
    weights = np.full(past + 1, drift / total)
    weights[-1] = (past * loss + drift) / total
    return weights

"""Weights that minimise the paper's variance bound, for drifts that are alike in all rounds."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from chronofed.config import Count
from chronofed.weights.base import RoundWeights, Timeline, Weights
from chronofed.weights.closed import solve

# A square that is still finite when it is multiplied by a number of rounds.
Square = Annotated[float, msgspec.Meta(ge=0, le=1e300)]


def optimal(
    rounds: int | Sequence[int],
    drift: float,
    loss: float,
    correlation: float = 0.0,
    nonnegative: bool = True,
) -> tuple[Weights, float]:
    r"""Optimal round weights, and the variance :math:`p^\top Q\, p` that they leave.

    Args:
        rounds: How many rounds to weigh, or when each was, ascending and the present last.
        drift: Time drift :math:`D^2`; if it is 0 the present counts alone.
        loss: Squared information loss :math:`R^2`.
        correlation: Correlation :math:`\alpha` of drifts one round apart.
        nonnegative: Whether weights below 0 (ascent on a past objective) are forbidden.

    Returns:
        The weights ``(t,)``, the present last, and the variance.

    >>> weights, variance = optimal(4, drift=1.0, loss=1.0, correlation=0.5)
    >>> weights.round(4), round(variance, 4)
    (array([0.2517, 0.0861, 0.    , 0.6623]), 0.7152)
    >>> optimal([0, 4, 5], drift=1.0, loss=0.5)[0]
    array([0.25, 0.25, 0.5 ])
    """
    return solve(rounds, drift, loss, correlation, nonnegative)


class Drifting(RoundWeights, kw_only=True):
    r"""Weights for given drifts, with two variants that the paper's theorems leave out.

    Stateless clients: where clients never come back, every remembered objective is another client's, so the
    clients' drift is averaged like the time drift. The variance is :math:`(G^2 + D^2)\sum_\tau p_\tau^2`
    (``Bounded Gradient Noise of CFL``), and weights that use :math:`D^2` alone do not minimise it.

    Cohort aware: a server that averages *N* clients sees :math:`1/N` of the variance of independent drifts,
    but all of the bias that information loss brings.

    Attributes:
        client_drift: Client drift :math:`G^2`, for stateless clients; 0 for clients that come back.
        cohort: Number *N* of clients that are averaged, to be cohort aware; 1 for the paper's weights.
    """

    client_drift: Square = 0.0
    cohort: Count = 1


class Optimal(Drifting, tag="optimal"):
    r"""The weights that minimise the variance bound for independent drifts (``Convergence rate of CFL``).

    .. math::
        p_\tau = \frac{D^2}{t D^2 + (t-1) R^2} \;(\tau < t), \qquad
        p_t = \frac{(t-1) R^2 + D^2}{t D^2 + (t-1) R^2}.

    ``loss -> inf`` gives FedAvg, ``loss = 0`` gives :class:`Uniform`; where both are 0 the present
    counts alone. With a client drift or a cohort, :math:`(D^2 + G^2)/N` takes the place of :math:`D^2`.

    Attributes:
        drift: Time drift :math:`D^2` (a square, as in the paper's table of weights).
        loss: Squared information loss :math:`R^2` of the memory.

    >>> timeline = Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)
    >>> Optimal(drift=2.0, loss=1.0)(timeline).round(4)
    array([0.1818, 0.1818, 0.1818, 0.4545])
    >>> Optimal(drift=2.0, loss=1.0, cohort=10)(timeline).round(4)
    array([0.0526, 0.0526, 0.0526, 0.8421])
    >>> Optimal(drift=2.0, loss=1.0, client_drift=8.0)(timeline).round(4)
    array([0.2326, 0.2326, 0.2326, 0.3023])
    """

    drift: Square
    loss: Square

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights of the theorem."""
        drift = (self.drift + self.client_drift) / self.cohort
        return _theorem(len(timeline.rounds), drift, self.loss)


class Bounded(Drifting, tag="bounded"):
    r"""The weights for drifts of equal covariance (``Convergence rate of CFL with correlated time drifts``).

    The first case of correlated drifts: data sets of different rounds overlap, and nothing more is known
    than a bound :math:`F^2` of :math:`E\langle\xi_{t_1}, \xi_{t_2}\rangle`. No choice of weights can lower
    what all rounds share, so these are the weights of :class:`Optimal` with
    :math:`M^2 = \max(0, D^2 - F^2)` in place of :math:`D^2`. With a client drift or a cohort it is
    :math:`(M^2 + G^2)/N`.

    Attributes:
        drift: Time drift :math:`D^2`.
        loss: Squared information loss :math:`R^2` of the memory.
        covariance: Covariance :math:`F^2` of the time drifts of any two rounds.

    >>> Bounded(drift=3.0, loss=1.0, covariance=1.0)(Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)).round(4)
    array([0.1818, 0.1818, 0.1818, 0.4545])
    """

    drift: Square
    loss: Square
    covariance: Square

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights of the theorem."""
        own = max(0.0, self.drift - self.covariance)
        return _theorem(len(timeline.rounds), (own + self.client_drift) / self.cohort, self.loss)


def _theorem(past: int, drift: float, loss: float) -> Weights:
    """The closed form; the present's weight is not one minus the rest, so it is exact, too."""
    total = (past + 1) * drift + past * loss
    if total == 0:
        return np.array([0.0] * past + [1.0])
    weights = np.full(past + 1, drift / total)
    weights[-1] = (past * loss + drift) / total
    return weights

"""Weights that minimise the paper's variance bound, for drifts that are correlated over time."""

from collections import Counter
from typing import Annotated

import msgspec
import numpy as np

from chronofed.errors import SpecError
from chronofed.weights.base import RoundWeights, Timeline, Weights
from chronofed.weights.closed import covariance, solve
from chronofed.weights.optimal import Drifting, Square
from chronofed.weights.quadratic import checked, eigen, minimise

Correlation = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Correlated(Drifting, tag="correlated"):
    r"""The weights for drifts that change gradually.

    The second case of correlated drifts (``Optimal choice of weights with correlated time drifts``):

    .. math:: E\langle\xi_{t_1}, \xi_{t_2}\rangle = \alpha^{|t_1 - t_2|} D^2.

    The present counts the more, the more it resembles the rounds before it. Gaps in what is recalled are
    taken into account, and data sets of the same round share that round's weight equally. The paper's
    weights can be negative, which is gradient ascent on the last round's data; unless that is asked for, the
    best weights that are not negative are used. See :func:`~chronofed.weights.optimal` for the method.

    With a cohort, :math:`D^2/N` takes the place of :math:`D^2`. The drifts :math:`G^2` of clients that never
    come back are not correlated, so they add :math:`G^2/N` to the diagonal of the covariance only.

    Attributes:
        drift: Time drift :math:`D^2`.
        loss: Squared information loss :math:`R^2` of the memory.
        correlation: Correlation :math:`\alpha` of time drifts one round apart.
        nonnegative: Whether weights below 0 are forbidden; false for the paper's weights.

    >>> timeline = Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)
    >>> Correlated(drift=1.0, loss=1.0, correlation=0.5)(timeline).round(4)
    array([0.2517, 0.0861, 0.    , 0.6623])
    >>> Correlated(drift=1.0, loss=1.0, correlation=0.5, nonnegative=False)(timeline).round(4)
    array([ 0.2632,  0.1316, -0.0789,  0.6842])
    """

    drift: Square
    loss: Square
    correlation: Correlation
    nonnegative: bool = True

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights by the closed form; by the quadratic programme if client drifts blur the correlation."""
        if self.client_drift > 0:
            return self._blurred((*timeline.rounds, timeline.now))
        counts = Counter(timeline.rounds)
        shares, _ = solve(
            [*counts, timeline.now],
            self.drift / self.cohort,
            self.loss,
            self.correlation,
            self.nonnegative,
        )
        share = dict(zip(counts, shares[:-1].tolist(), strict=True))
        return np.array([*(share[r] / counts[r] for r in timeline.rounds), shares[-1]])

    def _blurred(self, rounds: tuple[int, ...]) -> Weights:
        q = covariance(rounds, self.drift / self.cohort, self.loss, self.correlation)
        q += self.client_drift / self.cohort * np.eye(len(q))
        return minimise(q, self.nonnegative)[0]


class Covariance(RoundWeights, tag="covariance"):
    r"""The weights for any covariance of time drifts between rounds.

    .. math:: \min_p\; \sum_{\tau_1, \tau_2} F_{\tau_1 \tau_2}\, p_{\tau_1} p_{\tau_2} + (1 - p_t)^2 R^2,
        \qquad \sum_\tau p_\tau = 1,

    the general case of correlated drifts (``Generalized time drift with correlation assumption``), for those
    who have measured their drifts, or know of seasons: data sets a week apart may be more alike than those a
    day apart. Without any drift the present counts alone.

    Attributes:
        matrix: Covariances *F*: entry ``[k][l]`` belongs to the k-th and l-th latest data sets, 0 is the
            present. It must have a row for the present and for each data set that can be recalled.
        loss: Squared information loss :math:`R^2` of the memory.
        nonnegative: Whether weights below 0 (ascent on a past objective) are forbidden.

    >>> weekend = Covariance(((1.0, 0.0, 0.8), (0.0, 1.0, 0.0), (0.8, 0.0, 1.0)), loss=0.0)
    >>> weekend(Timeline((0, 1), (9, 9), now=2, size=9)).round(4)
    array([0.2632, 0.4737, 0.2632])
    """

    matrix: tuple[tuple[float, ...], ...]
    loss: Square
    nonnegative: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [len(row) for row in self.matrix]
        if set(lengths) != {len(self.matrix)}:
            msg = f"Covariance.matrix: expected a square matrix, got rows of lengths {lengths}"
            raise ValueError(msg)
        try:
            eigen(checked(self.matrix))
        except ValueError as error:
            msg = f"Covariance.matrix: {error}"
            raise ValueError(msg) from None

    def __call__(self, timeline: Timeline) -> Weights:
        """Weights by the quadratic programme.

        Raises:
            SpecError: If more data sets are recalled than the matrix knows.
        """
        t = len(timeline.rounds) + 1
        if t > len(self.matrix):
            msg = (
                f"method.weights.matrix: has {len(self.matrix)} rows, but in round {timeline.now} there are "
                f"{t} data sets to weigh, the present and {t - 1} recalled; give it more rows, or let the "
                "memory keep less"
            )
            raise SpecError(msg)
        q = np.array(self.matrix, dtype=np.float64)[t - 1 :: -1, t - 1 :: -1]
        if not q.any():
            return np.array([0.0] * (t - 1) + [1.0])
        q[:-1, :-1] += self.loss
        return minimise(q, self.nonnegative)[0]

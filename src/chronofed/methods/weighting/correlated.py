"""Weights that minimise the paper's variance bound when drifts are correlated over time."""

from collections import Counter
from typing import Annotated

import msgspec
import numpy as np

from chronofed.core.config import Number
from chronofed.core.errors import SpecError
from chronofed.methods.optimal_weights.closed_form import covariance, solve
from chronofed.methods.optimal_weights.quadratic_program import checked, eigen, minimise
from chronofed.methods.weighting.base import RoundWeights, Timeline, Weights
from chronofed.methods.weighting.optimal import Drifting, Square

Correlation = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Correlated(Drifting, tag="correlated"):
    r"""The weights for drifts that change gradually.

    The second case of correlated drifts (``Optimal choice of weights with correlated time drifts``):

    .. math:: E\langle\xi_{t_1}, \xi_{t_2}\rangle = \alpha^{|t_1 - t_2|} D^2.

    The more the present resembles the rounds before it, the larger its weight. Gaps between recalled rounds
    are taken into account, and data sets of the same round share its weight equally. The paper's weights can
    be negative, which is gradient ascent on the last round's data; by default the best weights that are not
    negative are used. See :func:`~chronofed.methods.weighting.optimal` for the algorithm.

    With a cohort, :math:`D^2/N` replaces :math:`D^2`. The drifts :math:`G^2` of clients that never come back
    are not correlated, so they add :math:`G^2/N` to the diagonal of the covariance only.

    Attributes:
        time_drift_sq: Time drift :math:`D^2`, a square.
        information_loss_sq: Information loss :math:`R^2` of the memory, a square.
        correlation: Correlation :math:`\alpha` of time drifts one round apart.
        nonnegative: Whether to forbid negative weights; false for the paper's weights.

    >>> timeline = Timeline((0, 1, 2), (9, 9, 9), now=3, size=50)
    >>> Correlated(time_drift_sq=1.0, information_loss_sq=1.0, correlation=0.5)(timeline).round(4)
    array([0.2517, 0.0861, 0.    , 0.6623])
    >>> paper = Correlated(1.0, 1.0, correlation=0.5, nonnegative=False)
    >>> paper(timeline).round(4)
    array([ 0.2632,  0.1316, -0.0789,  0.6842])
    """

    time_drift_sq: Square
    information_loss_sq: Square
    correlation: Correlation
    nonnegative: bool = True

    def __call__(self, timeline: Timeline) -> Weights:
        """Use the closed form, or the quadratic programme if client drifts blur the correlation."""
        if self.client_drift_sq > 0:
            return self._blurred((*timeline.rounds, timeline.now))
        counts = Counter(timeline.rounds)
        shares, _ = solve(
            [*counts, timeline.now],
            self.time_drift_sq / self.cohort,
            self.information_loss_sq,
            self.correlation,
            self.nonnegative,
        )
        share = dict(zip(counts, shares[:-1].tolist(), strict=True))
        return np.array([*(share[r] / counts[r] for r in timeline.rounds), shares[-1]])

    def _blurred(self, rounds: tuple[int, ...]) -> Weights:
        time, loss = self.time_drift_sq / self.cohort, self.information_loss_sq
        q = covariance(rounds, time, loss, self.correlation)
        q += self.client_drift_sq / self.cohort * np.eye(len(q))
        return minimise(q, self.nonnegative)[0]


class Covariance(RoundWeights, tag="covariance"):
    r"""The weights for any covariance of time drifts between rounds.

    .. math:: \min_p\; \sum_{\tau_1, \tau_2} F_{\tau_1 \tau_2}\, p_{\tau_1} p_{\tau_2} + (1 - p_t)^2 R^2,
        \qquad \sum_\tau p_\tau = 1,

    the general case of correlated drifts (``Generalized time drift with correlation assumption``). Use it if
    you have measured your drifts, or know of seasons: data sets a week apart may be more alike than those a day
    apart. Without any drift, the present has all the weight.

    Attributes:
        matrix: Covariances *F*. Entry ``[k][l]`` belongs to the k-th and l-th latest data sets; 0 is the
            present. The matrix needs a row for the present and for each data set that can be recalled.
        information_loss_sq: Information loss :math:`R^2` of the memory, a square.
        nonnegative: Whether to forbid negative weights (ascent on a past objective).

    >>> matrix = ((1.0, 0.0, 0.8), (0.0, 1.0, 0.0), (0.8, 0.0, 1.0))
    >>> weekend = Covariance(matrix, information_loss_sq=0.0)
    >>> weekend(Timeline((0, 1), (9, 9), now=2, size=9)).round(4)
    array([0.2632, 0.4737, 0.2632])
    """

    matrix: tuple[tuple[Number, ...], ...]
    information_loss_sq: Square
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
        """Solve the quadratic programme.

        Raises:
            SpecError: If more data sets are recalled than the matrix has rows for.
        """
        t = len(timeline.rounds) + 1
        if t > len(self.matrix):
            msg = (
                f"method.weights.matrix: has {len(self.matrix)} rows, but round {timeline.now} has {t} data "
                f"sets to weigh, the present and {t - 1} recalled; add rows, or let the memory keep less"
            )
            raise SpecError(msg)
        q = np.array(self.matrix, dtype=np.float64)[t - 1 :: -1, t - 1 :: -1]
        if not q.any():
            return np.array([0.0] * (t - 1) + [1.0])
        q[:-1, :-1] += self.information_loss_sq
        return minimise(q, self.nonnegative)[0]

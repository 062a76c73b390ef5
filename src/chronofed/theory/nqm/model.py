"""The noisy quadratic model, and the algorithms that minimise it."""

from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from chronofed.core.config import Config, Count, NonNegative, Positive
from chronofed.methods.weighting import Optimal, RoundWeights, Timeline, Weights

Array = NDArray[np.float64]

# Smallest nonzero curvature of a logarithmic spectrum, as a share of L.
FLATTEST = 1e-2


class Model(Config, kw_only=True):
    r"""A quadratic whose gradients are noisy (``sec:Noisy quadratic model``).

    .. math::
        f(w) = \tfrac12 w^\top A w + B^\top w, \qquad
        g_{t,i,k}(w) = A w + B + \delta_i + \xi_{t,i} + \nu_{t,i,k}

    with :math:`A = U^\top \Lambda U`. Drifts and noise are normal, with mean 0 and the same variance in every
    coordinate. The loss is :math:`\|A w + B\|`, which is 0 at the minimum.

    Attributes:
        smoothness: Largest curvature :math:`L`.
        convexity: Smallest curvature :math:`\mu`; 0 for general convexity.
        time_drift_sq: Time drift :math:`D^2 = E\|\xi\|^2`.
        client_drift_sq: Client drift :math:`G^2 = E\|\delta\|^2`.
        noise_sq: Gradient noise :math:`\sigma^2 = E\|\nu\|^2`.
        correlation: Correlation :math:`\alpha` of a client's time drifts one round apart.
        dimension: Number of parameters *n*.
        clients: Number of clients *N*; all take part in every round.
        steps: Local steps *K*.
        rounds: Rounds *T*.
        spectrum: Spacing of the curvatures between the two: even, or even in their logarithms.
        start: ``origin``: :math:`w_0 = 0` and :math:`B \sim N(0, I)`, with zeros where there is no curvature.
            ``near``: :math:`w_0 - w^* \sim N(0, I)`.
        rotated: Whether *U* is a random rotation; otherwise it is the identity.
        stateless: Whether every round has new clients, each with its own drift :math:`\delta`.
    """

    smoothness: Positive = 5.0
    convexity: NonNegative = 1.0
    time_drift_sq: NonNegative = 100.0
    client_drift_sq: NonNegative = 0.01
    noise_sq: NonNegative = 1e-5
    correlation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    dimension: Count = 100
    clients: Count = 10
    steps: Count = 1
    rounds: Count = 100
    spectrum: Literal["linear", "log"] = "linear"
    start: Literal["origin", "near"] = "origin"
    rotated: bool = True
    stateless: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convexity > self.smoothness:
            msg = (
                f"Model.convexity: {self.convexity} is larger than the smoothness {self.smoothness}"
            )
            raise ValueError(msg)

    @property
    def curvatures(self) -> Array:
        r"""The eigenvalues of *A*, ascending, ``(n,)``."""
        low, high, n = self.convexity, self.smoothness, self.dimension
        if self.spectrum == "linear":
            return np.linspace(low, high, n)
        if low > 0:
            return np.geomspace(low, high, n)
        return np.concatenate([[0.0], np.geomspace(FLATTEST * high, high, n - 1)])[:n]

    @property
    def start_variance(self) -> Array:
        """The variance of each coordinate of the first gradient, ``(n,)``."""
        curvatures = self.curvatures
        return (curvatures > 0).astype(np.float64) if self.start == "origin" else curvatures**2

    def information_loss_sq(self, level: float) -> float:
        r"""Return the squared information loss :math:`R^2 = n (I^2 + I/1000)` of a memory of level *I*."""
        return self.dimension * (level**2 + level / 1000)


class Algorithm(Config, kw_only=True):
    r"""One of the algorithms to compare.

    Attributes:
        name: Its name.
        mu: Weight of FedProx's proximal term; 0 for FedAvg.
        information_loss_level: Level *I* of the information loss, neither its norm nor its square: every
            remembered gradient is off by a fixed vector of :math:`N(I, I/1000)` in each coordinate. ``None``
            for an algorithm without a memory.
        weights: Round weights of an algorithm with a memory; by default the theorem's, for the true drifts
            and losses.
    """

    name: str
    mu: NonNegative = 0.0
    information_loss_level: NonNegative | None = None
    weights: RoundWeights | None = None

    def round_weights(self, model: Model) -> RoundWeights:
        """Return the weights to use on a model."""
        if self.weights is not None:
            return self.weights
        return Optimal(
            time_drift_sq=model.time_drift_sq,
            information_loss_sq=model.information_loss_sq(self.information_loss_level or 0.0),
            client_drift_sq=model.client_drift_sq if model.stateless else 0.0,
        )

    def schedule(self, model: Model) -> Weights:
        r"""Return the weights :math:`p_\tau`, ``(T, T)``: a row per round, zeros after the present.

        >>> Algorithm(name="CFL", information_loss_level=0.0).schedule(Model(rounds=3)).round(2)
        array([[1.  , 0.  , 0.  ],
               [0.5 , 0.5 , 0.  ],
               [0.33, 0.33, 0.33]])
        """
        if self.information_loss_level is None:
            return np.eye(model.rounds)
        weights, table = self.round_weights(model), np.zeros((model.rounds, model.rounds))
        for t in range(model.rounds):
            table[t, : t + 1] = weights(Timeline(tuple(range(t)), (1,) * t, now=t, size=1))
        return table


ALGORITHMS = (
    Algorithm(name="FedAvg"),
    Algorithm(name="FedProx", mu=0.1),
    Algorithm(name="CFL", information_loss_level=0.0),
    Algorithm(name="CFL-0.001", information_loss_level=0.001),
    Algorithm(name="CFL-0.01", information_loss_level=0.01),
)
"""The paper's algorithms."""

PRESETS = {
    "p1": Model(),
    "p2": Model(dimension=10, steps=3, rounds=30, spectrum="log"),
    "p3": Model(dimension=20, steps=5, rounds=200, start="near"),
}
"""Three choices of what the paper leaves open; see the errata page."""


def settings(preset: Model) -> dict[str, Model]:
    """Return the paper's eight settings.

    Their names say if the drift is small or big (SRD, BRD), *L* small or large (SL, LL), and the objective
    strongly convex or not (SC, GC).

    >>> list(settings(PRESETS["p1"]))[:5]
    ['SRD-SL-SC', 'SRD-LL-SC', 'SRD-SL-GC', 'SRD-LL-GC', 'BRD-SL-SC']
    """
    return {
        f"{drift}-{size}-{kind}": msgspec.structs.replace(
            preset, smoothness=smoothness, convexity=convexity, time_drift_sq=square
        )
        for drift, square in (("SRD", 0.01), ("BRD", 100.0))
        for kind, convexity in (("SC", 1.0), ("GC", 0.0))
        for size, smoothness in (("SL", 5.0), ("LL", 20.0))
    }


PAPER = {
    "FedAvg": (0.03, 0.08, 0.33, 0.09, 0.02, 0.01, 0.09, 0.02),
    "FedProx": (0.04, 0.07, 0.35, 0.09, 0.02, 0.01, 0.26, 0.02),
    "CFL": (0.2, 0.09, 0.35, 0.09, 0.25, 0.08, 0.3, 0.08),
}
"""Best learning rates in the order of :func:`settings`
(``Best learning rate of different algorithms on noisy quadratic model``)."""

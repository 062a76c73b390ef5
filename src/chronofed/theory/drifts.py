r"""What drifts and information loss leave: the constants of the theorems, variance and bias.

With :math:`M^2 = \max(0, D^2 - F^2)`, the optimal weights of the present and of all the past together are

.. math::
    p_T = \frac{M^2 + (T-1) R^2}{T M^2 + (T-1) R^2} \to \frac{R^2}{R^2 + M^2}, \qquad
    1 - p_T = \frac{(T-1) M^2}{T M^2 + (T-1) R^2} \to \frac{M^2}{R^2 + M^2}.

Where clients never come back (*stateless*), the past is other clients', so :math:`G^2` is averaged like the
time drift and joins :math:`M^2`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from chronofed.theory.symbols import Array, Drifts, Number, checked, plain, read


@dataclass(frozen=True, slots=True)
class Constants:
    r"""The constants of ``Convergence rate of CFL full``, with the paper's symbols.

    Attributes:
        c_O: :math:`1 + B^2 + \max(A^2, C^2)`.
        c_A: :math:`G^2 + \min(F^2, D^2) + M^2 c_{R1}`, the variance that stays for ever.
        c_B: :math:`M^2 c_{R2}`, the variance that fades while rounds are collected.
        c_C: :math:`L (\sigma^2 / K + c_A) / \eta_g^2`.
        c_D: :math:`L c_B / \eta_g^2`.
        c_R1: :math:`R^2 / (R^2 + M^2)`, the weight of the present in the end; 1 for FedAvg.
        c_R2: :math:`(M^2 / (R^2 + M^2))^2`.
    """

    c_O: Number
    c_A: Number
    c_B: Number
    c_C: Number
    c_D: Number
    c_R1: Number
    c_R2: Number


def constants(*, stateless: bool = False, **symbols: Unpack[Drifts]) -> Constants:
    """The constants of ``Convergence rate of CFL full``.

    FedAvg is ``loss=inf``. Without ``covariance`` and ``covariance_slope`` drifts of different rounds are
    independent; with them this is ``Convergence rate of CFL with correlated time drifts``.

    Args:
        stateless: Whether clients never come back.
        **symbols: See :class:`~chronofed.theory.symbols.Drifts`.

    Raises:
        ValueError: If a symbol is out of range.

    >>> constants(client_drift=1.0, drift=2.0, loss=2.0).c_A
    2.0
    >>> constants(client_drift=1.0, drift=2.0, loss=3.0, stateless=True).c_A
    1.5
    >>> constants(drift=3.0, loss=[0.0, 1.0, np.inf]).c_A
    array([0.  , 0.75, 3.  ])
    """
    return derive(read(Drifts, symbols), stateless)


def derive(symbols: Mapping[str, Array], stateless: bool) -> Constants:
    """The constants of symbols that have been checked."""
    own, shared = _parts(symbols, stateless)
    present, past = _shares(own, symbols["loss"])
    c_A, c_B = shared + own * present, own * past**2
    local = symbols["smoothness"] / symbols["server_lr"] ** 2
    return Constants(
        c_O=plain(
            1
            + symbols["client_slope"]
            + np.fmax(symbols["time_slope"], symbols["covariance_slope"])
        ),
        c_A=plain(c_A),
        c_B=plain(c_B),
        c_C=plain(local * (symbols["noise"] / symbols["steps"] + c_A)),
        c_D=plain(local * c_B),
        c_R1=plain(present),
        c_R2=plain(past**2),
    )


def variance(
    rounds: ArrayLike,
    drift: ArrayLike,
    loss: ArrayLike,
    client_drift: ArrayLike = 0.0,
    covariance: ArrayLike = 0.0,
    stateless: bool = False,
) -> Number:
    r"""Variance of the gradients in round *T* under optimal weights (``best p in appendix``).

    .. math:: G^2 + \min(F^2, D^2) + M^2\, \frac{M^2 + (T-1) R^2}{T M^2 + (T-1) R^2} \to c_A.

    Args:
        rounds: Rounds *T* that can be weighed, the present among them.
        drift: Time drift :math:`D^2`.
        loss: Squared information loss :math:`R^2`.
        client_drift: Client drift :math:`G^2`.
        covariance: Covariance :math:`F^2` of time drifts of different rounds.
        stateless: Whether clients never come back.

    >>> variance(4, drift=2.0, loss=1.0)
    0.9090909090909091
    >>> variance([1, 2, 3], drift=1.0, loss=0.0, client_drift=1.0)
    array([2.        , 1.5       , 1.33333333])
    """
    symbols = checked(
        {
            "rounds": rounds,
            "drift": drift,
            "loss": loss,
            "client_drift": client_drift,
            "covariance": covariance,
        }
    )
    own, shared = _parts(symbols, stateless)
    return plain(shared + own * _shares(own, symbols["loss"], symbols["rounds"])[0])


def bias(
    drift: ArrayLike,
    loss: ArrayLike,
    distance: ArrayLike = 1.0,
    rounds: ArrayLike | None = None,
    covariance: ArrayLike = 0.0,
    client_drift: ArrayLike = 0.0,
    stateless: bool = False,
) -> Number:
    r"""The bias that no learning rate can remove: rates lead to :math:`\varepsilon + \varphi`.

    .. math:: \varphi = R\, (1 - p_T)\, \|w_0 - w^*\| \to \frac{R M^2}{R^2 + M^2}\, \|w_0 - w^*\|.

    It does not grow with *R* for ever: in the limit it peaks at :math:`R = M`.

    Args:
        drift: Time drift :math:`D^2`.
        loss: Squared information loss :math:`R^2`.
        distance: :math:`\|w_0 - w^*\|^2`, a square, too.
        rounds: Rounds *T* that can be weighed; ``None`` for the limit.
        covariance: Covariance :math:`F^2` of time drifts of different rounds.
        client_drift: Client drift :math:`G^2`; it plays a part for stateless clients only.
        stateless: Whether clients never come back.

    >>> bias(drift=4.0, loss=[0.0, 1.0, 4.0, 16.0, np.inf])
    array([0. , 0.8, 1. , 0.8, 0. ])
    >>> bias(drift=4.0, loss=4.0, rounds=2)
    0.6666666666666666
    """
    symbols = checked(
        {
            "drift": drift,
            "loss": loss,
            "distance": distance,
            "covariance": covariance,
            "client_drift": client_drift,
        }
        | ({} if rounds is None else {"rounds": rounds})
    )
    return leftover(symbols, stateless)


def leftover(symbols: Mapping[str, Array], stateless: bool) -> Number:
    """The bias for symbols that have been checked."""
    own, _ = _parts(symbols, stateless)
    past = _shares(own, symbols["loss"], symbols.get("rounds"))[1]
    size = np.sqrt(np.where(past > 0, symbols["loss"], 0.0)) * np.sqrt(symbols["distance"])
    return plain(size * past)


def _parts(symbols: Mapping[str, Array], stateless: bool) -> tuple[Array, Array]:
    """What weights can average out, and what all rounds share."""
    drift, covariance = symbols["drift"], symbols["covariance"]
    own, shared = np.fmax(0.0, drift - covariance), np.fmin(covariance, drift)
    if stateless:
        return own + symbols["client_drift"], shared
    return own, shared + symbols["client_drift"]


def _shares(own: Array, loss: Array, rounds: Array | None = None) -> tuple[Array, Array]:
    """Weights of the present and of all the past together; without rounds their limits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        extra = np.zeros(()) if rounds is None else 1 / (rounds - 1)
        total = own * (1 + extra) + loss
        remembers = (own > 0) & (loss < math.inf) & (extra < math.inf)
        present = np.where(remembers, (own * extra + loss) / total, 1.0)
        past = np.where(remembers, own / total, 0.0)
    return present, past

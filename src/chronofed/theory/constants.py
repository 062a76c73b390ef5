r"""The constants of the theorems, and the variance and bias that drifts and information loss cause.

With :math:`M^2 = \max(0, D^2 - F^2)`, the optimal weights of the present and of all the past together are

.. math::
    p_T = \frac{M^2 + (T-1) R^2}{T M^2 + (T-1) R^2} \to \frac{R^2}{R^2 + M^2}, \qquad
    1 - p_T = \frac{(T-1) M^2}{T M^2 + (T-1) R^2} \to \frac{M^2}{R^2 + M^2}.

If clients never come back (*stateless*), the past belongs to other clients, so :math:`G^2` averages out like
the time drift and is added to :math:`M^2`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from chronofed.theory.symbols import Array, DriftSymbols, Number, checked, plain, read


@dataclass(frozen=True, slots=True)
class Constants:
    r"""The constants of ``Convergence rate of CFL full``, with the paper's symbols.

    Attributes:
        c_O: :math:`1 + B^2 + \max(A^2, C^2)`.
        c_A: :math:`G^2 + \min(F^2, D^2) + M^2 c_{R1}`, the variance that never goes away.
        c_B: :math:`M^2 c_{R2}`, the variance that vanishes as rounds are collected.
        c_C: :math:`L (\sigma^2 / K + c_A) / \eta_g^2`.
        c_D: :math:`L c_B / \eta_g^2`.
        c_R1: :math:`R^2 / (R^2 + M^2)`, the limit of the present's weight; 1 for FedAvg.
        c_R2: :math:`(M^2 / (R^2 + M^2))^2`.
    """

    c_O: Number
    c_A: Number
    c_B: Number
    c_C: Number
    c_D: Number
    c_R1: Number
    c_R2: Number


def constants(*, stateless: bool = False, **symbols: Unpack[DriftSymbols]) -> Constants:
    """Compute the constants of ``Convergence rate of CFL full``.

    FedAvg is ``information_loss_sq=inf``. Without ``covariance`` and ``covariance_slope`` drifts of different
    rounds are independent; with them this is ``Convergence rate of CFL with correlated time drifts``.

    Args:
        stateless: Whether clients never come back.
        **symbols: See :class:`~chronofed.theory.symbols.DriftSymbols`.

    Raises:
        ValueError: If a symbol is out of range.

    >>> constants(client_drift_sq=1.0, time_drift_sq=2.0, information_loss_sq=2.0).c_A
    2.0
    >>> constants(client_drift_sq=1.0, time_drift_sq=2.0, information_loss_sq=3.0, stateless=True).c_A
    1.5
    >>> constants(time_drift_sq=3.0, information_loss_sq=[0.0, 1.0, np.inf]).c_A
    array([0.  , 0.75, 3.  ])
    """
    return derive_constants(read(DriftSymbols, symbols), stateless)


def derive_constants(symbols: Mapping[str, Array], stateless: bool) -> Constants:
    """Compute the constants from checked symbols."""
    own, shared = _parts(symbols, stateless)
    present, past = _shares(own, symbols["information_loss_sq"])
    growth = np.fmax(symbols["time_slope_sq"], symbols["covariance_slope"])
    c_A, c_B = shared + own * present, own * past**2
    local = symbols["smoothness"] / symbols["server_lr"] ** 2
    return Constants(
        c_O=plain(1 + symbols["client_slope_sq"] + growth),
        c_A=plain(c_A),
        c_B=plain(c_B),
        c_C=plain(local * (symbols["noise_sq"] / symbols["steps"] + c_A)),
        c_D=plain(local * c_B),
        c_R1=plain(present),
        c_R2=plain(past**2),
    )


def variance(
    rounds: ArrayLike,
    time_drift_sq: ArrayLike,
    information_loss_sq: ArrayLike,
    client_drift_sq: ArrayLike = 0.0,
    covariance: ArrayLike = 0.0,
    stateless: bool = False,
) -> Number:
    r"""Compute the variance of the gradients in round *T* under optimal weights (``best p in appendix``).

    .. math:: G^2 + \min(F^2, D^2) + M^2\, \frac{M^2 + (T-1) R^2}{T M^2 + (T-1) R^2} \to c_A.

    Args:
        rounds: Rounds *T* that can be weighed, including the present.
        time_drift_sq: Time drift :math:`D^2`.
        information_loss_sq: Information loss :math:`R^2`.
        client_drift_sq: Client drift :math:`G^2`.
        covariance: Covariance :math:`F^2` of time drifts of different rounds.
        stateless: Whether clients never come back.

    >>> variance(4, time_drift_sq=2.0, information_loss_sq=1.0)
    0.9090909090909091
    >>> variance([1, 2, 3], time_drift_sq=1.0, information_loss_sq=0.0, client_drift_sq=1.0)
    array([2.        , 1.5       , 1.33333333])
    """
    symbols = checked(
        {
            "rounds": rounds,
            "time_drift_sq": time_drift_sq,
            "information_loss_sq": information_loss_sq,
            "client_drift_sq": client_drift_sq,
            "covariance": covariance,
        }
    )
    own, shared = _parts(symbols, stateless)
    present, _ = _shares(own, symbols["information_loss_sq"], symbols["rounds"])
    return plain(shared + own * present)


def bias(
    time_drift_sq: ArrayLike,
    information_loss_sq: ArrayLike,
    distance_sq: ArrayLike = 1.0,
    rounds: ArrayLike | None = None,
    covariance: ArrayLike = 0.0,
    client_drift_sq: ArrayLike = 0.0,
    stateless: bool = False,
) -> Number:
    r"""Compute the bias that no learning rate removes: the error tends to :math:`\varepsilon + \varphi`.

    .. math:: \varphi = R\, (1 - p_T)\, \|w_0 - w^*\| \to \frac{R M^2}{R^2 + M^2}\, \|w_0 - w^*\|.

    It does not grow with *R* without bound: in the limit it peaks at :math:`R = M`.

    Args:
        time_drift_sq: Time drift :math:`D^2`.
        information_loss_sq: Information loss :math:`R^2`.
        distance_sq: :math:`\|w_0 - w^*\|^2`.
        rounds: Rounds *T* that can be weighed; ``None`` for the limit.
        covariance: Covariance :math:`F^2` of time drifts of different rounds.
        client_drift_sq: Client drift :math:`G^2`; it matters for stateless clients only.
        stateless: Whether clients never come back.

    >>> bias(time_drift_sq=4.0, information_loss_sq=[0.0, 1.0, 4.0, 16.0, np.inf])
    array([0. , 0.8, 1. , 0.8, 0. ])
    >>> bias(time_drift_sq=4.0, information_loss_sq=4.0, rounds=2)
    0.6666666666666666
    """
    symbols = checked(
        {
            "time_drift_sq": time_drift_sq,
            "information_loss_sq": information_loss_sq,
            "distance_sq": distance_sq,
            "covariance": covariance,
            "client_drift_sq": client_drift_sq,
        }
        | ({} if rounds is None else {"rounds": rounds})
    )
    return derive_bias(symbols, stateless)


def derive_bias(symbols: Mapping[str, Array], stateless: bool) -> Number:
    """Compute the bias from checked symbols."""
    own, _ = _parts(symbols, stateless)
    loss = symbols["information_loss_sq"]
    _, past = _shares(own, loss, symbols.get("rounds"))
    size = np.sqrt(np.where(past > 0, loss, 0.0)) * np.sqrt(symbols["distance_sq"])
    return plain(size * past)


def _parts(symbols: Mapping[str, Array], stateless: bool) -> tuple[Array, Array]:
    """Split the drifts into what weights can average out and what all rounds share."""
    drift, covariance = symbols["time_drift_sq"], symbols["covariance"]
    own, shared = np.fmax(0.0, drift - covariance), np.fmin(covariance, drift)
    if stateless:
        return own + symbols["client_drift_sq"], shared
    return own, shared + symbols["client_drift_sq"]


def _shares(own: Array, loss: Array, rounds: Array | None = None) -> tuple[Array, Array]:
    """Return the weights of the present and of all the past together; without ``rounds``, their limits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        extra = np.zeros(()) if rounds is None else 1 / (rounds - 1)
        total = own * (1 + extra) + loss
        remembers = (own > 0) & (loss < math.inf) & (extra < math.inf)
        present = np.where(remembers, (own * extra + loss) / total, 1.0)
        past = np.where(remembers, own / total, 0.0)
    return present, past

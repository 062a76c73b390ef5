"""The symbols of the theorems: names, defaults and ranges."""

import math
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Number = float | Array


class DriftSymbols(TypedDict, total=False):
    r"""Symbols that the constants of the theorems depend on.

    Drifts, losses and noise default to 0, the other symbols to 1. Names that end in ``_sq`` are squares of the
    paper's symbols. A covariance is a second moment already, so its names have no ending.

    Attributes:
        client_drift_sq: Client drift :math:`G^2`.
        time_drift_sq: Time drift :math:`D^2`.
        information_loss_sq: Information loss :math:`R^2`; may be infinite.
        client_slope_sq: :math:`B^2`, the growth of :math:`G^2` with the squared norm of the gradient.
        time_slope_sq: :math:`A^2`, the same growth of :math:`D^2`.
        covariance: Covariance :math:`F^2` of time drifts of different rounds.
        covariance_slope: :math:`C^2`, the growth of :math:`F^2` with the squared norm of the gradient.
        noise_sq: Variance :math:`\sigma^2` of stochastic gradients.
        smoothness: Lipschitz constant *L* of the gradients.
        steps: Local steps *K*.
        server_lr: Global step size :math:`\eta_g`.
    """

    client_drift_sq: ArrayLike
    time_drift_sq: ArrayLike
    information_loss_sq: ArrayLike
    client_slope_sq: ArrayLike
    time_slope_sq: ArrayLike
    covariance: ArrayLike
    covariance_slope: ArrayLike
    noise_sq: ArrayLike
    smoothness: ArrayLike
    steps: ArrayLike
    server_lr: ArrayLike


class Problem(DriftSymbols, total=False):
    r"""Symbols that rates depend on, besides the accuracy.

    Attributes:
        clients: Clients *N* of a round.
        convexity: Strong convexity :math:`\mu`; required for strongly convex objectives.
        distance_sq: :math:`\mathcal{H} = \|w_0 - w^*\|^2`.
        gap: :math:`f_0 - f_*`.
        c_m: The constant :math:`c_m` of the non-convex case.
    """

    clients: ArrayLike
    convexity: ArrayLike
    distance_sq: ArrayLike
    gap: ArrayLike
    c_m: ArrayLike


_ONE = {"smoothness", "steps", "server_lr", "clients", "distance_sq", "gap", "c_m"}
_POSITIVE = {"epsilon", "smoothness", "server_lr", "c_m"}
_AT_LEAST_ONE = {"steps", "clients", "rounds", "c_O"}
_MAY_BE_INFINITE = {"information_loss_sq"}


def read(
    kind: type[DriftSymbols], given: Mapping[str, object], **others: ArrayLike
) -> dict[str, Array]:
    """Return all symbols of a kind, and others, as arrays of one shape.

    Raises:
        TypeError: If a symbol is unknown.
        ValueError: If a value is out of range.
    """
    names = list(kind.__annotations__)
    unknown = sorted(set(given) - set(names))
    if unknown:
        msg = f"unexpected keyword argument '{unknown[0]}'; expected some of {', '.join(names)}"
        raise TypeError(msg)
    defaults = {name: float(name in _ONE) for name in names}
    return checked({**defaults, **given, **others})


def checked(values: Mapping[str, object]) -> dict[str, Array]:
    """Return values as arrays of one shape.

    Raises:
        ValueError: If a value is out of range, or shapes do not broadcast.
    """
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    for name, array in arrays.items():
        legal = _legal(name, array)
        if not legal.all():
            msg = f"{name}: expected a {_range(name)}, not {array[~legal].flat[0]:g}"
            raise ValueError(msg)
    return dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))


def plain(value: Number) -> Number:
    """Return a float if there is only one number."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def _legal(name: str, value: Array) -> NDArray[np.bool_]:
    low = value > 0 if name in _POSITIVE else value >= float(name in _AT_LEAST_ONE)
    return np.asarray(low & ((value < math.inf) | (name in _MAY_BE_INFINITE)))


def _range(name: str) -> str:
    finite = "" if name in _MAY_BE_INFINITE else "finite "
    return f"{finite}number {'>' if name in _POSITIVE else '>='} {int(name in _AT_LEAST_ONE)}"

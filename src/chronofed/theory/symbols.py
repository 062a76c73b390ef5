"""The symbols of the theorems: their names, what they are unless given, and which values they may have."""

import math
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Number = float | Array


class Drifts(TypedDict, total=False):
    r"""What the constants of the theorems depend on; squares are 0 and all others 1 unless given.

    Attributes:
        client_drift: Client drift :math:`G^2`.
        drift: Time drift :math:`D^2`.
        loss: Squared information loss :math:`R^2`; may be infinite.
        client_slope: :math:`B^2`, the part of the client drift that grows with the gradient.
        time_slope: :math:`A^2`, the same of the time drift.
        covariance: Covariance :math:`F^2` of time drifts of different rounds.
        covariance_slope: :math:`C^2`, the part of it that grows with the gradient.
        noise: Variance :math:`\sigma^2` of stochastic gradients.
        smoothness: Lipschitz constant *L* of the gradients.
        steps: Local steps *K*.
        server_lr: Global step size :math:`\eta_g`.
    """

    client_drift: ArrayLike
    drift: ArrayLike
    loss: ArrayLike
    client_slope: ArrayLike
    time_slope: ArrayLike
    covariance: ArrayLike
    covariance_slope: ArrayLike
    noise: ArrayLike
    smoothness: ArrayLike
    steps: ArrayLike
    server_lr: ArrayLike


class Problem(Drifts, total=False):
    r"""What rates depend on besides the accuracy.

    Attributes:
        clients: Clients *N* of a round.
        convexity: Strong convexity :math:`\mu`; must be given where objectives are strongly convex.
        distance: :math:`\mathcal{H} = \|w_0 - w^*\|^2`.
        gap: :math:`f_0 - f_*`.
        c_m: The constant :math:`c_m` of the non-convex case.
    """

    clients: ArrayLike
    convexity: ArrayLike
    distance: ArrayLike
    gap: ArrayLike
    c_m: ArrayLike


_ONE = {"smoothness", "steps", "server_lr", "clients", "distance", "gap", "c_m"}
_POSITIVE = {"epsilon", "smoothness", "server_lr", "c_m"}
_AT_LEAST_ONE = {"steps", "clients", "rounds", "c_O"}
_MAY_BE_INFINITE = {"loss"}


def read(kind: type[Drifts], given: Mapping[str, object], **others: ArrayLike) -> dict[str, Array]:
    """All symbols of a kind, and others, as arrays of one shape.

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
    """Values as arrays of one shape.

    Raises:
        ValueError: If one is out of range, or shapes do not fit.
    """
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    for name, array in arrays.items():
        legal = _legal(name, array)
        if not legal.all():
            msg = f"{name}: expected a {_range(name)}, not {array[~legal].flat[0]:g}"
            raise ValueError(msg)
    return dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))


def plain(value: Number) -> Number:
    """A float if there is only one number."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def _legal(name: str, value: Array) -> NDArray[np.bool_]:
    low = value > 0 if name in _POSITIVE else value >= float(name in _AT_LEAST_ONE)
    return np.asarray(low & ((value < math.inf) | (name in _MAY_BE_INFINITE)))


def _range(name: str) -> str:
    finite = "" if name in _MAY_BE_INFINITE else "finite "
    return f"{finite}number {'>' if name in _POSITIVE else '>='} {int(name in _AT_LEAST_ONE)}"

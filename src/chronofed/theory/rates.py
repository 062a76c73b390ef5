"""Rounds until an accuracy is reached, and the learning rates that the proofs allow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from chronofed.theory.constants import Constants, derive_bias, derive_constants
from chronofed.theory.symbols import Array, Number, Problem, checked, plain, read


@dataclass(frozen=True, slots=True)
class Rounds:
    r"""Rounds until the expected error is below :math:`\varepsilon + \varphi`, without the constant of O().

    Attributes:
        terms: The terms of the theorem by name, in its order.
        total: Their sum.
        phi: The bias :math:`\varphi`, see :func:`~chronofed.theory.bias`.
        constants: The constants of the terms.
    """

    terms: Mapping[str, Number]
    total: Number
    phi: Number
    constants: Constants


@dataclass(frozen=True, slots=True)
class _Special:
    """Symbols that an algorithm fixes, and constants that it does not have."""

    symbols: Mapping[str, float]
    without: tuple[str, ...] = ()


_DRIFTS = (
    "client_drift_sq",
    "time_drift_sq",
    "client_slope_sq",
    "time_slope_sq",
    "covariance",
    "covariance_slope",
)
_ALGORITHMS = {
    "sgd": _Special(dict.fromkeys(_DRIFTS, 0.0), without=("c_C", "c_R1")),
    "fedavg": _Special({"information_loss_sq": math.inf, "covariance_slope": 0.0}),
    "cl": _Special({"clients": 1.0, "client_drift_sq": 0.0, "client_slope_sq": 0.0}),
    "cfl": _Special({}),
}

Choice = TypeVar("Choice")
Terms = Callable[[Mapping[str, Array], Constants], dict[str, Array]]

# Divisors are not multiplied with each other: the product of tiny ones is 0 and would turn 0 into 0/0.


def _strongly_convex(s: Mapping[str, Array], c: Constants) -> dict[str, Array]:
    mu, epsilon = s["convexity"], s["epsilon"]
    return {
        "curvature": s["smoothness"] * c.c_O / mu,
        "noise": s["noise_sq"] / (s["clients"] * s["steps"]) / mu / epsilon,
        "drift": c.c_A / mu / epsilon,
        "early rounds": np.sqrt(c.c_B / mu / epsilon),
        "local steps": np.sqrt(c.c_C / epsilon) / mu,
        "early local steps": np.cbrt(c.c_D / mu / mu / epsilon),
    }


def _convex(s: Mapping[str, Array], c: Constants) -> dict[str, Array]:
    distance, epsilon = s["distance_sq"], s["epsilon"]
    return {
        "curvature": s["smoothness"] * c.c_O * distance / epsilon,
        "early rounds": np.sqrt(c.c_B * distance) / epsilon,
        "early local steps": np.cbrt(c.c_D * distance**2) / epsilon,
        "noise": s["noise_sq"] * distance / (s["clients"] * s["steps"]) / epsilon / epsilon,
        "drift": c.c_A * distance / epsilon / epsilon,
        "local steps": np.sqrt(c.c_C / epsilon) * distance / epsilon,
    }


def _non_convex(s: Mapping[str, Array], c: Constants) -> dict[str, Array]:
    updates, smoothness, epsilon = s["steps"] * s["clients"], s["smoothness"], s["epsilon"]
    drift = np.sqrt(updates) * c.c_R1**2 / smoothness
    return {
        "descent": (smoothness * s["gap"] / s["c_m"] / epsilon) ** 2 / updates,
        "drift and noise": ((drift + s["noise_sq"] / np.sqrt(updates)) / epsilon) ** 2,
        "early rounds": np.sqrt(updates) * c.c_R2 / smoothness / s["c_m"] / epsilon,
    }


_CASES: dict[str, Terms] = {
    "strongly-convex": _strongly_convex,
    "convex": _convex,
    "non-convex": _non_convex,
}

ALGORITHMS = tuple(_ALGORITHMS)
CASES = tuple(_CASES)


def rounds(
    algorithm: str,
    case: str,
    *,
    epsilon: ArrayLike,
    stateless: bool = False,
    **symbols: Unpack[Problem],
) -> Rounds:
    r"""Compute the rounds *T* that an algorithm needs, term by term.

    For CFL (``Convergence rate of CFL full``) and strongly convex objectives

    .. math:: T = \frac{L c_O}{\mu} + \frac{\sigma^2}{\mu N K \varepsilon} + \frac{c_A}{\mu\varepsilon}
        + \sqrt{\frac{c_B}{\mu\varepsilon}} + \sqrt{\frac{c_C}{\mu^2\varepsilon}}
        + \sqrt[3]{\frac{c_D}{\mu^2\varepsilon}},

    for convex ones, with :math:`\mathcal{H} = \|w_0 - w^*\|^2`,

    .. math:: T = \frac{L c_O \mathcal{H} + \sqrt{c_B \mathcal{H}} + \sqrt[3]{c_D \mathcal{H}^2}}{\varepsilon}
        + \frac{\sigma^2 \mathcal{H}}{N K \varepsilon^2} + \frac{c_A \mathcal{H}}{\varepsilon^2}
        + \sqrt{\frac{c_C \mathcal{H}^2}{\varepsilon^3}},

    and without convexity

    .. math:: T = \frac{L^2 (f_0 - f_*)^2}{N K c_m^2 \varepsilon^2} + \frac{1}{\varepsilon^2}
        \Big(\frac{\sqrt{KN} c_{R1}^2}{L} + \frac{\sigma^2}{\sqrt{NK}}\Big)^2
        + \frac{\sqrt{KN} c_{R2}}{c_m \varepsilon L}.

    FedAvg (``Convergence rate of FedAvg full``) is CFL with :math:`R = \infty`. CL is CFL with one client and
    without client drift. SGD (``Convergence rates of different algorithms``) has no drifts and takes one step
    on what *N* clients would see in *K* steps, so :math:`c_C = 0` too. The paper gives no rate of SGD without
    convexity: this one is FedAvg's without its drift :math:`\sqrt{KN} c_{R1}^2 / L`. The proof does not
    determine the constant :math:`c_m` of that case; treat it as a unit.

    Args:
        algorithm: ``"sgd"``, ``"fedavg"``, ``"cl"`` or ``"cfl"``.
        case: ``"strongly-convex"``, ``"convex"`` or ``"non-convex"``.
        epsilon: Accuracy :math:`\varepsilon`.
        stateless: Whether clients never come back.
        **symbols: See :class:`~chronofed.theory.symbols.Problem`.

    Raises:
        ValueError: If the algorithm or case is unknown, or a symbol out of range.

    >>> known = {"convexity": 0.5, "time_drift_sq": 1.0, "information_loss_sq": 1.0, "noise_sq": 2.0}
    >>> known["clients"] = 10
    >>> rounds("fedavg", "strongly-convex", epsilon=0.1, **known).terms["drift"]
    20.0
    >>> rounds("cfl", "strongly-convex", epsilon=0.1, **known).terms["drift"]
    10.0
    >>> rounds("sgd", "convex", epsilon=[0.1, 0.01], noise_sq=2.0).total
    array([  210., 20100.])
    """
    special, terms = _pick("algorithm", algorithm, _ALGORITHMS), _pick("case", case, _CASES)
    known = read(Problem, symbols, epsilon=epsilon)
    if terms is _strongly_convex:
        _check_convexity(known)
    known |= {name: np.full_like(known[name], fixed) for name, fixed in special.symbols.items()}
    found = derive_constants(known, stateless)
    zero = plain(np.zeros_like(known["epsilon"]))
    found = replace(found, **dict.fromkeys(special.without, zero))
    # More rounds than a float can hold are infinitely many.
    with np.errstate(over="ignore", divide="ignore"):
        parts = {name: plain(value) for name, value in terms(known, found).items()}
    return Rounds(parts, plain(sum(parts.values(), zero)), derive_bias(known, stateless), found)


def safe_lr(
    smoothness: ArrayLike, steps: ArrayLike, server_lr: ArrayLike = 1.0, c_O: ArrayLike = 1.0
) -> Number:
    r"""Compute the largest local learning rate that the proof of ``Convergence rate of CFL`` allows.

    .. math:: \eta_l \le \frac{\sqrt{3 + 4 c_O \eta_g^2} - 2 \eta_g \sqrt{c_O}}{12 K L \sqrt{c_O}}.

    The theorem prints 6 instead of 12. With 6 the error does not grow, but the proof needs the term
    :math:`-\eta (f(w_t) - f^*)`, which is left only with 12. In practice learning rates are larger.

    Args:
        smoothness: Lipschitz constant *L* of the gradients.
        steps: Local steps *K*.
        server_lr: Global step size :math:`\eta_g`.
        c_O: See :class:`Constants`.

    >>> round(safe_lr(smoothness=1.0, steps=10), 6)
    0.005381
    """
    known = checked({"smoothness": smoothness, "steps": steps, "server_lr": server_lr, "c_O": c_O})
    root = np.sqrt(known["c_O"])
    twice = 2 * known["server_lr"] * root
    # The difference of the two roots, without cancellation.
    difference = 3 / (np.sqrt(3 + twice**2) + twice)
    return plain(difference / (12 * known["steps"] * known["smoothness"] * root))


def _pick(name: str, value: str, choices: Mapping[str, Choice]) -> Choice:
    if value not in choices:
        msg = f"{name}: expected one of {', '.join(choices)}, not {value!r}"
        raise ValueError(msg)
    return choices[value]


def _check_convexity(known: Mapping[str, Array]) -> None:
    wrong = (known["convexity"] <= 0) | (known["convexity"] > known["smoothness"])
    if wrong.any():
        value, most = (known[name][wrong].flat[0] for name in ("convexity", "smoothness"))
        msg = f"convexity: expected a number > 0 and at most smoothness, {most:g}, not {value:g}"
        raise ValueError(msg)

r"""Label-skewed splits of a data set, among clients and over time.

The paper's algorithms *Data splitting* and *SplitdataMain*, read as in the errata: every part draws
its class weights :math:`\theta \sim \mathrm{Dirichlet}(\alpha p)` and then its samples, class by
:math:`\theta` and sample uniformly without replacement; a class that runs out is dropped and
:math:`\theta` renormalised.
"""

import math
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import SpecError
from chronofed.scenarios.base import Indices

Prior: TypeAlias = Literal["shares", "symmetric"]
Weights: TypeAlias = NDArray[np.float64]

# A positive number whose reciprocal is still finite.
_SMALLEST = 1e-300


def split(
    labels: Indices,
    parts: int,
    size: int,
    alpha: float,
    rng: np.random.Generator,
    prior: Prior = "shares",
) -> list[Indices]:
    r"""Draw disjoint parts of ``size`` samples with skewed classes (algorithm *Data splitting*).

    The paper draws one sample at a time; here whole batches are drawn, with the same law (see
    :func:`_draw_counts`), and "uniformly without replacement" is one shuffle of every class.

    Args:
        labels: Class of every sample; any integers.
        parts: Number of parts.
        size: Samples in each part.
        alpha: Concentration: small values give parts of few classes.
        rng: Source of all randomness.
        prior: ``"shares"`` for :math:`\mathrm{Dirichlet}(\alpha p)`, where :math:`p` is the share
            of each class among the samples still left, or ``"symmetric"`` for
            :math:`\mathrm{Dirichlet}(\alpha, \dots, \alpha)` over the classes that still have
            samples: less skewed by a factor of the number of classes at the same ``alpha``.

    Returns:
        Positions in ``labels``, one array for each part, in random order.
    """
    _check(len(labels), parts, size, alpha)
    shuffled, left = _by_class(labels, rng)
    cursor = np.cumsum(left) - left
    result = []
    for _ in range(parts):
        log_theta = _log_dirichlet(_concentration(left, alpha, prior), rng)
        counts = _draw_counts(log_theta, left, size, rng)
        taken = [shuffled[at : at + n] for at, n in zip(cursor, counts, strict=True)]
        result.append(rng.permutation(np.concatenate(taken)))
        cursor, left = cursor + counts, left - counts
    return result


def two_level(
    labels: Indices,
    clients: int,
    subsets: int,
    client_alpha: float,
    time_alpha: float,
    rng: np.random.Generator,
    prior: Prior = "shares",
) -> list[list[Indices]]:
    """Split among clients, then each client's part among its subsets (algorithm *SplitdataMain*).

    Returns:
        ``result[client][subset]``: positions in ``labels``, all of :func:`subset_size`.
    """
    size = subset_size(len(labels), clients, subsets)
    owned = split(labels, clients, size * subsets, client_alpha, rng, prior)
    return [
        [part[pick] for pick in split(labels[part], subsets, size, time_alpha, rng, prior)]
        for part in owned
    ]


def subset_size(samples: int, clients: int, subsets: int) -> int:
    """Number of samples in each of ``clients * subsets`` equal subsets.

    Raises:
        SpecError: If it is zero.
    """
    size = samples // (clients * subsets)
    if not size:
        msg = (
            f"{samples} samples are too few for {clients} clients x {subsets} subsets: "
            "use fewer clients, fewer subsets or more data"
        )
        raise SpecError(msg)
    return size


def _check(samples: int, parts: int, size: int, alpha: float) -> None:
    if parts < 1 or size < 1:
        msg = f"cannot split into {parts} parts of {size} samples: both must be at least 1"
        raise SpecError(msg)
    if not (math.isfinite(alpha) and alpha > 0):
        msg = f"concentration alpha = {alpha}: use a finite number above 0 (100 is nearly uniform)"
        raise SpecError(msg)
    if parts * size > samples:
        msg = (
            f"{parts} parts of {size} samples need {parts * size}, but there are only {samples}: "
            "ask for fewer or smaller parts"
        )
        raise SpecError(msg)


def _by_class(labels: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Return all positions, class by class and shuffled within a class, and the size of each class."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    order = rng.permutation(len(labels))
    return order[np.argsort(codes[order], kind="stable")], sizes.astype(np.int64)


def _concentration(left: Indices, alpha: float, prior: Prior) -> Weights:
    """Return the parameters of the Dirichlet distribution; 0 for a class without samples."""
    weights = left / left.sum() if prior == "shares" else left > 0
    return np.asarray(alpha * weights, dtype=np.float64)


def _log_dirichlet(concentration: Weights, rng: np.random.Generator) -> Weights:
    r"""Return the logarithm of a Dirichlet draw, up to a constant.

    Gamma variates :math:`g_c = g'_c U_c^{1/a_c}` with :math:`g'_c \sim \Gamma(a_c + 1)`,
    normalised, are Dirichlet. For concentrations such as 0.01 they underflow: most weights are 0,
    and when the others run out nothing is left to renormalise. Their logarithms stay finite, so the
    ratios of the remaining weights are never lost and no special case is needed.
    """
    a = np.maximum(concentration, _SMALLEST)
    return np.log(rng.standard_gamma(a + 1)) - rng.standard_exponential(len(a)) / a


def _draw_counts(log_theta: Weights, left: Indices, size: int, rng: np.random.Generator) -> Indices:
    r"""Draw the number of samples of each class in a part; needs ``size <= left.sum()``.

    The paper's loop, by rejection: draw i.i.d. classes from :math:`\theta` and refuse those that
    have run out. A draw from :math:`\theta` given that it is not refused is a draw from the
    renormalised :math:`\theta`, so the accepted ones are the paper's. Whether a draw is refused
    depends only on the number of draws of its own class before it, so a batch accepts
    ``min(drawn, left)`` of each class, in any order. A batch never exceeds what is missing, hence
    stops where the loop stops; the next one merely skips the draws that are sure to be refused.
    Every batch but the last exhausts a class, so there are at most as many batches as classes.
    """
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        open_ = np.flatnonzero(counts < left)
        drawn = rng.multinomial(missing, _softmax(log_theta[open_]))
        counts[open_] += np.minimum(drawn, (left - counts)[open_])
    return counts


def _softmax(logarithms: Weights) -> Weights:
    """Normalise weights that are given by their logarithms (algorithm *renormalize*)."""
    weights = np.exp(logarithms - logarithms.max())
    return np.asarray(weights / weights.sum())

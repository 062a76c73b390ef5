"""An exact solver of the small quadratic programme behind all optimal round weights."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Weights = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Eigenvalues and pivots below this share of the largest are treated as 0.
SINGULAR = 1e-12
# Rounding alone may violate a condition by this share of its terms.
SLACK = 1e-10


def minimise(q: ArrayLike, nonnegative: bool = True) -> tuple[Weights, float]:
    r"""Find the weights of least variance.

    .. math:: \min_p\; p^\top Q\, p \quad\text{so that}\quad \sum_\tau p_\tau = 1 \quad(\text{and } p \ge 0).

    With the equality alone this is the linear system of ``Optimal choice of weights with correlated time
    drifts``: *p* is proportional to :math:`Q^{-1} 1`. If *Q* is singular (to 12 digits) and several weights
    are optimal, those of smallest norm are returned, so ``Q = 0`` gives equal weights. If weights must not be
    negative, an active set method (after Lawson and Hanson, 1974) finds the rounds with positive weight; ties
    among those are broken in the same way.

    Args:
        q: Symmetric positive semi-definite matrix ``(t, t)``.
        nonnegative: Whether to forbid negative weights (ascent on a past objective).

    Returns:
        The weights ``(t,)`` and the variance :math:`p^\top Q\, p`.

    Raises:
        ValueError: If ``q`` is not such a matrix.
        ArithmeticError: If ``q`` is singular and its entries differ so much in size that precision is lost.

    >>> q = [[2.0, 1.5, 0.25], [1.5, 2.0, 0.5], [0.25, 0.5, 1.0]]
    >>> p, variance = minimise(q, nonnegative=False)
    >>> p.round(4), round(variance, 4)
    (array([ 0.3226, -0.0323,  0.7097]), 0.7742)
    >>> p, variance = minimise(q)
    >>> p.round(4), round(variance, 4)
    (array([0.3, 0. , 0.7]), 0.775)
    """
    matrix = checked(q)
    weights = _balanced(matrix)
    if nonnegative and weights.min() < 0:
        weights = _active_set(matrix, _feasible(matrix, weights))
    return weights, float(weights @ matrix @ weights)


def checked(q: ArrayLike) -> Matrix:
    """Return the matrix if it is square, finite and symmetric.

    Raises:
        ValueError: If it is not.
    """
    matrix = np.asarray(q, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        msg = f"expected a square matrix, got shape {matrix.shape}"
        raise ValueError(msg)
    if not np.isfinite(matrix).all():
        msg = "expected finite numbers in the matrix"
        raise ValueError(msg)
    uneven = np.abs(matrix - matrix.T)
    if uneven.max() > SLACK * np.abs(matrix).max():
        i, j = np.unravel_index(uneven.argmax(), uneven.shape)
        msg = f"expected a symmetric matrix, but [{i}][{j}] = {matrix[i, j]}, [{j}][{i}] = {matrix[j, i]}"
        raise ValueError(msg)
    return matrix


def eigen(matrix: Matrix) -> tuple[Weights, Matrix]:
    """Compute eigenvalues, ascending, and eigenvectors of a positive semi-definite matrix.

    Raises:
        ValueError: If an eigenvalue is negative beyond rounding.
    """
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < -SLACK * max(abs(values[0]), values[-1]):
        msg = f"expected a positive semi-definite matrix, but it has the eigenvalue {values[0]:.3g}"
        raise ValueError(msg)
    return values, vectors


def _balanced(matrix: Matrix) -> Weights:
    """Find optimal weights of any sign: all entries of ``matrix @ p`` are equal."""
    if _regular(matrix):
        x = np.linalg.solve(matrix, np.ones(len(matrix)))
        return np.asarray(x / x.sum())
    values, vectors = eigen(matrix)
    # The vector 1 in the eigenbasis.
    ones = vectors.sum(0)
    null = values <= SINGULAR * values[-1]
    # The part of 1 in the null space gives weights without any variance.
    free = vectors[:, null] @ ones[null]
    if free @ free > SLACK:
        return np.asarray(free / free.sum())
    x = vectors[:, ~null] @ (ones[~null] / values[~null])
    return np.asarray(x / x.sum())


def _regular(matrix: Matrix) -> bool:
    """Tell if the matrix is positive definite to working precision, whatever the scale of its rows."""
    scale = np.sqrt(np.abs(matrix.diagonal()))
    if scale.min() == 0:
        return False
    try:
        factor = np.linalg.cholesky(matrix / scale / scale[:, None])
    except np.linalg.LinAlgError:
        return False
    return bool(factor.diagonal().min() ** 2 > SINGULAR)


def _feasible(matrix: Matrix, weights: Weights) -> Weights:
    """Drop rounds of negative weight until none is left: a start close to the optimum."""
    support = np.arange(len(weights))
    while weights.min() < 0:
        support = support[weights > 0]
        weights = _balanced(matrix[np.ix_(support, support)])
    return _spread(weights, support, len(matrix))


def _active_set(matrix: Matrix, weights: Weights) -> Weights:
    """Add rounds that lower the variance and remove those whose weight would become negative.

    Every pass ends at the optimum of its support, with a lower variance than before. So no support is visited
    twice and the method terminates, also under rounding.
    """
    while (entering := _improving(matrix, weights)) is not None:
        better = _exchange(matrix, weights, entering)
        if better @ matrix @ better >= weights @ matrix @ weights:
            break
        weights = better
    _certify(matrix, weights)
    return weights


def _improving(matrix: Matrix, weights: Weights) -> int | None:
    """Find the round that lowers the variance fastest if it gets a weight; none at the optimum."""
    gradient, size = matrix @ weights, np.abs(matrix) @ weights
    variance = weights @ gradient
    gain = variance - gradient - SLACK * (variance + size)
    best = int(gain.argmax())
    return best if gain[best] > 0 else None


def _exchange(matrix: Matrix, weights: Weights, entering: int) -> Weights:
    """Move towards the optimum of the support plus one round; weights that reach 0 on the way leave."""
    inside = weights > 0
    inside[entering] = True
    while True:
        support = np.flatnonzero(inside)
        target = _spread(_balanced(matrix[np.ix_(support, support)]), support, len(matrix))
        blocking = support[target[support] <= 0]
        if blocking.size == 0:
            return target
        steps = weights[blocking] / (weights[blocking] - target[blocking] + np.finfo(float).tiny)
        weights = weights + steps.min() * (target - weights)
        inside[blocking[steps == steps.min()]] = False
        weights = np.where(inside, np.maximum(weights, 0), 0)


def _certify(matrix: Matrix, weights: Weights) -> None:
    """Check optimality (Karush, Kuhn and Tucker): no entry of ``matrix @ p`` is below its mean under *p*.

    Then all entries with p > 0 are equal. Half of the excess variance is at most ``wrong``.
    """
    gradient = matrix @ weights
    wrong = float(weights @ gradient - gradient.min())
    if wrong > 1e-8 * matrix.diagonal().max():
        msg = f"weights are not optimal (by {wrong:.3g}): entries of the matrix differ too much in size"
        raise ArithmeticError(msg)


def _spread(weights: Weights, support: NDArray[np.int64], size: int) -> Weights:
    full = np.zeros(size)
    full[support] = weights
    return full

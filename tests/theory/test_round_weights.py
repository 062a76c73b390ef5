"""Round weights against the paper's table, exact arithmetic and the theorems' variances."""

from fractions import Fraction

import numpy as np
import pytest

from chronofed.methods.weighting import (
    Bounded,
    Correlated,
    Optimal,
    Timeline,
    closed_form,
    covariance,
    minimise,
    optimal,
)

NEAR_ONE = 1 - 1e-9
ONE = Fraction(1)


def timeline(past: int) -> Timeline:
    return Timeline(tuple(range(past)), (5,) * past, now=past, size=10)


def exact_covariance(times, drift, loss, alpha):
    """The matrix Q of the theorem in rational arithmetic."""
    now = times[-1]
    return [
        [alpha ** abs(i - j) * drift + (0 if now in (i, j) else loss) for j in times] for i in times
    ]


def exact_optimum(q):
    """The theorem's linear system by Gaussian elimination on fractions: weights, and p'Qp = -lambda."""
    t = len(q)
    rows = [[*map(Fraction, row), ONE, Fraction(0)] for row in q]
    rows.append([ONE] * t + [Fraction(0), ONE])
    for c in range(t + 1):
        pivot = next(r for r in range(c, t + 1) if rows[r][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        for r in range(c + 1, t + 1):
            factor = rows[r][c] / rows[c][c]
            pairs = zip(rows[r][c:], rows[c][c:], strict=True)
            rows[r][c:] = [x - factor * y for x, y in pairs]
    x = [Fraction(0)] * (t + 1)
    for r in reversed(range(t + 1)):
        rest = sum(rows[r][c] * x[c] for c in range(r + 1, t + 1))
        x[r] = (rows[r][-1] - rest) / rows[r][r]
    return x[:t], -x[t]


def errata(t, drift, loss, a):
    """The explicit expression for gaps of one round, literally; exact if its arguments are."""
    e = 1 - a
    n = 2 + (t - 2) * e
    total = n * e * (1 + a) * drift + (n - e) * loss
    present = (e * (1 + a) * drift + (a + n - 1) * loss) / total
    value = drift * (1 + a) * (e * (1 + a) * drift + loss * (a + (n - 1) * e)) / total
    if t == 1:
        return [ONE], drift
    if t == 2:
        return [e * (1 + a) * drift / total, (e * (1 + a) * drift + (1 + a) * loss) / total], value
    first = (e * (1 + a) * drift + a * loss) / total
    last = (e**2 * (1 + a) * drift - a * loss * ((t - 2) * e + a)) / total
    return [first, *[e * first] * (t - 3), last, present], value


def assert_equal(floats, exact, tolerance):
    worst = max(abs(Fraction(x) - y) for x, y in zip(floats.tolist(), exact, strict=True))
    assert worst <= tolerance, float(worst)


def assert_digits(floats, exact):
    """Every weight by itself, however small, to 13 digits."""
    ratios = [Fraction(x) / y for x, y in zip(floats.tolist(), exact, strict=True)]
    assert max(abs(ratio - 1) for ratio in ratios) < 1e-13


def lu(q):
    t = len(q)
    system = np.block([[q, np.ones((t, 1))], [np.ones((1, t)), np.zeros((1, 1))]])
    return np.linalg.solve(system, np.eye(t + 1)[-1])[:t]


TABLE = [  # alpha, D2, R2 (the columns are headed D and R), p_1 .. p_4
    (0.0, 2.0, 1.0, [0.1818, 0.1818, 0.1818, 0.4545]),
    (0.5, 1.0, 0.5, [0.2857, 0.1429, 0.0000, 0.5714]),
    (0.5, 1.0, 1.0, [0.2632, 0.1316, -0.0789, 0.6842]),
    (0.8, 1.0, 0.5, [0.3870, 0.0774, -0.2077, 0.7434]),
    (0.8, 2.0, 0.5, [0.3960, 0.0792, -0.1188, 0.6436]),
]


@pytest.mark.parametrize(("alpha", "drift", "loss", "want"), TABLE)
def test_the_papers_table(alpha, drift, loss, want):
    p = Correlated(drift, loss, alpha, nonnegative=False)(timeline(3))
    np.testing.assert_allclose(p, want, rtol=0, atol=5e-5)


@pytest.mark.parametrize(("alpha", "drift", "loss", "want"), TABLE[1:2] + TABLE[3:])
def test_the_papers_table_does_not_hold_plain_constants(alpha, drift, loss, want):
    assert np.abs(closed_form(4, drift**2, loss**2, alpha) - want).max() > 0.01


@pytest.mark.some(23)
@pytest.mark.parametrize("t", [1, 2, 3, 4, 5, 11, 40])
@pytest.mark.parametrize("alpha", ["0", "1/1000", "1/2", "4/5", "19/20"])
@pytest.mark.parametrize(("drift", "loss"), [(1, Fraction(1, 2)), (3, 7), (2, 0)])
def test_equals_the_linear_system_in_exact_arithmetic(t, alpha, drift, loss):
    a = Fraction(alpha)
    weights, value = exact_optimum(exact_covariance(range(t), drift, loss, a))
    assert (weights, value) == errata(t, Fraction(drift), Fraction(loss), a)
    p, variance = optimal(t, drift, float(loss), float(a), nonnegative=False)
    assert_equal(p, weights, 1e-15)
    assert variance == pytest.approx(float(value), rel=1e-14)


def test_near_one_the_closed_form_is_exact_where_factorisation_fails():
    t, drift, loss = 40, 1.0, 100.0
    weights, value = exact_optimum(exact_covariance(range(t), 1, 100, Fraction(NEAR_ONE)))
    p, variance = optimal(t, drift, loss, NEAR_ONE, nonnegative=False)
    assert_equal(p, weights, 1e-12)
    assert_digits(p, weights)
    assert variance == pytest.approx(float(value), rel=1e-14)
    assert np.abs(lu(covariance(t, drift, loss, NEAR_ONE)) - p).max() > 1e-6


@pytest.mark.parametrize("alpha", [np.nextafter(1, 0), 1 - 1e-12, 5e-324])
def test_the_ends_of_the_range_are_exact(alpha):
    weights, value = errata(25, ONE, Fraction(1, 4), Fraction(float(alpha)))
    p, variance = optimal(25, 1.0, 0.25, float(alpha), nonnegative=False)
    assert_equal(p, weights, 1e-14)
    assert variance == pytest.approx(float(value), rel=1e-13)


def test_equals_factorisation_for_many_rounds():
    q = covariance(500, 2.0, 0.7, 0.5)
    p, variance = optimal(500, 2.0, 0.7, 0.5, nonnegative=False)
    np.testing.assert_allclose(p, lu(q), rtol=0, atol=1e-13)
    assert variance == pytest.approx(p @ q @ p, rel=1e-12)


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(3, 5), Fraction(NEAR_ONE)])
def test_gaps_in_exact_arithmetic(alpha):
    times = (0, 3, 4, 9, 11, 12, 15)
    weights, value = exact_optimum(exact_covariance(times, 1, 2, alpha))
    p, variance = optimal(times, 1.0, 2.0, float(alpha), nonnegative=False)
    assert_digits(p, weights)
    assert variance == pytest.approx(float(value), rel=1e-14)


@pytest.mark.parametrize("alpha", [Fraction(1, 2), Fraction(9, 10), Fraction(NEAR_ONE)])
@pytest.mark.parametrize("times", [range(12), (0, 1, 5, 6, 8, 13, 14, 15), range(3)])
@pytest.mark.parametrize("loss", [Fraction(1, 64), Fraction(1), Fraction(50)])
def test_nonnegative_weights_are_optimal_in_exact_arithmetic(times, alpha, loss):
    """The optimality conditions hold exactly for the rounds that are left, and so for all."""
    q = exact_covariance(times, 1, loss, alpha)
    p, variance = optimal(times, 1.0, float(loss), float(alpha))
    support = np.flatnonzero(p).tolist()
    weights, value = exact_optimum([[q[i][j] for j in support] for i in support])
    gradient = [sum(row[j] * w for j, w in zip(support, weights, strict=True)) for row in q]
    assert min(weights) > 0
    assert min(gradient) == value
    assert_equal(p[support], weights, 1e-14)
    assert variance == pytest.approx(float(value), rel=1e-14)


@pytest.mark.parametrize(("alpha", "drift", "loss"), [(0.01, 1.0, 0.01), (0.5, 1.0, 0.1)])
def test_signed_weight_of_the_last_round_becomes_negative(alpha, drift, loss):
    last = [closed_form(t, drift, loss, alpha)[-2] for t in range(3, 20_000, 101)]
    assert last[0] > 0 > last[-1]
    crossing = next(t for t, p in zip(range(3, 20_000, 101), last, strict=True) if p < 0)
    e = 1 - alpha
    predicted = 2 + (e**2 * (1 + alpha) * drift / (alpha * loss) - alpha) / e
    assert crossing - 101 <= predicted <= crossing
    nonnegative = optimal(crossing, drift, loss, alpha)[0]
    assert nonnegative.min() == nonnegative[-2] == 0


@pytest.mark.parametrize("past", [0, 1, 2, 39])
def test_without_correlation_it_is_the_theorem(past):
    want = Optimal(2.0, 0.3)(timeline(past))
    for nonnegative in (True, False):
        p = Correlated(2.0, 0.3, 0.0, nonnegative)(timeline(past))
        np.testing.assert_allclose(p, want, rtol=1e-14)


@pytest.mark.parametrize("rounds", [1, 2, 10, 500])
@pytest.mark.parametrize(("client", "drift", "loss"), [(4.0, 1.0, 1.0), (0.5, 3.0, 0.2)])
def test_variance_after_finitely_many_rounds(rounds, client, drift, loss):
    """The finite form of the constant of ``Convergence rate of CFL``, not its limit."""
    p = Optimal(drift, loss)(timeline(rounds - 1))
    past = (rounds - 1) * loss
    want = client + drift * (drift + past) / (rounds * drift + past)
    got = client + p @ covariance(rounds, drift, loss) @ p
    assert got == pytest.approx(want, rel=1e-12)
    assert client + optimal(rounds, drift, loss)[1] == pytest.approx(want, rel=1e-12)


def stateless_variance(p, client, drift, loss):
    return (client + drift) * (p**2).sum() + (1 - p[-1]) ** 2 * loss


def test_stateless_clients_need_the_client_drift():
    """After 60 rounds with G2 = 4, D2 = R2 = 1: 0.891 instead of 1.54."""
    blind = Optimal(1.0, 1.0)(timeline(59))
    aware = Optimal(1.0, 1.0, client_drift_sq=4.0)(timeline(59))
    assert round(stateless_variance(blind, 4, 1, 1), 2) == 1.54
    assert round(stateless_variance(aware, 4, 1, 1), 3) == 0.891
    best = minimise(covariance(60, 5.0, 1.0))[0]
    np.testing.assert_allclose(aware, best, rtol=1e-12)


@pytest.mark.parametrize("loss", [0.1, 1.0, 10.0])
def test_cohort_aware_weights_minimise_the_variance_of_the_mean(loss):
    """A mean of 10 clients has a tenth of the variance, and all of the bias."""

    def variance(p):
        return 2.0 / 10 * (p**2).sum() + (1 - p[-1]) ** 2 * loss

    plain, aware = (Optimal(2.0, loss, cohort=n)(timeline(20)) for n in (1, 10))
    assert variance(aware) < variance(plain)
    np.testing.assert_allclose(aware, minimise(covariance(21, 0.2, loss))[0], rtol=1e-12)


@pytest.mark.parametrize(("client", "cohort"), [(0.0, 1), (1.5, 1), (0.0, 4), (1.5, 4)])
def test_bounded_minimises_the_variance_of_equally_correlated_drifts(client, cohort):
    drift, shared, loss, t = 3.0, 1.2, 0.7, 9
    q = np.full((t, t), shared) + (drift - shared + client) * np.eye(t)
    q /= cohort
    q[:-1, :-1] += loss
    p = Bounded(drift, loss, shared, client_drift_sq=client, cohort=cohort)(timeline(t - 1))
    np.testing.assert_allclose(p, minimise(q, nonnegative=False)[0], rtol=1e-12)


@pytest.mark.parametrize("shared", [1.0, 5.0])
def test_drifts_that_are_all_shared_leave_the_present_alone(shared):
    assert Bounded(1.0, 0.5, shared)(timeline(3)).tolist() == [0, 0, 0, 1]

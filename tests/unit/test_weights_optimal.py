"""Optimal weights: the quadratic programme against brute force, and the settings built on it."""

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chronofed.methods.weighting
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table
from chronofed.methods.optimal_weights import quadratic_program
from chronofed.methods.weighting import (
    Bounded,
    Correlated,
    Covariance,
    Optimal,
    RoundWeights,
    Timeline,
    closed_form,
    covariance,
    minimise,
    optimal,
)

positive = st.floats(0.01, 100)


def timeline(*rounds: int, now: int) -> Timeline:
    return Timeline(rounds, (5,) * len(rounds), now, size=10)


def brute_force(q):
    """Least variance of nonnegative weights, over all supports."""
    best = np.inf
    for size in range(1, len(q) + 1):
        for support in itertools.combinations(range(len(q)), size):
            part = q[np.ix_(support, support)]
            system = np.block([[part, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            p = np.linalg.lstsq(system, np.eye(size + 1)[-1], rcond=None)[0][:-1]
            if p.min() > -1e-9 and abs(p.sum() - 1) < 1e-9:
                best = min(best, p @ part @ p)
    return best


def assert_optimal(q, p, nonnegative, tolerance=1e-9):
    """Karush, Kuhn and Tucker: the gradient is equal where there is weight, and larger elsewhere."""
    gradient = q @ p
    excess = (gradient - p @ gradient) / (np.abs(q).max() or 1.0)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    inside = p > 0 if nonnegative else np.ones(len(p), dtype=bool)
    assert p[~inside].tolist() == [0.0] * (~inside).sum()
    assert np.abs(excess[inside]).max() < tolerance
    assert excess.min() > -tolerance


@st.composite
def matrices(draw, largest: int, ridge: float):
    """Positive semi-definite matrices, often singular if there is no ridge."""
    t, k = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    numbers = draw(st.lists(st.integers(-3, 3), min_size=t * k, max_size=t * k))
    root = np.array(numbers, dtype=float).reshape(t, k)
    return root @ root.T + ridge * np.eye(t)


@given(q=matrices(largest=6, ridge=0.0) | matrices(largest=6, ridge=0.1))
def test_nonnegative_programme_equals_brute_force(q):
    p, variance = minimise(q)
    assert p.min() >= 0
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert variance == pytest.approx(p @ q @ p, abs=1e-12)
    assert variance == pytest.approx(brute_force(q), rel=1e-7, abs=1e-9)


@given(q=matrices(largest=25, ridge=0.0) | matrices(largest=25, ridge=0.1), sign=st.booleans())
def test_optimality_conditions(q, sign):
    before = q.copy()
    assert_optimal(q, minimise(q, nonnegative=sign)[0], nonnegative=sign)
    np.testing.assert_array_equal(q, before)


HARD = [  # to drop all that is negative gives a wrong support; then rounds enter while others leave
    [
        [14.0, -11.0, -3.0, 11.0, -9.0],
        [-11.0, 23.0, 0.0, -9.0, 14.0],
        [-3.0, 0.0, 7.0, 2.0, 3.0],
        [11.0, -9.0, 2.0, 14.0, -6.0],
        [-9.0, 14.0, 3.0, -6.0, 10.0],
    ],
    [
        [6.0, 8.0, 1.0, 4.0, 5.0],
        [8.0, 11.0, 4.0, 4.0, 8.0],
        [1.0, 4.0, 31.0, -15.0, 2.0],
        [4.0, 4.0, -15.0, 14.0, 3.0],
        [5.0, 8.0, 2.0, 3.0, 19.0],
    ],
    [  # several would become negative at once, and not all of them must leave
        [26.0, 8.0, 5.0, 7.0, -16.0, -16.0],
        [8.0, 14.0, -2.0, 8.0, -6.0, -8.0],
        [5.0, -2.0, 19.0, -18.0, -4.0, -6.0],
        [7.0, 8.0, -18.0, 32.0, 6.0, 7.0],
        [-16.0, -6.0, -4.0, 6.0, 21.0, 21.0],
        [-16.0, -8.0, -6.0, 7.0, 21.0, 22.0],
    ],
]


@pytest.mark.parametrize("q", HARD)
def test_rounds_that_were_dropped_too_early_come_back(q):
    q = np.array(q)
    p, variance = minimise(q)
    assert variance == pytest.approx(brute_force(q), rel=1e-12)
    assert_optimal(q, p, nonnegative=True)
    greedy = quadratic_program._feasible(q, minimise(q, nonnegative=False)[0])
    assert greedy @ q @ greedy > variance + 0.01


def test_weights_that_are_not_optimal_are_not_certified(monkeypatch):
    quadratic_program._certify(np.eye(2), np.array([0.5, 0.5]))
    for wrong in ([0.6, 0.4], [1.0, 0.0]):
        with pytest.raises(ArithmeticError, match="weights are not optimal"):
            quadratic_program._certify(np.eye(2), np.array(wrong))
    monkeypatch.setattr(
        quadratic_program, "_improving", lambda *_: None
    )  # a search that stops too early
    with pytest.raises(ArithmeticError, match="weights are not optimal"):
        minimise(HARD[0])


def test_a_matrix_that_only_rounding_makes_singular_is_taken_as_such():
    """Factorisation alone would not notice: its last pivot is not 0."""
    root = np.array([[1.0, 3.0], [0.1, 0.7], [0.3, 2.1]])
    p, variance = minimise(root @ root.T, nonnegative=False)
    assert np.abs(p @ root).max() < 1e-12
    assert variance < 1e-24


@pytest.mark.parametrize("sign", [True, False])
@pytest.mark.parametrize(
    ("q", "want"),
    [
        (np.zeros((4, 4)), [0.25] * 4),
        (np.ones((4, 4)), [0.25] * 4),  # any weights do
        (np.diag([1.0, 0.0, 0.0]), [0, 0.5, 0.5]),  # no variance without the first
        (np.array([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]), [0.25, 0.25, 0.5]),  # twins
        (np.array([[4.0, -2.0], [-2.0, 1.0]]), [1 / 3, 2 / 3]),  # they cancel
        ([[3.0]], [1.0]),
    ],
)
def test_singular_matrices_give_the_smallest_weights(q, want, sign):
    p, variance = minimise(q, nonnegative=sign)
    np.testing.assert_allclose(p, want, atol=1e-14)
    assert variance == pytest.approx(np.asarray(want) @ q @ want, abs=1e-14)


def test_one_that_follows_another_is_singular_and_signed():
    q = np.outer([1.0, 2.0], [1.0, 2.0])
    np.testing.assert_allclose(minimise(q, nonnegative=False)[0], [2, -1], atol=1e-13)
    assert minimise(q)[0].tolist() == [1, 0]


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_unit_does_not_matter(scale):
    for sign in (True, False):
        q = covariance(6, 1.0, 2.0, 0.7)
        np.testing.assert_allclose(minimise(scale * q, sign)[0], minimise(q, sign)[0], rtol=1e-12)
        want, variance = optimal(6, 1.0, 2.0, 0.7, sign)
        p, scaled = optimal(6, scale, 2 * scale, 0.7, sign)
        np.testing.assert_allclose(p, want, rtol=1e-14)
        assert scaled == pytest.approx(scale * variance, rel=1e-14)


@pytest.mark.parametrize(
    ("q", "complaint"),
    [
        ([1.0, 2.0], r"square matrix, got shape \(2,\)"),
        (np.ones((2, 3)), r"square matrix, got shape \(2, 3\)"),
        (np.ones((0, 0)), r"square matrix, got shape \(0, 0\)"),
        ([[1.0, np.nan], [np.nan, 1.0]], "finite"),
        ([[1.0, 0.5], [0.4, 1.0]], r"symmetric matrix, but \[0\]\[1\] = 0.5, \[1\]\[0\] = 0.4"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive semi-definite matrix, but it has the eigenvalue -1"),
        ([[-1.0]], "eigenvalue -1"),
    ],
)
def test_what_is_not_a_covariance_is_refused(q, complaint):
    with pytest.raises(ValueError, match=complaint):
        minimise(q)


gapped = st.lists(st.integers(1, 4), max_size=12).map(lambda gaps: np.cumsum([0, *gaps]).tolist())


@given(rounds=gapped, drift=positive, loss=st.floats(0, 100), alpha=st.floats(0, 0.95))
def test_closed_form_solves_the_programme(rounds, drift, loss, alpha):
    q = covariance(rounds, drift, loss, alpha)
    for sign in (True, False):
        p, variance = optimal(rounds, drift, loss, alpha, nonnegative=sign)
        assert_optimal(q, p, nonnegative=sign, tolerance=1e-12)
        want, least = minimise(q, nonnegative=sign)
        np.testing.assert_allclose(p, want, rtol=0, atol=1e-7)
        assert variance == pytest.approx(least, rel=1e-9)


@given(
    past=st.integers(0, 300),
    drift=st.floats(0, 1e6),
    loss=st.floats(0, 1e6),
    alpha=st.floats(0, 1, exclude_max=True),
)
def test_weights_sum_to_one(past, drift, loss, alpha):
    everything = timeline(*range(past), now=past)
    shares = Correlated(drift, loss, alpha)(everything)
    assert shares.shape == (past + 1,)
    assert shares.min() >= 0
    signed = Correlated(drift, loss, alpha, nonnegative=False)(everything)
    for p in (shares, signed):
        assert p.sum() == pytest.approx(1, abs=1e-12)


def test_covariance_of_rounds_with_gaps():
    want = [[3, 2 + 0.25, 0.125], [2 + 0.25, 3, 0.5], [0.125, 0.5, 1]]
    assert covariance([4, 6, 7], 1.0, 2.0, 0.5).tolist() == want
    np.testing.assert_array_equal(
        covariance(3, 1.0, 2.0, 0.5), covariance([0, 1, 2], 1.0, 2.0, 0.5)
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_no_drift_leaves_the_present_alone(alpha):
    for loss in (0.0, 2.0):
        for sign in (True, False):
            p, variance = optimal(4, 0.0, loss, alpha, sign)
            assert (p.tolist(), variance) == ([0, 0, 0, 1], 0.0)
    assert closed_form(4, 1e-300, 1e300, alpha).tolist() == [0, 0, 0, 1]


def test_a_single_round_has_all_the_weight():
    assert (optimal(1, 3.0, 2.0, 0.5)[0].tolist(), optimal([7], 3.0, 2.0, 0.5)[1]) == ([1.0], 3.0)
    assert closed_form(1, 3.0, 2.0, 0.5).tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((3, -1.0, 1.0, 0.5), "time_drift_sq: expected a finite number >= 0, not -1"),
        ((3, 1.0, np.inf, 0.5), "information_loss_sq: expected a finite number >= 0, not inf"),
        ((3, 1.0, 1.0, 1.0), "correlation: expected a number >= 0 and < 1, not 1"),
        ((3, 1.0, 1.0, -0.1), "correlation"),
        ((3, 1.0, 1.0, np.nan), "correlation"),
        ((0, 1.0, 1.0, 0.5), "rounds: expected at least the present, not 0"),
        (([], 1.0, 1.0, 0.5), "rounds: expected at least the present"),
        (([0, 2, 2], 1.0, 1.0, 0.5), r"rounds: expected ascending rounds.*not \[0, 2, 2\]"),
    ],
)
def test_functions_refuse_what_makes_no_sense(arguments, complaint):
    for function in (optimal, closed_form):
        with pytest.raises(ValueError, match=complaint):
            function(*arguments)


def test_correlated_knows_the_gaps():
    p = Correlated(1.0, 0.5, 0.6)(timeline(0, 1, 4, now=7))
    np.testing.assert_allclose(p, minimise(covariance([0, 1, 4, 7], 1.0, 0.5, 0.6))[0], rtol=1e-12)
    assert np.abs(p - Correlated(1.0, 0.5, 0.6)(timeline(0, 1, 2, now=3))).max() > 0.01


@pytest.mark.parametrize("sign", [True, False])
def test_data_sets_of_one_round_share_its_weight(sign):
    rounds = (0, 0, 0, 1, 4, 4)
    p = Correlated(1.0, 0.5, 0.6, nonnegative=sign)(timeline(*rounds, now=5))
    once, variance = optimal([0, 1, 4, 5], 1.0, 0.5, 0.6, nonnegative=sign)
    want = [once[0] / 3] * 3 + [once[1]] + [once[2] / 2] * 2 + [once[3]]
    np.testing.assert_allclose(p, want, rtol=1e-14)
    q = covariance([*rounds, 5], 1.0, 0.5, 0.6)
    assert p @ q @ p == pytest.approx(variance, rel=1e-12)
    np.testing.assert_allclose(minimise(q, nonnegative=sign)[0], p, atol=1e-12)


@pytest.mark.parametrize("sign", [True, False])
def test_correlated_with_clients_that_never_come_back(sign):
    rounds = (0, 1, 1, 3, 4)
    p = Correlated(1.0, 2.0, 0.7, sign, client_drift_sq=0.6, cohort=3)(timeline(*rounds, now=5))
    q = covariance([*rounds, 5], 1.0 / 3, 2.0, 0.7) + 0.2 * np.eye(6)
    assert_optimal(q, p, nonnegative=sign, tolerance=1e-13)
    assert (p.min() < 0) is not sign
    independent = Correlated(1.0, 2.0, 0.0, sign, client_drift_sq=0.6, cohort=3)
    want = Optimal(1.0, 2.0, client_drift_sq=0.6, cohort=3)
    np.testing.assert_allclose(
        independent(timeline(0, 2, now=4)), want(timeline(0, 2, now=4)), rtol=1e-13
    )


def test_correlated_in_a_cohort():
    whole = timeline(0, 1, 2, now=3)
    aware = Correlated(1.0, 0.5, 0.6, cohort=4)(whole)
    np.testing.assert_array_equal(aware, Correlated(0.25, 0.5, 0.6)(whole))


SEASONS = ((2.0, 0.1, 1.5), (0.1, 2.0, 0.2), (1.5, 0.2, 2.0))


def test_covariance_counts_from_the_present():
    p = Covariance(SEASONS, information_loss_sq=0.3)(timeline(2, 9, now=30))
    latest_first = np.array(SEASONS) + 0.3 * np.outer([0, 1, 1], [0, 1, 1])
    assert_optimal(latest_first, p[::-1], nonnegative=True, tolerance=1e-14)
    p = Covariance(SEASONS, information_loss_sq=0.3)(timeline(2, now=30))
    assert_optimal(np.array([[2.0, 0.1], [0.1, 2.3]]), p[::-1], True, tolerance=1e-14)


def test_covariance_includes_the_other_cases():
    whole = timeline(0, 1, 2, now=3)
    lags = np.abs(np.subtract.outer(range(6), range(6)))
    fading = tuple(map(tuple, (2 * 0.8**lags).tolist()))
    for sign in (True, False):
        np.testing.assert_allclose(
            Covariance(fading, 1.5, nonnegative=sign)(whole),
            Correlated(2.0, 1.5, 0.8, nonnegative=sign)(whole),
            atol=1e-14,
        )


def test_covariance_without_drift_leaves_the_present_alone():
    for loss in (0.0, 1.0):
        p = Covariance(((0.0, 0.0), (0.0, 0.0)), loss)(timeline(0, now=1))
        assert p.tolist() == [0, 1]


def test_covariance_that_is_too_small_says_so():
    with pytest.raises(SpecError, match=r"matrix: has 3 rows, but round 8 has 4 data sets"):
        Covariance(SEASONS, 0.3)(timeline(0, 1, 2, now=8))


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        (((1.0, 0.5), (0.4, 1.0)), r"^Covariance.matrix: expected a symmetric matrix"),
        (((1.0, 2.0), (2.0, 1.0)), r"^Covariance.matrix: expected a positive semi-definite matrix"),
        (
            ((1.0, 2.0), (2.0,)),
            r"^Covariance.matrix: .* square matrix, got rows of lengths \[2, 1\]",
        ),
        ((), r"^Covariance.matrix: expected a square matrix"),
        (((np.inf,),), r"^Covariance.matrix: Expected `float` <= 1e\+32"),
        ((("a",),), r"^Covariance.matrix: Expected `float`"),
    ],
)
def test_covariance_checks_its_matrix(matrix, complaint):
    with pytest.raises(ValueError, match=complaint):
        Covariance(matrix, 1.0)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda: Correlated(1.0, 1.0, 1.0),
            r"Correlated.correlation: Expected `float` < 1.0, not 1",
        ),
        (lambda: Correlated(1.0, 1.0, -0.1), r"Correlated.correlation: Expected `float` >= 0.0"),
        (
            lambda: Correlated(1.0, np.inf, 0.1),
            r"Correlated.information_loss_sq: Expected `float` <= 1e\+300",
        ),
        (lambda: Optimal(1.0, 1.0, client_drift_sq=-1.0), r"Optimal.client_drift_sq: Expected"),
        (lambda: Optimal(1.0, 1.0, cohort=0), r"Optimal.cohort: Expected `int` >= 1"),
        (lambda: Bounded(1.0, 1.0, -1.0), r"Bounded.covariance: Expected `float` >= 0.0"),
        (lambda: Bounded(np.nan, 1.0, 1.0), r"Bounded.time_drift_sq: Expected `float` >= 0.0"),
        (
            lambda: Covariance(SEASONS, -1.0),
            r"Covariance.information_loss_sq: Expected `float` >= 0.0",
        ),
    ],
)
def test_settings_out_of_range_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_variants_are_keywords_only():
    with pytest.raises(TypeError, match="positional"):
        Optimal(1.0, 1.0, 4.0)


def test_in_a_specification():
    plain = {"kind": "covariance", "matrix": [[1, 0.5], [0.5, 1]], "information_loss_sq": 0.1}
    assert from_table(plain, RoundWeights) == Covariance(((1, 0.5), (0.5, 1)), 0.1)
    fading = {
        "kind": "correlated",
        "time_drift_sq": 1,
        "information_loss_sq": 2,
        "correlation": 0.5,
        "cohort": 3,
    }
    assert from_table(fading, RoundWeights) == Correlated(1, 2, 0.5, cohort=3)
    bounded = {"kind": "bounded", "time_drift_sq": 1, "information_loss_sq": 2, "covariance": 0.5}
    assert from_table(bounded, RoundWeights) == Bounded(1, 2, 0.5)
    with pytest.raises(SpecError, match="eigenvalue"):
        from_table(plain | {"matrix": [[1, 2], [2, 1]]}, RoundWeights, "method.weights")


def test_the_function_is_not_hidden_by_the_module_of_its_name():
    module = importlib.import_module("chronofed.methods.weighting.optimal")
    assert chronofed.methods.weighting.optimal is module.optimal
    assert module.Optimal is chronofed.methods.weighting.Optimal

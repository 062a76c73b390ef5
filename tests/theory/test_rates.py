"""Rates term by term against numbers worked out by hand, and laws that hold for all settings."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed import theory
from chronofed.theory import ALGORITHMS, CASES, rounds, safe_lr

squares = st.floats(0, 20)
KNOWN = {
    "client_drift_sq": 1.0,
    "time_drift_sq": 2.0,
    "information_loss_sq": 2.0,
    "client_slope_sq": 0.5,
    "time_slope_sq": 0.25,
    "noise_sq": 6.0,
    "smoothness": 2.0,
    "convexity": 0.5,
    "steps": 3.0,
    "clients": 12.0,
    "distance_sq": 4.0,
    "gap": 3.0,
    "c_m": 0.5,
}
settings = st.fixed_dictionaries(
    dict.fromkeys(
        (
            "client_drift_sq",
            "time_drift_sq",
            "information_loss_sq",
            "client_slope_sq",
            "time_slope_sq",
            "noise_sq",
        ),
        squares,
    )
    | {"smoothness": st.floats(1, 9), "convexity": st.floats(0.01, 1), "steps": st.floats(1, 50)}
    | {"clients": st.floats(1, 50), "distance_sq": squares, "covariance": squares}
)


def test_strongly_convex_by_hand():
    """Constants: c_O = 7/4, c_A = 2, c_B = 1/2, c_C = 2·6/3 + 2·2 = 8, c_D = 1."""
    found = rounds("cfl", "strongly-convex", epsilon=0.5, **KNOWN)
    assert list(found.terms.items()) == [
        ("curvature", 7.0),  # 2 · 7/4 / (1/2)
        ("noise", pytest.approx(2 / 3)),  # 6 / (1/2 · 36 · 1/2)
        ("drift", 8.0),
        ("early rounds", pytest.approx(math.sqrt(2))),
        ("local steps", 8.0),  # √(8 / (1/4 · 1/2))
        ("early local steps", 2.0),  # ∛(1 / (1/8))
    ]
    assert found.total == pytest.approx(25 + 2 / 3 + math.sqrt(2))
    assert found.phi == pytest.approx(math.sqrt(2) / 2 * 2)


def test_convex_by_hand():
    found = rounds("cfl", "convex", epsilon=0.5, **KNOWN)
    assert list(found.terms.items()) == [
        ("curvature", 28.0),  # 2 · 7/4 · 4 / (1/2)
        ("early rounds", pytest.approx(2 * math.sqrt(2))),
        ("early local steps", pytest.approx(2 * 16 ** (1 / 3))),
        ("noise", pytest.approx(8 / 3)),  # 6 · 4 / (36 / 4)
        ("drift", 32.0),
        ("local steps", 32.0),  # √(8 · 16 · 8)
    ]


def test_non_convex_by_hand():
    """c_R1 = 1/2, c_R2 = 1/4, √(KN) = 6."""
    found = rounds("cfl", "non-convex", epsilon=0.5, **KNOWN)
    assert list(found.terms.items()) == [
        ("descent", 16.0),  # 4 · 9 / (36 · 1/4 · 1/4)
        ("drift and noise", pytest.approx((6 / 8 + 1) ** 2 * 4)),
        ("early rounds", pytest.approx(6 / 4 / (0.5 * 0.5 * 2))),
    ]
    fedavg = rounds("fedavg", "non-convex", epsilon=0.5, **KNOWN).terms
    assert fedavg["drift and noise"] == pytest.approx((6 / 2 + 1) ** 2 * 4)
    assert fedavg["early rounds"] == 0


def test_sgd_is_the_row_of_the_table_with_its_L():
    known = {**KNOWN, "covariance": 1.0, "covariance_slope": 9.0}
    strongly = rounds("sgd", "strongly-convex", epsilon=0.5, **known)
    assert strongly.total == pytest.approx(2 / 0.5 + 6 / (0.5 * 36 * 0.5))
    convex = rounds("sgd", "convex", epsilon=0.5, **known)
    assert convex.total == pytest.approx(2 * 4 / 0.5 + 6 * 4 / (36 * 0.25))
    non_convex = rounds("sgd", "non-convex", epsilon=0.5, **known)
    assert non_convex.total == pytest.approx(16 + (6 / 6) ** 2 / 0.25)
    assert strongly.phi == 0
    assert (strongly.constants.c_O, strongly.constants.c_A, strongly.constants.c_C) == (1, 0, 0)


@pytest.mark.parametrize("case", CASES)
@given(known=settings)
def test_fedavg_is_cfl_that_trusts_no_memory(case, known):
    fedavg = rounds("fedavg", case, epsilon=0.1, **known)
    assert fedavg == rounds("cfl", case, epsilon=0.1, **known | {"information_loss_sq": math.inf})
    assert fedavg.phi == 0


def test_fedavg_recalls_nothing_that_could_be_correlated():
    known = {**KNOWN, "covariance": 1.0, "covariance_slope": 9.0}
    assert rounds("fedavg", "convex", epsilon=1, **known).constants.c_O == 1.75
    assert rounds("cfl", "convex", epsilon=1, **known).constants.c_O == 10.5


@pytest.mark.parametrize("case", CASES)
@given(known=settings)
def test_cl_is_cfl_with_one_client(case, known):
    alone = {"clients": 1, "client_drift_sq": 0, "client_slope_sq": 0}
    assert rounds("cl", case, epsilon=0.1, **known) == rounds(
        "cfl", case, epsilon=0.1, **known | alone
    )


@pytest.mark.some(5)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("case", CASES)
@given(known=settings)
def test_more_accuracy_takes_more_rounds(algorithm, case, known):
    found = rounds(algorithm, case, epsilon=[1e-3, 0.1, 1.0], **known)
    assert (np.diff(found.total) <= 0).all()
    assert sum(found.terms.values()).tolist() == pytest.approx(found.total.tolist())


@given(known=settings)
def test_what_dominates_is_less_for_cfl_and_for_stateless_clients(known):
    cfl, fedavg = (
        rounds(a, "convex", epsilon=0.1, **known).terms["drift"] for a in ("cfl", "fedavg")
    )
    once = rounds("cfl", "convex", epsilon=0.1, stateless=True, **known).terms["drift"]
    assert once <= cfl * (1 + 1e-12) + 1e-12
    assert cfl <= fedavg * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("case", CASES)
def test_broadcasting_equals_a_loop(case):
    epsilon, loss = np.array([[0.1], [0.02]]), np.array([0.0, 1.0, math.inf])
    for algorithm in ALGORITHMS:
        found = rounds(algorithm, case, epsilon=epsilon, **KNOWN | {"information_loss_sq": loss})
        for i, j in np.ndindex(2, 3):
            single = rounds(
                algorithm, case, epsilon=epsilon[i, 0], **KNOWN | {"information_loss_sq": loss[j]}
            )
            assert type(single.total) is float
            assert found.total[i, j] == pytest.approx(single.total, rel=1e-14)
            assert found.phi[i, j] == single.phi
            for name, value in single.terms.items():
                assert found.terms[name].shape == (2, 3)
                assert found.terms[name][i, j] == pytest.approx(value, rel=1e-14)


def test_more_rounds_than_there_are_numbers():
    for case in CASES:
        found = rounds(
            "cfl",
            case,
            epsilon=1e-200,
            time_drift_sq=1.0,
            information_loss_sq=1.0,
            convexity=1e-200,
        )
        assert found.total == math.inf
        assert not any(math.isnan(value) for value in found.terms.values())


def decrease(eta, L, K, server_lr, c):
    """The factor of f(w_t) - f* in the one-step inequality of the proof, over the step size."""
    local = eta / server_lr  # K times the local learning rate
    amplified = 16 * local**2 * L**2 * c * (1 + 4 * eta * L * c) / (1 - 4 * local**2 * L**2 * c)
    return -2 + 16 * eta * L * c + amplified


@pytest.mark.parametrize("server_lr", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("c", [1.0, 4.0, 50.0])
def test_the_safe_rate_leaves_what_the_proof_needs(c, server_lr):
    L, K = 3.0, 5
    eta = K * server_lr * safe_lr(L, K, server_lr, c)
    assert decrease(eta, L, K, server_lr, c) <= -1
    left = decrease(2 * eta, L, K, server_lr, c)  # with the 6 of the theorem
    assert left == pytest.approx(0, abs=1e-12)


def test_safe_rate_by_hand():
    assert safe_lr(2.0, 5) == pytest.approx((math.sqrt(7) - 2) / 120)
    assert safe_lr(1.0, 1, server_lr=2.0, c_O=4.0) == pytest.approx((math.sqrt(67) - 8) / 24)
    assert safe_lr([1.0, 2.0], 1).tolist() == [safe_lr(1.0, 1), safe_lr(2.0, 1)]
    assert safe_lr(1.0, 1, c_O=1e20) == pytest.approx(1e-20 / 16)  # nothing is cancelled


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rounds("adam", "convex", epsilon=1),
            "^algorithm: expected one of sgd, .* not 'adam'",
        ),
        (lambda: rounds("sgd", "concave", epsilon=1), "^case: expected one of strongly-convex, "),
        (
            lambda: rounds("sgd", "convex", epsilon=0),
            "^epsilon: expected a finite number > 0, not 0",
        ),
        (lambda: rounds("sgd", "convex", epsilon=1, time_drift_sq=-2), "^time_drift_sq: .* not -2"),
        (lambda: rounds("cfl", "convex", epsilon=1, clients=0), "^clients: .* >= 1"),
        (lambda: rounds("cfl", "non-convex", epsilon=1, c_m=0), "^c_m: "),
        (
            lambda: rounds("cfl", "strongly-convex", epsilon=1),
            r"^convexity: expected a number > 0 and at most smoothness, 1, not 0$",
        ),
        (
            lambda: rounds("cfl", "strongly-convex", epsilon=1, convexity=[0.5, 3], smoothness=2),
            "^convexity: .* at most smoothness, 2, not 3",
        ),
        (lambda: safe_lr(1, 0), "^steps: "),
        (lambda: safe_lr(1, 1, c_O=0.5), "^c_O: "),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_convexity_is_of_no_account_elsewhere():
    assert (
        rounds("cfl", "convex", epsilon=1, convexity=9).total
        == rounds("cfl", "convex", epsilon=1).total
    )
    assert theory.CASES == ("strongly-convex", "convex", "non-convex")

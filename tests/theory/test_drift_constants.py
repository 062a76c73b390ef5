"""Constants, variance and bias: exact fractions, limits, and the weights that they come from."""

from dataclasses import asdict, fields
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed import theory
from chronofed.methods.weighting import Bounded, Optimal, Timeline, optimal

squares = st.floats(0, 100)
positive = st.floats(0.01, 100)


def exact(*, G, D, R, B, A, Fc, C, noise, L, K, eta, once):
    """The formulas of the theorems, corrected, literally and in rational arithmetic."""
    M = max(F(0), D - Fc)
    shared = min(Fc, D) + (0 if once else G)
    M += G if once else 0
    c_A = shared + M * R / (R + M)
    c_B = M**3 / (R + M) ** 2
    return {
        "c_O": 1 + B + max(A, C),
        "c_A": c_A,
        "c_B": c_B,
        "c_C": L * noise / (eta**2 * K) + L * c_A / eta**2,
        "c_D": L * c_B / eta**2,
        "c_R1": R / (R + M),
        "c_R2": M**2 / (R + M) ** 2,
    }


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("covariance", [F(0), F(1), F(9)])
def test_constants_in_fractions(once, covariance):
    drifts = {"G": F(3), "D": F(5), "R": F(2), "Fc": covariance, "noise": F(7)}
    slopes = {"B": F(1, 2), "A": F(1, 4), "C": F(3, 4)}
    expected = exact(**drifts, **slopes, L=F(11, 2), K=F(4), eta=F(3, 2), once=once)
    found = theory.constants(
        client_drift_sq=3,
        time_drift_sq=5,
        information_loss_sq=2,
        client_slope_sq=0.5,
        time_slope_sq=0.25,
        covariance=float(covariance),
        covariance_slope=0.75,
        noise_sq=7,
        smoothness=5.5,
        steps=4,
        server_lr=1.5,
        stateless=once,
    )
    for name, value in asdict(found).items():
        assert value == pytest.approx(float(expected[name]), rel=1e-14), name
        assert type(value) is float


def test_by_hand():
    found = theory.constants(
        client_drift_sq=1, time_drift_sq=2, information_loss_sq=2, noise_sq=6, steps=3, smoothness=2
    )
    assert asdict(found) == {
        "c_O": 1.0,
        "c_A": 2.0,  # 1 + 2·2/4
        "c_B": 0.5,  # 8/16
        "c_C": 8.0,  # 2·6/3 + 2·2
        "c_D": 1.0,
        "c_R1": 0.5,
        "c_R2": 0.25,
    }


def test_covariance_is_shared_by_all_rounds():
    """The paper's case 1 omits it: no weights can lower what all rounds have in common."""
    assert theory.constants(time_drift_sq=5, covariance=2, information_loss_sq=0).c_A == 2
    assert theory.constants(time_drift_sq=5, covariance=9, information_loss_sq=0).c_A == 5
    assert theory.constants(time_drift_sq=5, covariance=2, information_loss_sq=np.inf).c_A == 5
    assert theory.constants(client_slope_sq=4, time_slope_sq=1, covariance_slope=2).c_O == 7


@given(G=squares, D=squares, R=squares, F2=squares)
def test_orders(G, D, R, F2):
    known = {"client_drift_sq": G, "time_drift_sq": D, "covariance": F2}
    cfl, fedavg = (
        theory.constants(**known, information_loss_sq=R),
        theory.constants(**known, information_loss_sq=np.inf),
    )
    once = theory.constants(**known, information_loss_sq=R, stateless=True)
    assert once.c_A <= cfl.c_A * (1 + 1e-12) <= fedavg.c_A * (1 + 1e-11)
    assert fedavg.c_A == pytest.approx(G + D)
    assert (fedavg.c_B, fedavg.c_R1, fedavg.c_R2) == (0, 1, 0)
    assert theory.constants(
        client_drift_sq=G, time_drift_sq=D, information_loss_sq=R, covariance=0
    ) == theory.constants(client_drift_sq=G, time_drift_sq=D, information_loss_sq=R)


@pytest.mark.parametrize("R", [0.0, 1.0, np.inf])
def test_without_drift_the_present_counts_alone(R):
    found = theory.constants(information_loss_sq=R)
    assert (found.c_A, found.c_B, found.c_R1, found.c_R2) == (0, 0, 1, 0)
    assert theory.variance(5, 0.0, R) == 0
    assert theory.bias(0.0, R) == 0


@given(t=st.integers(1, 60), D=positive, R=squares, G=squares)
def test_variance_is_that_of_the_optimal_weights(t, D, R, G):
    assert theory.variance(t, D, R, G) == pytest.approx(optimal(t, D, R)[1] + G, rel=1e-9)


def bound(p, G, D, R, F2=0.0, once=False):
    """The bound that weights minimise: ``best p in appendix``, with a covariance, or stateless."""
    own, shared = (G + D, 0.0) if once else (D, G)
    cross = F2 * (1 - p @ p)
    return shared + own * (p @ p) + cross + (1 - p[-1]) ** 2 * R


def past(t: int) -> Timeline:
    return Timeline(tuple(range(t - 1)), (5,) * (t - 1), now=t - 1, size=10)


@pytest.mark.parametrize("t", [1, 2, 7, 60])
def test_variance_with_covariance_and_without_state(t):
    G, D, R, F2 = 4.0, 3.0, 0.7, 1.2
    p = Bounded(time_drift_sq=D, information_loss_sq=R, covariance=F2)(past(t))
    assert theory.variance(t, D, R, G, F2) == pytest.approx(bound(p, G, D, R, F2), rel=1e-12)
    p = Optimal(time_drift_sq=D, information_loss_sq=R, client_drift_sq=G)(past(t))
    assert theory.variance(t, D, R, G, stateless=True) == pytest.approx(
        bound(p, G, D, R, once=True), rel=1e-12
    )


def test_stateless_weights_must_know_the_client_drift():
    """``G2 = 4``, ``D2 = 1``, ``R2 = 1``: 0.891 against 1.54 with weights that use D2 alone."""
    G, D, R, t = 4.0, 1.0, 1.0, 60
    aware = bound(
        Optimal(time_drift_sq=D, information_loss_sq=R, client_drift_sq=G)(past(t)),
        G,
        D,
        R,
        once=True,
    )
    unaware = bound(Optimal(time_drift_sq=D, information_loss_sq=R)(past(t)), G, D, R, once=True)
    assert round(aware, 3) == 0.891
    assert round(unaware, 2) == 1.54
    assert theory.variance(t, D, R, G, stateless=True) == pytest.approx(aware, rel=1e-12)


@pytest.mark.parametrize("once", [False, True])
@given(G=squares, D=squares, R=positive, F2=squares)
def test_variance_tends_to_c_A_from_above(once, G, D, R, F2):
    limit = theory.constants(
        client_drift_sq=G, time_drift_sq=D, information_loss_sq=R, covariance=F2, stateless=once
    ).c_A
    times = np.array([1, 2, 10, 1000, 1e13])
    found = theory.variance(times, D, R, G, F2, stateless=once)
    assert found[0] == pytest.approx(G + D)
    assert (np.diff(found) <= 1e-9).all()
    assert found[-1] == pytest.approx(limit, rel=1e-9, abs=1e-9)


@given(D=positive)
def test_bias_peaks_where_loss_equals_drift(D):
    R = D * np.geomspace(0.01, 100, 401)
    found = theory.bias(D, R)
    assert R[found.argmax()] == pytest.approx(D, rel=1e-9)
    assert found.max() == pytest.approx(np.sqrt(D) / 2)
    assert theory.bias(D, [0.0, np.inf]).tolist() == [0, 0]


def test_bias_by_hand_and_its_limit():
    assert theory.bias(1.0, 4.0, distance_sq=9.0) == pytest.approx(2 * 1 / 5 * 3)
    assert theory.bias(1.0, 4.0, rounds=3) == pytest.approx(2 * 2 / (3 + 8))
    assert theory.bias(1.0, 4.0, rounds=1) == 0
    assert theory.bias(1.0, 4.0, rounds=1e14) == pytest.approx(theory.bias(1.0, 4.0))
    assert theory.bias(3.0, 1.0, covariance=2.0) == theory.bias(1.0, 1.0)
    assert theory.bias(1.0, 1.0, client_drift_sq=8.0) == theory.bias(1.0, 1.0)
    assert theory.bias(1.0, 1.0, client_drift_sq=8.0, stateless=True) == theory.bias(9.0, 1.0)
    weights = optimal(7, 1.5, 0.3)[0]
    assert theory.bias(1.5, 0.3, rounds=7) == pytest.approx(np.sqrt(0.3) * (1 - weights[-1]))


def test_broadcasting_equals_a_loop():
    D, R = np.array([[0.0], [1.0], [2.5]]), np.array([0.0, 0.5, np.inf])
    found = theory.constants(
        time_drift_sq=D, information_loss_sq=R, client_drift_sq=0.3, covariance=0.4
    )
    spread, bias = theory.variance(6, D, R, covariance=0.4), theory.bias(D, R, rounds=[[6]])
    for i, j in np.ndindex(3, 3):
        d, r = float(D[i, 0]), float(R[j])
        single = theory.constants(
            time_drift_sq=d, information_loss_sq=r, client_drift_sq=0.3, covariance=0.4
        )
        for field in fields(single):
            values = getattr(found, field.name)
            assert values.shape == (3, 3)
            assert values[i, j] == getattr(single, field.name)
        assert spread[i, j] == theory.variance(6, d, r, covariance=0.4)
        assert bias[i, j] == theory.bias(d, r, rounds=6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: theory.constants(time_drift_sq=-1),
            ValueError,
            r"^time_drift_sq: expected a finite number >= 0, not -1$",
        ),
        (
            lambda: theory.constants(time_drift_sq=[1, np.inf]),
            ValueError,
            "time_drift_sq: .* not inf",
        ),
        (
            lambda: theory.constants(information_loss_sq=np.nan),
            ValueError,
            "^information_loss_sq: expected a number >= 0, not nan",
        ),
        (lambda: theory.constants(covariance_slope=-1), ValueError, "^covariance_slope: "),
        (
            lambda: theory.constants(smoothness=0),
            ValueError,
            "^smoothness: expected a finite number > 0",
        ),
        (
            lambda: theory.constants(steps=0),
            ValueError,
            "^steps: expected a finite number >= 1, not 0",
        ),
        (
            lambda: theory.constants(dirft=1),
            TypeError,
            "'dirft'; expected some of client_drift_sq, time_drift_sq",
        ),
        (lambda: theory.variance(0, 1, 1), ValueError, "^rounds: "),
        (lambda: theory.bias(1, 1, distance_sq=-1), ValueError, "^distance_sq: "),
        (lambda: theory.bias(1, 1, rounds=0.5), ValueError, "^rounds: "),
    ],
)
def test_what_cannot_be(call, error, message):
    with pytest.raises(error, match=message):
        call()

"""Round weights against the paper's table and exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed import Merged, Optimal, Uniform
from chronofed.methods.weighting import Timeline

squares = st.floats(0, 1e6)


def timeline(past: int, sizes: tuple[int, ...] | None = None, size: int = 10) -> Timeline:
    return Timeline(tuple(range(past)), sizes or (5,) * past, now=past, size=size)


@given(past=st.integers(0, 500), drift=squares, loss=squares)
def test_weights_are_shares(past, drift, loss):
    p = Optimal(drift, loss)(timeline(past))
    assert len(p) == past + 1
    assert p.min() >= 0
    assert p[-1] == p.max()
    np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-12)


@given(past=st.integers(0, 60), drift=st.integers(0, 50), loss=st.integers(0, 50))
def test_optimal_is_the_theorem_in_exact_arithmetic(past, drift, loss):
    t, d2, r2 = past + 1, Fraction(drift), Fraction(loss)
    total = t * d2 + past * r2
    p = Optimal(float(drift), float(loss))(timeline(past))
    want_past = d2 / total if total else Fraction(0)
    want_now = (past * r2 + d2) / total if total else Fraction(1)
    np.testing.assert_allclose(p[:-1], float(want_past), rtol=1e-13)
    np.testing.assert_allclose(p[-1], float(want_now), rtol=1e-12)


@given(drift=st.floats(0.01, 100), loss=st.floats(0, 100), shift=st.floats(-0.2, 0.2))
def test_optimal_minimises_the_variance_bound(drift, loss, shift):
    """The bound is (1 - p_t)^2 R2 + D2 sum p^2: moving weight to or from the past makes it worse."""

    def bound(p):
        return (1 - p[-1]) ** 2 * loss + drift * (p**2).sum()

    p = Optimal(drift, loss)(timeline(4))
    moved = p + shift * np.array([0.25, 0.25, 0.25, 0.25, -1.0])
    assert bound(p) <= bound(moved) + 1e-9


def test_first_row_of_the_papers_table():
    p = Optimal(time_drift_sq=2.0, information_loss_sq=1.0)(timeline(3))
    np.testing.assert_allclose(p, [0.1818, 0.1818, 0.1818, 0.4545], atol=5e-5)


def test_no_drift_and_no_loss_leaves_the_present_alone():
    assert Optimal(0.0, 0.0)(timeline(3)).tolist() == [0, 0, 0, 1]


def test_infinite_loss_is_fedavg():
    np.testing.assert_allclose(Optimal(1.0, 1e300)(timeline(5))[-1], 1.0)


def test_no_loss_is_uniform():
    np.testing.assert_allclose(Optimal(1.0, 0.0)(timeline(4)), Uniform()(timeline(4)))


def test_merged_counts_samples():
    assert Merged()(timeline(2, sizes=(10, 30), size=60)).tolist() == [0.1, 0.3, 0.6]


@pytest.mark.parametrize("weights", [Merged(), Uniform(), Optimal(1.0, 1.0)])
def test_without_a_past_the_present_is_everything(weights):
    assert weights(timeline(0)).tolist() == [1.0]


def test_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"Optimal.time_drift_sq: Expected `float` >= 0.0, not -1"):
        Optimal(-1.0, 0.0)

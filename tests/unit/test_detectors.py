"""Detectors: by hand, against densities of scipy's formula, and on streams with and without a change."""

import math

import numpy as np
import pytest
import torch

from chronofed import BetaRatio, Detector, LossJump, PageHinkley
from chronofed.core.spec_io import alternatives, from_table, to_table
from chronofed.methods.detectors.beta_ratio import MARGIN

SHIPPED = [c for c in alternatives(Detector).values() if c.__module__.startswith("chronofed.")]


def beta(seed, *parts):
    draw = np.random.default_rng(seed)
    return torch.tensor(np.concatenate([draw.beta(a, b, n) for a, b, n in parts]))


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_contract(kind):
    """Pure, float64 records, nothing found in nothing, and settings that survive a specification."""
    detector = kind()
    assert from_table(to_table(detector), Detector) == detector
    state = detector.init()
    assert all(t.dtype == torch.float64 for t in state.values())
    before = {name: t.clone() for name, t in state.items()}
    after, found = detector.update(state, torch.rand(50))
    assert found is None
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert {n: t.dtype for n, t in after.items()} == dict.fromkeys(state, torch.float64)
    same, found = detector.update(after, torch.empty(0))
    assert found is None
    assert all(torch.equal(same[name], after[name]) for name in after)


def test_loss_jump_compares_with_the_last_step_only():
    detector, state, found = LossJump(0.2), LossJump().init(), []
    for losses in ([1.0, 3.0], [2.1], [2.29], [2.5], [9.0], [9.1], [1.0]):
        state, change = detector.update(state, torch.tensor(losses))
        found.append(change)
    assert found == [None, None, None, 0, 0, None, None]


def hinkley(values, tolerance, threshold, least):
    """The definition: all means and sums anew for every prefix."""
    sums, total = [0.0], 0.0
    for t in range(1, len(values) + 1):
        total += values[t - 1] - np.mean(values[:t]) - tolerance
        sums.append(total)
        if t >= least and total - min(sums) > threshold:
            return t, int(np.argmin(sums))
    return None


def test_page_hinkley_is_its_definition():
    draw = np.random.default_rng(1)
    values = np.concatenate([draw.normal(0, 0.1, 60), draw.normal(1, 0.1, 60)])
    detector = PageHinkley(tolerance=0.01, threshold=3.0, least=10)
    when, where = hinkley(values, 0.01, 3.0, 10)
    assert abs(where - 60) <= 1
    state, found = detector.init(), []
    for value in values:
        state, change = detector.update(state, torch.tensor([value]))
        found.append(change)
    assert found.index(where) == when - 1
    assert sum(change is not None for change in found) == 1
    together, change = detector.update(detector.init(), torch.from_numpy(values))
    assert change == where
    assert torch.equal(together["sums"], state["sums"])
    assert int(state["sums"][0]) == 120 - when


def test_page_hinkley_waits_and_tolerates():
    values = torch.tensor([0.0] * 10 + [1.0] * 10)
    assert PageHinkley(threshold=1.0, least=5).update(PageHinkley().init(), values)[1] == 10
    for silent in (PageHinkley(threshold=1.0, least=21), PageHinkley(1.0, 1.0, 5)):
        assert silent.update(silent.init(), values)[1] is None


def likelihood(x, fit):
    mean, var = fit.mean(), fit.var()
    c = mean * (1 - mean) / var - 1
    a, b = mean * c, (1 - mean) * c
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return sum((a - 1) * math.log(v) + (b - 1) * math.log(1 - v) + constant for v in x)


@pytest.mark.parametrize("form", ["two-sided", "one-sided"])
def test_scores_are_ratios_of_beta_densities(form):
    x = beta(0, (8, 2, 15), (2, 8, 15)).numpy()
    found = BetaRatio(window=5, sensitivity=0.0, form=form).scores(torch.from_numpy(x)).numpy()
    assert len(found) == 21
    for k in range(5, 26):
        before, after = x[:k], x[k:]
        if form == "two-sided":
            parts = likelihood(before, before), likelihood(after, after), -likelihood(x, x)
        else:
            parts = likelihood(after, after), -likelihood(after, before)
        falls = after.mean() <= before.mean()
        assert found[k - 5] == pytest.approx(sum(parts) if falls else -math.inf, rel=1e-9)


def test_the_two_sided_form_finds_the_point_and_the_one_sided_does_not():
    found = {form: [] for form in ("two-sided", "one-sided")}
    for form, places in found.items():
        detector = BetaRatio(form=form)
        for seed in range(20):
            stream = beta(seed, (8, 2, 60), (2, 8, 40))
            state, place = detector.update(detector.init(), stream)
            assert torch.equal(state["values"], stream[place:])
            places.append(place)
    assert found["two-sided"] == [60] * 20
    assert sum(place == 60 for place in found["one-sided"]) < 5


@pytest.mark.parametrize(
    ("shape", "sensitivity", "most"), [((9, 1), 0.05, 15), ((20, 2), 0.05, 3), ((8, 2), 0.1, 15)]
)
def test_few_false_alarms(shape, sensitivity, most):
    detector = BetaRatio(sensitivity=sensitivity)
    streams = (beta(1000 + seed, (*shape, 100)) for seed in range(150))
    alarms = [detector.update(detector.init(), stream)[1] for stream in streams]
    assert sum(alarm is not None for alarm in alarms) <= most


def test_the_order_within_a_side_does_not_matter():
    x, mixed = beta(3, (8, 2, 30), (2, 8, 30)), np.random.default_rng(0)
    detector = BetaRatio(window=30)
    sides = [torch.from_numpy(mixed.permutation(side.numpy())) for side in (x[:30], x[30:])]
    # Of the order of their sums of logarithms, some hundreds, is left what is rounded.
    torch.testing.assert_close(
        detector.scores(torch.cat(sides)), detector.scores(x), rtol=0, atol=1e-12
    )
    assert detector.scores(x).shape == (1,)


def test_a_rise_is_no_change_and_extreme_values_have_scores():
    detector = BetaRatio(window=5)
    assert detector.update(detector.init(), beta(0, (2, 8, 30), (8, 2, 30)))[1] is None
    for stream in ([1.0] * 10 + [0.0] * 10, [0.5] * 20, [1.0, 0.0] * 10):
        assert not detector.scores(torch.tensor(stream).double()).isnan().any()
    _, place = detector.update(detector.init(), torch.tensor([1.0] * 10 + [0.0] * 10))
    assert place == 10
    assert 0 < MARGIN < 0.01


def test_the_oldest_values_leave():
    detector = BetaRatio(window=15, limit=30)
    state, _ = detector.update(detector.init(), torch.full((50,), 0.5))
    assert len(state["values"]) == 30
    with pytest.raises(ValueError, match="30 numbers have no split; use 40 or more"):
        BetaRatio(limit=30)

"""Power of paired tests, against simulation and printed tables."""

import numpy as np
import pytest

from chronofed.training.paired import Paired, student
from chronofed.training.power import (
    MOST_PAIRS,
    POWER,
    chance,
    interval,
    limit,
    pairs_needed,
    reach,
    resolvable,
    tolerance_shown,
)


def statistic(mean, pairs, runs=40_000):
    draws = np.random.default_rng(0).normal(mean, 1.0, (runs, pairs))
    return draws.mean(1), draws.std(1, ddof=1) / pairs**0.5


@pytest.mark.parametrize(("mean", "pairs"), [(3.0, 2), (3.26, 3), (1.0, 5), (0.4, 20)])
def test_the_chance_is_that_of_simulated_tests(mean, pairs):
    middle, error = statistic(mean, pairs)
    assert chance(mean, 1.0, pairs) == pytest.approx(
        (middle / error > limit(pairs - 1)).mean(), abs=0.01
    )


@pytest.mark.parametrize("pairs", [3, 5, 12])
def test_equivalence_is_shown_as_often_as_said(pairs):
    middle, error = statistic(0.0, pairs)
    tolerance = tolerance_shown(1.0, pairs)
    shown = np.abs(middle) + limit(pairs - 1, 0.10) * error < tolerance
    # Each test passes with 90 %; that both do is at least 80 %.
    assert POWER - 0.01 < shown.mean() < POWER + 0.06


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 100])
def test_the_limit_is_where_a_difference_is_just_resolved(freedom):
    assert student(limit(freedom), freedom) == pytest.approx(0.05, abs=1e-9)
    assert student(limit(freedom, 0.01), freedom) == pytest.approx(0.01, abs=1e-9)


def test_the_reach_of_printed_tables():
    """Of a paired t-test with 10 and 34 pairs: effects of 1.0 and of 0.5 (Cohen 1988, table 2.4.1)."""
    assert reach(10) == pytest.approx(1.0, abs=0.01)
    assert pairs_needed(0.5, 1.0) == 34
    assert chance(reach(7), 1.0, 7) == pytest.approx(POWER, abs=1e-6)


def test_more_seeds_or_a_stricter_limit():
    assert reach(3) > reach(4) > reach(5)
    assert reach(5, p=0.01) > reach(5)
    assert pairs_needed(1.0, 1.0, p=0.01) > pairs_needed(1.0, 1.0) == pairs_needed(-1.0, 1.0)
    assert resolvable(2.0, 5) == 2 * reach(5)


def test_what_cannot_be_said():
    assert resolvable(None, 1) is tolerance_shown(None, 1) is pairs_needed(1.0, None) is None
    assert pairs_needed(0.0, 1.0) is pairs_needed(1e-3, 1.0) is None
    assert pairs_needed(1.01 * reach(MOST_PAIRS), 1.0) <= MOST_PAIRS
    assert pairs_needed(1.0, 0.0) == 2
    assert interval(Paired(1.0, None, 1)) == (-np.inf, np.inf)


def test_an_interval_ends_at_zero_where_a_difference_is_just_resolved():
    low, _ = interval(Paired(limit(4), 5**0.5, 5))
    assert low == pytest.approx(0.0, abs=1e-9)

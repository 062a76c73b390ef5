"""Verdicts test what they say: margins, several differences, equivalence, and many claims."""

import random
import statistics

import pytest

from chronofed.studies.claims import Beats
from chronofed.studies.verdicts import Comparison, judge, multiplicity
from chronofed.training.paired import Paired, holm, paired

CLAIM = Beats(says="so", better=("A",), worse=("B",))
# Student's t with two degrees of freedom, 90 %
T90 = 2.919986


def verdict(*comparisons):
    return judge(CLAIM, comparisons).verdict


def difference(mean, deviation, **settings):
    return Comparison("a - b", Paired(mean, deviation, 3), **settings)


@pytest.mark.parametrize(
    ("margin", "expected"),
    [
        (0.0, "holds"),
        (2.9, "holds"),
        (3.0, "not resolved"),
        (14.53, "not resolved"),
        (40.0, "does not hold"),
    ],
)
def test_a_margin_is_what_the_difference_is_tested_against(margin, expected):
    """The recorded 14.53 ± 4.66 is more than 0 (p = 0.033), but not beyond chance more than 3 (p = 0.0504)."""
    assert verdict(difference(14.53, 4.66, margin=margin)) == expected


def test_the_opposite_of_one_of_many_differences_is_corrected():
    """The recorded -2.66 ± 0.62 has p = 0.018; as the least of six, 0.108."""
    worst, others = difference(-2.66, 0.62), [difference(-0.02, 0.86)] * 5
    assert verdict(worst) == "does not hold"
    assert verdict(worst, *others) == "not resolved"
    assert holm([one.p_against for one in (worst, *others)])[0] == pytest.approx(0.106, abs=2e-3)
    assert verdict(difference(-2.66, 0.1), *others) == "does not hold"


def test_a_claim_holds_only_if_every_difference_does():
    clear, unclear = difference(9.0, 1.0), difference(1.0, 9.0)
    assert verdict(clear, clear, clear) == "holds"
    assert verdict(clear, unclear, clear) == "not resolved"
    assert verdict(clear, Comparison("a - b", None)) == "not run"
    assert verdict() == "not run"


def test_chance_seldom_makes_the_opposite_of_a_claim():
    """Six differences that are not there: one of them without correction in 14 % of all claims."""
    draw = random.Random(0)
    contradicted = plain = 0
    for _ in range(1000):
        found = [paired([draw.gauss(0, 1) for _ in range(3)], [0.0] * 3) for _ in range(6)]
        comparisons = [Comparison("a - b", one) for one in found]
        contradicted += verdict(*comparisons) == "does not hold"
        plain += min(one.p_against for one in comparisons) < 0.05
    assert plain > 100
    assert contradicted < 50


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.9], [1.0, 1.0]),
        ([0.04], [0.04]),
        ([], []),
    ],
)
def test_holm(p_values, expected):
    assert holm(p_values) == pytest.approx(expected)


def test_equivalence_is_that_the_interval_lies_inside():
    """Two one-sided tests at 5 % are the same as a confidence interval of 90 % within the tolerance."""
    draw = random.Random(1)
    seen = set()
    for _ in range(300):
        values = [draw.gauss(draw.choice([0.0, 0.5, 2.0]), 0.3) for _ in range(3)]
        found = paired(values, [0.0] * 3)
        reach = T90 * statistics.stdev(values) / 3**0.5
        inside = found.mean - reach > -1 and found.mean + reach < 1
        assert (found.p_within(1.0) < 0.05) == inside
        seen.add(inside)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("mean", "deviation", "expected"),
    [
        (0.01, 0.01, "holds"),
        (0.01, 0.2, "not resolved"),  # near on average, and nothing is known
        (0.2, 0.2, "not resolved"),
        (0.3, 0.01, "does not hold"),
        (-0.3, 0.01, "does not hold"),
        (0.01, None, "not resolved"),
    ],
)
def test_what_is_alike(mean, deviation, expected):
    pairs = 1 if deviation is None else 3
    assert verdict(Comparison("x", Paired(mean, deviation, pairs), tolerance=0.1)) == expected


def test_many_claims_are_said_to_be_many():
    tested = judge(CLAIM, [difference(9.0, 1.0)])
    text = multiplicity([tested] * 24 + [judge(CLAIM, [])])
    assert text.startswith("24 claims were tested, each by itself at p < 0.05")
    assert "up to 1.2 of them" in text
    assert multiplicity([tested]) == ""

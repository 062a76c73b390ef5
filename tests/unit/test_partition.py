"""Label-skewed splits, against the paper's loop written out one sample at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.errors import SpecError
from chronofed.scenarios.partition import (
    _draw_counts,
    _log_dirichlet,
    split,
    subset_size,
    two_level,
)


def _literal_split(labels, parts, size, alpha, rng, prior="shares"):
    """The paper's algorithm *Data splitting*, line by line: the readable twin of `split`."""
    pools = {c: list(np.flatnonzero(labels == c)) for c in np.unique(labels)}
    result = []
    for _ in range(parts):
        classes = [c for c in pools if pools[c]]
        left = np.array([len(pools[c]) for c in classes])
        p = left / left.sum() if prior == "shares" else np.ones(len(classes))
        theta = rng.dirichlet(alpha * p)
        part = []
        while len(part) < size:
            i = rng.choice(len(classes), p=theta)
            pool = pools[classes[i]]
            part.append(pool.pop(rng.integers(len(pool))))
            if not pool:
                classes.pop(i)
                theta = np.delete(theta, i)
                theta = theta / theta.sum()
        result.append(np.array(part))
    return result


def _two_sample_chi_square(first, second):
    """Standardised chi-square of two samples of outcomes (about N(0, 1) if they have one law)."""
    one, two = Counter(first), Counter(second)
    common = [k for k in one.keys() | two.keys() if one[k] + two[k] >= 20]
    rare = [sum(c[k] for k in c if k not in common) for c in (one, two)]
    table = np.array([[c[k] for k in common] + [r] for c, r in zip((one, two), rare, strict=True)])
    table = table[:, table.sum(axis=0) > 0]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    freedom = table.shape[1] - 1
    ratio = ((table - expected) ** 2 / expected).sum() / freedom
    # Wilson and Hilferty: the cube root of chi-square / freedom is nearly normal.
    return (np.cbrt(ratio) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))


def _outcomes(splitter, labels, runs, seed, *arguments):
    """Class counts of all parts, for many runs."""
    rng = np.random.default_rng(seed)
    classes = labels.max() + 1
    return [
        tuple(
            tuple(np.bincount(labels[part], minlength=classes))
            for part in splitter(labels, *arguments[:3], rng, *arguments[3:])
        )
        for _ in range(runs)
    ]


CASES = [
    pytest.param((6, 6), 1, 3, 1.0, "shares", id="nothing runs out"),
    pytest.param((1, 2, 5), 1, 5, 2.0, "shares", id="classes run out"),
    pytest.param((2, 2, 2), 2, 3, 1.0, "shares", id="everything is used"),
    pytest.param((1, 4, 2), 3, 2, 0.7, "symmetric", id="symmetric"),
]


# With 1000 runs, too, another prior is more than 10 standard deviations off.
repeated = pytest.mark.parametrize("runs", [1000, pytest.param(2500, marks=pytest.mark.slow)])


@pytest.mark.some(2)
@repeated
@pytest.mark.parametrize(("sizes", "parts", "size", "alpha", "prior"), CASES)
def test_batches_have_the_law_of_the_paper_s_loop(sizes, parts, size, alpha, prior, runs):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    fast = _outcomes(split, labels, runs, 1, parts, size, alpha, prior)
    slow = _outcomes(_literal_split, labels, runs, 2, parts, size, alpha, prior)
    assert _two_sample_chi_square(fast, slow) < 3.5


@repeated
def test_the_comparison_of_laws_can_tell_the_priors_apart(runs):
    labels = np.repeat(np.arange(3), (1, 4, 2))
    one = _outcomes(split, labels, runs, 1, 3, 2, 0.7, "symmetric")
    two = _outcomes(split, labels, runs, 2, 3, 2, 0.7, "shares")
    assert _two_sample_chi_square(one, two) > 10


def _exact_law(theta, left, size):
    """Law of the counts in the one-at-a-time loop, by summing over all its paths."""
    law = {(0,) * len(left): 1.0}
    for _ in range(size):
        following = Counter()
        for counts, probability in law.items():
            weight = np.where(np.array(counts) < left, theta, 0)
            for i in np.flatnonzero(weight):
                after = tuple(n + (j == i) for j, n in enumerate(counts))
                following[after] += probability * weight[i] / weight.sum()
        law = dict(following)
    return law


def _distance_from_exact(draw):
    """Standardised chi-square distance of 20,000 draws from the exact law, with exhaustion."""
    theta, left, size, runs = np.array([0.6, 0.3, 0.1]), np.array([2, 3, 4]), 6, 20_000
    law = _exact_law(theta, left, size)
    rng = np.random.default_rng(3)
    seen = Counter(tuple(map(int, draw(theta, left, size, rng))) for _ in range(runs))
    assert seen.keys() <= law.keys()
    chi = sum((seen[k] - runs * p) ** 2 / (runs * p) for k, p in law.items())
    freedom = len(law) - 1
    return (chi - freedom) / np.sqrt(2 * freedom)


@pytest.mark.slow
def test_counts_follow_the_exact_law_when_classes_run_out():
    def draw(theta, left, size, rng):
        return _draw_counts(np.log(theta), left, size, rng)

    assert abs(_distance_from_exact(draw)) < 3.5


def test_filling_up_by_shares_would_be_another_law():
    def draw(theta, left, size, rng):
        counts = np.minimum(rng.multinomial(size, theta), left)
        rest = left - counts
        return counts + rng.multivariate_hypergeometric(rest, size - counts.sum())

    assert _distance_from_exact(draw) > 10


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    parts=st.integers(1, 5),
    alpha=st.sampled_from([1e-320, 1e-12, 0.01, 1.0, 1e6]),
    prior=st.sampled_from(["shares", "symmetric"]),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_full_and_repeatable(sizes, parts, alpha, prior, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))
    size = len(labels) // parts
    if not size:
        return
    first = split(labels, parts, size, alpha, np.random.default_rng(seed), prior)
    again = split(labels, parts, size, alpha, np.random.default_rng(seed), prior)
    assert [len(part) for part in first] == [size] * parts
    assert len(np.unique(np.concatenate(first))) == parts * size
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_every_sample_is_equally_likely():
    labels = np.repeat([0, 1], [4, 4])
    rng = np.random.default_rng(0)
    seen = np.bincount(
        np.concatenate([split(labels, 1, 2, 1.0, rng)[0] for _ in range(4000)]), minlength=8
    )
    assert np.allclose(seen / 4000, 1 / 4, atol=0.03)


def test_a_part_is_in_random_order():
    labels = np.repeat([0, 1], 50)
    part = split(labels, 1, 100, 1.0, np.random.default_rng(0))[0]
    changes = np.count_nonzero(np.diff(labels[part]))
    assert 30 < changes < 70


def _purity(labels, parts):
    return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])


def test_small_concentrations_give_few_classes_and_large_ones_the_common_mix():
    labels = np.repeat(np.arange(10), 200)
    skew = [
        _purity(labels, split(labels, 4, 50, alpha, np.random.default_rng(5)))
        for alpha in (1e-3, 1.0, 1e5)
    ]
    assert skew[0] > 0.99
    assert 0.2 < skew[1] < 0.99
    assert skew[2] < 0.25


def test_shares_are_more_skewed_than_symmetric_at_the_same_concentration():
    labels = np.repeat(np.arange(10), 200)
    rng = np.random.default_rng(5)
    shares = [_purity(labels, split(labels, 5, 50, 1.0, rng, "shares")) for _ in range(20)]
    symmetric = [_purity(labels, split(labels, 5, 50, 1.0, rng, "symmetric")) for _ in range(20)]
    assert np.mean(shares) > np.mean(symmetric) + 0.1


def test_the_prior_is_recomputed_from_what_is_left():
    """With alpha huge theta = p, so E[second | first] = 40 (50 - first) / 60: slope -2/3."""
    labels = np.repeat([0, 1], [50, 50])
    counts = np.array(_outcomes(split, labels, 600, 0, 2, 40, 1e9))[:, :, 0]
    covariance = np.cov(counts.T)
    assert covariance[0, 1] / covariance[0, 0] == pytest.approx(-2 / 3, abs=0.15)


def test_dirichlet_moments():
    a = np.array([0.3, 1.2, 2.5])
    rng = np.random.default_rng(0)
    draws = np.exp([_log_dirichlet(a, rng) for _ in range(20_000)])
    theta = draws / draws.sum(axis=1, keepdims=True)
    mean = a / a.sum()
    assert np.allclose(theta.mean(axis=0), mean, atol=0.01)
    assert np.allclose(theta.var(axis=0), mean * (1 - mean) / (a.sum() + 1), atol=0.005)


def test_tiny_concentrations_keep_the_order_of_all_classes():
    """Where numpy's draw is all 0 but one class, each next class is still drawn by its share."""
    a = 1e-9 * np.array([0.2, 0.3, 0.5])
    rng = np.random.default_rng(0)
    logarithms = np.array([_log_dirichlet(a, rng) for _ in range(10_000)])
    assert np.isfinite(logarithms).all()
    ranks = np.argsort(-logarithms, axis=1)
    assert np.allclose(np.bincount(ranks[:, 0]) / 10_000, [0.2, 0.3, 0.5], atol=0.02)
    second = ranks[ranks[:, 0] == 2, 1]
    assert np.allclose(np.bincount(second) / len(second), [0.4, 0.6], atol=0.03)


def test_when_the_favourite_class_runs_out_the_rest_is_as_skewed():
    labels = np.repeat(np.arange(10), 10)
    part = split(labels, 1, 30, 1e-6, np.random.default_rng(0))[0]
    assert sorted(np.bincount(labels[part], minlength=10))[-3:] == [10, 10, 10]


def test_two_levels_nest_clients_and_subsets():
    labels = np.random.default_rng(0).integers(0, 10, 1003)
    clients = two_level(labels, 4, 5, 0.05, 100.0, np.random.default_rng(1))
    assert [[len(s) for s in subsets] for subsets in clients] == [[50] * 5] * 4
    everything = np.concatenate([s for subsets in clients for s in subsets])
    assert len(np.unique(everything)) == 1000
    # few classes a client, but the same mix in all subsets of a client
    assert _purity(labels, [np.concatenate(subsets) for subsets in clients]) > 0.4
    for subsets in clients:
        mixes = np.array([np.bincount(labels[s], minlength=10) for s in subsets]) / 50
        assert np.abs(mixes - mixes.mean(axis=0)).max() < 0.35


def test_the_second_level_skews_time():
    labels = np.random.default_rng(0).integers(0, 10, 2000)
    clients = two_level(labels, 2, 10, 1e4, 0.01, np.random.default_rng(1))
    assert _purity(labels, [np.concatenate(subsets) for subsets in clients]) < 0.2
    assert _purity(labels, [s for subsets in clients for s in subsets]) > 0.8


def test_subset_size_is_the_paper_s_238():
    assert subset_size(50_000, 7, 30) == 238
    assert subset_size(60_000, 7, 30) == 285


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 4, 1.0), "need 12, but there are only 10"),
        ((0, 4, 1.0), "at least 1"),
        ((2, 0, 1.0), "at least 1"),
        ((2, 2, 0.0), "alpha = 0.0"),
        ((2, 2, float("inf")), "alpha = inf"),
        ((2, 2, float("nan")), "alpha = nan"),
    ],
)
def test_impossible_splits_are_refused(arguments, words):
    with pytest.raises(SpecError, match=words) as caught:
        split(np.arange(10), *arguments, np.random.default_rng(0))
    assert "\n" not in str(caught.value)


def test_too_few_samples_for_two_levels():
    with pytest.raises(SpecError, match="100 samples are too few for 7 clients x 30 subsets"):
        two_level(np.zeros(100, dtype=np.int64), 7, 30, 0.1, 0.1, np.random.default_rng(0))

"""Which samples are kept: against brute force, and by counting."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed.methods.memories.selection import admitted, balanced, herding, turns, uniform

SOME_LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=40).map(torch.tensor)
SIZES = st.integers(1, 50)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(n: int, seed: int, d: int = 3) -> torch.Tensor:
    return torch.randn(n, d, generator=generator(seed)) + 5.0


def herding_by_hand(phi: list[list[float]], m: int) -> list[int]:
    """The paper's algorithm word for word, for one class, without taking a sample twice."""
    rows = torch.tensor(phi, dtype=torch.float64)
    mu, chosen = rows.mean(0), []
    for k in range(1, m + 1):
        gaps = {
            x: float((mu - (rows[x] + rows[chosen].sum(0)) / k).norm())
            for x in range(len(rows))
            if x not in chosen
        }
        chosen.append(min(gaps, key=gaps.get))
    return chosen


@given(st.integers(1, 25), st.integers(1, 30), st.integers(0, 10**6))
def test_herding_equals_brute_force(n, size, seed):
    phi = features(n, seed)
    got = herding(phi, torch.zeros(n, dtype=torch.int64), size)
    assert got.tolist() == herding_by_hand(phi.tolist(), min(n, size))


def test_herding_works_class_by_class():
    phi, labels = features(30, 1), torch.arange(30) % 3 % 2  # 20 of class 0, 10 of class 1
    got = herding(phi, labels, 12)
    for label, quota in ((0, 8), (1, 4)):
        index = (labels == label).nonzero().flatten()
        want = index[herding_by_hand(phi[index].tolist(), quota)]
        assert got[labels[got] == label].tolist() == want.tolist()


def test_herding_takes_no_sample_twice_even_if_it_were_best():
    """A sample at the mean would win every turn."""
    phi = torch.tensor([[0.0], [-1.0], [1.0], [-5.0], [5.0]])
    got = herding(phi, torch.zeros(5, dtype=torch.int64), 5)
    assert got[0] == 0
    assert sorted(got.tolist()) == [0, 1, 2, 3, 4]


def test_herding_is_nearer_to_the_mean_than_chance():
    phi, labels = features(200, 2, d=10), torch.zeros(200, dtype=torch.int64)
    gap = {
        name: float((phi[pick].mean(0) - phi.mean(0)).norm())
        for name, pick in (
            ("herding", herding(phi, labels, 10)),
            ("chance", uniform(200, 10, generator())),
        )
    }
    assert gap["herding"] < gap["chance"] / 4


EVERY = {
    "uniform": lambda labels, size: uniform(len(labels), size, generator()),
    "balanced": lambda labels, size: balanced(labels, size, generator()),
    "herding": lambda labels, size: herding(features(len(labels), 0), labels, size),
}


@pytest.mark.parametrize("select", EVERY.values(), ids=EVERY)
@given(SOME_LABELS, SIZES)
def test_exactly_as_many_as_asked_for_and_none_twice(select, labels, size):
    pick = select(labels, size).tolist()
    assert len(pick) == len(set(pick)) == min(size, len(labels))
    assert all(0 <= place < len(labels) for place in pick)


@pytest.mark.parametrize("select", [EVERY["uniform"], EVERY["herding"]], ids=["uniform", "herding"])
@given(SOME_LABELS, SIZES)
def test_the_beginning_of_a_selection_is_a_smaller_selection(select, labels, size):
    whole = select(labels, len(labels))
    assert select(labels, size).tolist() == whole[:size].tolist()


@given(SOME_LABELS, SIZES)
def test_balanced_is_as_equal_as_can_be_however_early_one_stops(labels, size):
    pick, have = balanced(labels, size, generator()), labels.bincount(minlength=5)
    for stop in range(1, len(pick) + 1):
        got = labels[pick[:stop]].bincount(minlength=5)
        short = got[(have > 0) & (got < have)]  # classes that could give more
        assert not len(short) or short.min() >= got.max() - 1


def test_balanced_draws_at_random_within_a_class():
    labels, counts, source = torch.tensor([0, 0, 0, 0, 1, 1]), torch.zeros(6), generator()
    for _ in range(3000):
        counts[balanced(labels, 2, source)] += 1
    assert (counts / 3000 - torch.tensor([0.25] * 4 + [0.5] * 2)).abs().max() < 0.03


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), SIZES)
def test_quotas_in_proportion_are_the_nearest(counts, size):
    """No other whole numbers with the same sum are nearer to the exact shares (in Sainte-Laguë's sense)."""
    have = torch.tensor(counts, dtype=torch.float64)
    size = min(size, sum(counts))
    got = turns(torch.tensor(counts), size, proportional=True).bincount(minlength=len(counts))
    assert int(got.sum()) == size
    assert (got <= have).all()

    def error(quota):
        held = have > 0
        return float((have[held] * (quota[held] / have[held] - size / sum(counts)).square()).sum())

    for giver, taker in itertools.permutations(range(len(counts)), 2):
        if got[giver] and counts[taker]:
            moved = got.double()
            moved[giver] -= 1
            moved[taker] += 1
            assert error(got.double()) <= error(moved) + 1e-9


def test_groups_take_turns_and_the_first_comes_first():
    assert turns(torch.tensor([2, 0, 5]), 99).tolist() == [0, 2, 0, 2, 2, 2, 2]
    assert turns(torch.tensor([3, 3]), 3).tolist() == [0, 1, 0]
    assert turns(torch.tensor([1, 9]), 6, proportional=True).tolist() == [1, 1, 1, 1, 0, 1]


def test_a_reservoir_admits_as_many_as_a_uniform_sample_would_have():
    source = generator()
    got = torch.tensor([admitted(30, 10, 8, source) for _ in range(4000)]).double()
    assert abs(float(got.mean()) - 2.0) < 0.08  # 8 * 10 / 40
    variance = 8 * 0.25 * 0.75 * 32 / 39  # hypergeometric, not binomial
    assert abs(float(got.var()) - variance) < 0.12
    assert admitted(0, 10, 8, source) == 8
    assert admitted(3, 4, 99, source) == 4

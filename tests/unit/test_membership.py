"""Who is there: every membership, alone and inside a scenario."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.config import kind_of
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table
from chronofed.scenarios.base import Presence, Scenario
from chronofed.scenarios.cycles import Blocks, Diurnal
from chronofed.scenarios.membership import (
    NEVER,
    Available,
    Everyone,
    FixedClients,
    Membership,
    OneShot,
    Schedule,
)
from chronofed.scenarios.subsets import SubsetStream

SEVEN = np.arange(7)
ALL = [
    Everyone(),
    FixedClients((5, 0)),
    Schedule(((1, 2, 5), (3, 0, NEVER))),
    Available(0.5),
    OneShot(2),
    Diurnal(per_round=3, period=6),
    Blocks(3, length=2),
]


def _present(membership, round_, seed=0, clients=7):
    return membership.present(np.arange(clients), round_, seed).tolist()


@pytest.mark.parametrize("membership", ALL, ids=kind_of)
def test_pure_ascending_and_among_the_candidates(membership):
    presence: Presence = membership
    for t in (9, 0, 4):
        candidates = 100 + SEVEN
        for group in (SEVEN, candidates):
            here = presence.present(group, t, 3)
            assert np.array_equal(here, presence.present(group, t, 3))
            assert np.all(np.diff(here) > 0)
            assert np.isin(here, group).all()


@pytest.mark.parametrize("membership", ALL, ids=kind_of)
def test_written_and_read_back(membership):
    plain = msgspec.to_builtins(membership)
    assert plain["kind"] == kind_of(membership)
    assert from_table(plain, Membership) == membership


@pytest.mark.parametrize("membership", ALL, ids=kind_of)
def test_only_one_shot_clients_never_return(membership):
    assert membership.persistent == (not isinstance(membership, OneShot))


def test_everyone():
    assert _present(Everyone(), 3) == SEVEN.tolist()
    assert Everyone().rounds(7) is None


def test_fixed_clients():
    assert [_present(FixedClients((5, 0, 5)), t) for t in (0, 9)] == [[0, 5]] * 2
    assert FixedClients((5, 0, 5)).most(7) == 2
    assert FixedClients((5, 0)).present(5 + SEVEN, 0, 0).tolist() == [5]


def test_schedule_by_hand():
    schedule = Schedule(((0, 2, 4), (0, 6, NEVER), (2, 0, 1)))
    expected = [[1, 2], [1], [0, 1], [0, 1], [1], [1], [0, 1], [0, 1]]
    assert [_present(schedule, t, clients=3) for t in range(8)] == expected


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9) | st.just(NEVER)),
        max_size=6,
    ),
    round_=st.integers(0, 20),
)
def test_schedule_against_its_definition(spans, round_):
    spans = tuple((i, a, b if b == NEVER else a + b) for i, a, b in spans)
    own = {i: [(a, b) for j, a, b in spans if j == i] for i in range(4)}
    expected = [
        i
        for i, times in own.items()
        if not times or any(a <= round_ and (b == NEVER or round_ < b) for a, b in times)
    ]
    schedule = Schedule(spans)
    assert _present(schedule, round_, clients=4) == expected
    end = schedule.rounds(4)
    if end is None:
        assert _present(schedule, 10**6, clients=4)
    else:
        assert _present(schedule, end - 1, clients=4)
        assert not _present(schedule, end, clients=4)


def test_available_is_a_coin_for_each_client_and_round():
    there = np.zeros((2000, 7))
    for t in range(2000):
        there[t, _present(Available(0.3), t)] = 1
    assert np.allclose(there.mean(axis=0), 0.3, atol=0.04)
    correlation = np.corrcoef(there.T) - np.eye(7)
    assert np.abs(correlation).max() < 0.1
    later = [np.corrcoef(there[:-1, i], there[1:, i])[0, 1] for i in range(7)]
    assert np.abs(later).max() < 0.1


def test_available_depends_on_the_seed_and_may_be_everyone():
    draws = [[_present(Available(0.5), t, seed) for t in range(9)] for seed in (0, 1)]
    assert draws[0] != draws[1]
    assert _present(Available(1.0), 0) == SEVEN.tolist()


def test_one_shot():
    assert [_present(OneShot(3), t) for t in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]
    assert OneShot(3).rounds(7) == 2
    assert OneShot(3).most(7) == 3


def test_a_scenario_of_nobody_is_an_empty_plan():
    stream = SubsetStream([[np.arange(3)]] * 2)
    scenario = Scenario(stream, Schedule(((0, 2, NEVER), (1, 3, 4))))
    assert [list(scenario.at(t).visits) for t in range(5)] == [[], [], [0], [0, 1], [0]]
    assert scenario.rounds is None
    assert scenario.persistent


def test_cohort_is_drawn_from_those_present():
    scenario = Scenario(SubsetStream([[np.arange(3)]] * 7), FixedClients((1, 3, 5)), cohort=2)
    chosen = [tuple(scenario.at(t).visits) for t in range(60)]
    assert set(chosen) == {(1, 3), (1, 5), (3, 5)}


def test_a_scenario_lasts_as_long_as_its_members():
    scenario = Scenario(SubsetStream([[np.arange(3)]] * 2), Schedule(((0, 0, 4), (1, 2, 9))))
    assert scenario.rounds == 9


@pytest.mark.parametrize(
    ("membership", "words"),
    [
        (
            FixedClients((1, 9)),
            "'fixed-clients' names client 9, but there are 7: use numbers 0 .. 6",
        ),
        (Schedule(((7, 0, 1),)), "'schedule' names client 7"),
        (OneShot(8), "asks 8 clients a round, but there are 7"),
    ],
    ids=["fixed", "schedule", "one-shot"],
)
def test_memberships_that_do_not_fit(membership, words):
    with pytest.raises(SpecError, match=words):
        membership.check(7)


@pytest.mark.parametrize("membership", [*ALL, Schedule(())], ids=kind_of)
def test_memberships_that_fit(membership):
    membership.check(7)
    counts = [len(_present(membership, t)) for t in range(30)]
    assert max(counts) <= membership.most(7) <= 7


@pytest.mark.parametrize(
    "build",
    [
        lambda: FixedClients(()),
        lambda: FixedClients((-1,)),
        lambda: Schedule(((0, 3, 3),)),
        lambda: Schedule(((0, 3, -2),)),
        lambda: Available(0.0),
        lambda: Available(1.5),
        lambda: OneShot(0),
    ],
)
def test_values_out_of_range_are_refused(build):
    with pytest.raises(ValueError, match=r"^(FixedClients|Schedule|Available|OneShot)\.\w+: "):
        build()


def test_the_base_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Membership()


# Cycles


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_share_of_the_day_turns_round_once_a_period(shape):
    """1, 1/2, 0, 1/2, 1 at rounds 0, T/4, T/2, 3T/4, T; with power 2 the squares."""
    rounds, want = (0, 8, 16, 24, 32), [1, 0.5, 0, 0.5, 1]
    assert [Diurnal(shape=shape).share(t) for t in rounds] == pytest.approx(want, abs=1e-12)
    squares = [Diurnal(shape=shape, power=2.0).share(t) for t in rounds]
    assert squares == pytest.approx([q**2 for q in want], abs=1e-12)
    assert Diurnal().share(4) == 0.75
    assert Diurnal(shape="cosine").share(4) == pytest.approx((2 + np.sqrt(2)) / 4)


def test_exactly_so_many_clients_a_round_are_of_the_day_by_its_share():
    """Means over 200 seeds: 10, 5, 0, 5, 10 of 10, with a standard error of 0.11 at most."""
    diurnal = Diurnal(per_round=10, period=32)
    for t, want in ((0, 10), (8, 5), (16, 0), (24, 5), (32, 10)):
        drawn = [_present(diurnal, t, seed, clients=30) for seed in range(200)]
        assert {len(set(each)) for each in drawn} == {10}
        assert np.mean([sum(i < 15 for i in each) for each in drawn]) == pytest.approx(
            want, abs=0.5
        )
    assert len({tuple(_present(diurnal, 8, seed, clients=30)) for seed in range(9)}) == 9


def test_the_clients_of_the_day_may_be_named():
    diurnal = Diurnal(per_round=2, period=4, day=(6, 1, 3))
    assert set(_present(diurnal, 0)) <= {1, 3, 6}
    assert set(_present(diurnal, 2)) <= {0, 2, 4, 5}
    assert diurnal.most(7) == 2
    # By default the first half, the larger one of an odd number.
    whole = Diurnal(per_round=3, period=2)
    assert set(_present(whole, 0)) <= {0, 1, 2, 3}
    assert _present(whole, 1) == [4, 5, 6]


def test_blocks_by_hand():
    found = [_present(Blocks(3, length=2), t) for t in range(8)]
    first, second, third = [0, 1, 2], [3, 4], [5, 6]
    assert found == [first, first, second, second, third, third, first, first]
    assert Blocks(3).most(7) == 3
    assert Blocks(2).present(100 + SEVEN, 1, 0).tolist() == [104, 105, 106]


@pytest.mark.parametrize(
    ("membership", "words"),
    [
        (Diurnal(per_round=4), "asks 4 clients a round, but the night has 3: lower per_round"),
        (Diurnal(per_round=2, day=(0,)), "asks 2 clients a round, but the day has 1"),
        (Diurnal(per_round=1, day=(9,)), "names client 9, but there are 7"),
        (Blocks(8), "has 8 blocks, but there are 7 clients: lower blocks"),
    ],
    ids=str,
)
def test_cycles_that_do_not_fit(membership, words):
    with pytest.raises(SpecError, match=words):
        membership.check(7)
    Diurnal(per_round=3).check(7)
    Blocks(7).check(7)

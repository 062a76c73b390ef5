"""What clients hold: pure, with random access, disjoint where it must be."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronofed.core.errors import DataError, SpecError
from chronofed.scenarios.base import Scenario
from chronofed.scenarios.membership import Available, Everyone, OneShot
from chronofed.scenarios.partition import two_level
from chronofed.scenarios.periods import PeriodStream
from chronofed.scenarios.stateless import StatelessStream
from chronofed.scenarios.subsets import SubsetStream
from chronofed.scenarios.window import WindowStream

LABELS = np.random.default_rng(0).integers(0, 4, 400)


def _random_subset(seed=0):
    return SubsetStream(two_level(LABELS, 3, 5, 1.0, 1.0, np.random.default_rng(0)), seed)


def _stateless(seed=0, **changes):
    alphas = {"client_alpha": 0.5, "time_alpha": 0.5} | changes
    return StatelessStream(LABELS, clients_per_round=3, size=10, subsets=4, seed=seed, **alphas)


def _periods(rows=200, clients=3, periods=4, **changes):
    rng = np.random.default_rng(7)
    return PeriodStream(
        rng.integers(0, clients, rows), rng.integers(0, periods, rows), clients, periods, **changes
    )


STREAMS = {
    "subset": _random_subset,
    "window": lambda: WindowStream([np.arange(40), np.arange(40, 90)], 10, 7),
    "stateless": _stateless,
    "periods": lambda: _periods(rounds_per_period=2, window=2),
}


def _picture(plan):
    return {i: (v.key, v.indices.tolist()) for i, v in plan.visits.items()}


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
@given(rounds=st.permutations(range(8)))
@settings(max_examples=15)
def test_any_round_in_any_order(build, rounds):
    straight = Scenario(build(), Everyone(), cohort=2)
    expected = [_picture(straight.at(t)) for t in range(8)]
    other = Scenario(build(), Everyone(), cohort=2)
    assert {t: _picture(other.at(t)) for t in rounds} == dict(enumerate(expected))
    assert any(expected)


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
def test_streams_can_be_sent_to_another_process(build):
    stream = build()
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301
    plans = [Scenario(either, Everyone()).at(3) for either in (stream, copy)]
    assert _picture(plans[0]) == _picture(plans[1]) != {}


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
def test_the_same_key_means_the_same_samples(build):
    scenario = Scenario(build(), Everyone())
    seen = {}
    for t in range(12):
        for client, visit in scenario.at(t).visits.items():
            samples = seen.setdefault((client, visit.key), visit.indices.tolist())
            assert samples == visit.indices.tolist()


def test_random_subsets_are_the_client_s_own_and_all_of_them_come():
    stream = _random_subset()
    assert (stream.clients, stream.rounds, stream.persistent) == (3, None, True)
    keys = np.array([[stream.visit(i, t).key for i in range(3)] for t in range(200)])
    assert np.array_equal(stream.visit(1, 4).indices, stream.subsets[1][keys[4, 1]])
    assert [set(own) for own in keys.T.tolist()] == [set(range(5))] * 3
    assert not np.array_equal(keys[:, 0], keys[:, 1])


def test_the_seed_changes_the_draws():
    keys = [[_random_subset(seed).visit(0, t).key for t in range(30)] for seed in (0, 1)]
    assert keys[0] != keys[1]


@given(
    size=st.integers(1, 20), step=st.integers(1, 25), extra=st.integers(0, 30), t=st.integers(0, 99)
)
def test_window_overlap_is_exact_and_wraps_around(size, step, extra, t):
    length = size + step + extra
    track = np.random.default_rng(0).permutation(1000)[:length]
    stream = WindowStream([track], size, step)
    now, following = stream.visit(0, t), stream.visit(0, t + 1)
    assert now.key == t * step % length
    assert now.indices.tolist() == np.roll(track, -now.key)[:size].tolist()
    assert len(np.intersect1d(now.indices, following.indices)) == max(0, size - step)


def test_a_window_comes_back_to_where_it_started():
    stream = WindowStream([np.arange(12)], 4, 3)
    assert [stream.visit(0, t).key for t in range(6)] == [0, 3, 6, 9, 0, 3]
    assert stream.visit(0, 3).indices.tolist() == [9, 10, 11, 0]
    assert (stream.clients, stream.rounds, stream.persistent) == (1, None, True)


@pytest.mark.parametrize(
    ("size", "step", "words"), [(0, 1, "at least 1"), (3, 0, "at least 1"), (6, 1, "only 5")]
)
def test_windows_that_cannot_be(size, step, words):
    with pytest.raises(SpecError, match=words):
        WindowStream([np.arange(9), np.arange(5)], size, step)


def test_stateless_clients_come_once_with_disjoint_data():
    scenario = Scenario(_stateless(), Everyone())
    assert (scenario.clients, scenario.rounds, scenario.persistent) == (3, None, False)
    for t in (0, 1, 5, 10**6):
        visits = scenario.at(t).visits
        assert list(visits) == [3 * t, 3 * t + 1, 3 * t + 2]
        samples = np.concatenate([v.indices for v in visits.values()])
        assert len(samples) == len(np.unique(samples)) == 30


def test_stateless_data_are_new_every_round():
    stream = _stateless()
    first, second = stream.visit(0, 0).indices, stream.visit(3, 1).indices
    assert len(np.intersect1d(first, second)) < 10
    assert not np.array_equal(_stateless(seed=1).visit(0, 0).indices, first)


def test_a_stateless_client_has_nothing_in_other_rounds():
    stream = _stateless()
    assert stream.visit(4, 1) is not None
    assert stream.visit(4, 0) is None
    assert stream.visit(4, 2) is None


def test_stateless_clients_are_skewed_at_both_levels():
    def purity(**alphas):
        scenario = Scenario(_stateless(**alphas), Everyone())
        visits = [v for t in range(40) for v in scenario.at(t).visits.values()]
        return np.mean([np.bincount(LABELS[v.indices]).max() / 10 for v in visits])

    level = purity(client_alpha=1e4, time_alpha=1e4)
    assert purity(client_alpha=0.01, time_alpha=1e4) > level + 0.2
    assert purity(client_alpha=1e4, time_alpha=0.01) > level + 0.2


def test_stateless_clients_may_be_unavailable():
    scenario = Scenario(_stateless(), Available(0.5))
    seen = [client for t in range(50) for client in scenario.at(t).visits]
    assert 40 < len(seen) < 110
    assert len(seen) == len(set(seen))


def test_one_shot_on_a_lasting_stream_ends():
    scenario = Scenario(_random_subset(), OneShot(1))
    assert (scenario.rounds, scenario.persistent) == (3, False)
    assert [list(scenario.at(t).visits) for t in range(4)] == [[0], [1], [2], []]


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30),
    rounds_per_period=st.integers(1, 3),
    window=st.integers(1, 5),
)
def test_periods_show_exactly_the_rows_of_the_window(rows, rounds_per_period, window):
    client, period = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    stream = PeriodStream(client, period, 3, 4, rounds_per_period, window)
    assert stream.rounds == 4 * rounds_per_period
    for t in range(stream.rounds):
        now = t // rounds_per_period
        for i in range(3):
            expected = np.flatnonzero((client == i) & (period <= now) & (period > now - window))
            visit = stream.visit(i, t)
            if len(expected):
                assert sorted(visit.indices) == expected.tolist()
                assert visit.key == now
            else:
                assert visit is None


def test_periods_list_old_rows_first():
    stream = PeriodStream(np.zeros(5, dtype=np.int64), np.array([1, 0, 1, 0, 2]), 1, 3, window=2)
    assert stream.visit(0, 1).indices.tolist() == [1, 3, 0, 2]


def test_periods_end_and_leave_out_clients_without_rows():
    stream = PeriodStream(np.array([0, 1, 1]), np.array([0, 0, 1]), 2, 3)
    scenario = Scenario(stream, Everyone())
    assert (scenario.clients, scenario.rounds, scenario.persistent) == (2, 3, True)
    assert [list(scenario.at(t).visits) for t in range(-1, 5)] == [[], [0, 1], [1], [], [], []]


@pytest.mark.parametrize(
    ("client", "period", "words"),
    [
        ([0, 2], [0, 0], "row 1: client code 2 is not one of 0 .. 1"),
        ([0, 1], [-1, 0], "row 0: period code -1"),
        ([0, 1], [0], "2 client and 1 period codes"),
    ],
)
def test_rows_without_a_place_are_refused(client, period, words):
    with pytest.raises(DataError, match=words):
        PeriodStream(np.array(client), np.array(period), 2, 2)


@pytest.mark.parametrize("changes", [{"window": 0}, {"rounds_per_period": 0}])
def test_periods_need_at_least_one_round_and_one_period(changes):
    with pytest.raises(SpecError, match="both must be at least 1"):
        _periods(**changes)

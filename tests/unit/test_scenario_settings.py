"""Scenarios as a specification names them."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch

from chronofed.core.config import kind_of
from chronofed.core.errors import SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.core.spec_io import from_table
from chronofed.core.types import Samples
from chronofed.data.dataset import Dataset, Origin
from chronofed.scenarios import (
    Available,
    Everyone,
    FixedClients,
    OneShot,
    Periods,
    Scenario,
    ScenarioSettings,
    Schedule,
    Stateless,
    StatelessStream,
    Subsets,
    Window,
    two_level,
)


def _samples(n):
    return Samples(torch.zeros(n, 2), torch.arange(n) % 4)


def _origin():
    codes = np.arange(60)
    return Origin(("a", "b", "c"), ("1", "2"), codes % 3, codes // 30, codes[:0], codes[:0])


PLAIN = Dataset("toy", _samples(420), _samples(4), ("p", "q", "r", "s"))
TABLE = Dataset("diary", _samples(60), _samples(0), ("p", "q", "r", "s"), _origin())


def _visits(scenario, t):
    return {i: v.indices.tolist() for i, v in scenario.at(t).visits.items()}


def test_defaults_are_the_paper_s():
    subsets = Subsets()
    assert (subsets.clients, subsets.subsets, subsets.client_alpha) == (7, 30, 0.1)
    assert (subsets.alphas, subsets.prior) == ((0.1, 0.1), "shares")
    assert (subsets.membership, subsets.cohort) == (Everyone(), None)
    assert Subsets(time_alpha=2.0).alphas == (0.1, 2.0)


def test_positional_use():
    assert Subsets(5, 6, 0.3) == Subsets(clients=5, subsets=6, client_alpha=0.3)
    with pytest.raises(TypeError):
        Subsets(5, 6, 0.3, None, "shares", Everyone())


@pytest.mark.parametrize(
    "settings",
    [
        Subsets(3, 4, 1.0, membership=Available(0.5), cohort=2),
        Window(3, 4, overlap=0.25, membership=Schedule(((0, 1, 2),))),
        Stateless(3, 4, prior="symmetric", registered=90),
        Periods(2, 3, membership=FixedClients((1,))),
    ],
    ids=kind_of,
)
def test_written_and_read_back(settings):
    plain = msgspec.to_builtins(settings)
    assert plain["kind"] == kind_of(settings)
    assert from_table(plain, ScenarioSettings) == settings


def test_a_specification_may_say_little():
    membership = {"kind": "one-shot", "per_round": 2}
    plain = {"kind": "window", "client_alpha": 1, "membership": membership}
    expected = Window(client_alpha=1.0, membership=OneShot(2))
    assert from_table(plain, ScenarioSettings) == expected


@pytest.mark.parametrize("settings", [Subsets(3, 7, 1.0), Window(3, 7, 1.0), Stateless(3, 7, 1.0)])
def test_the_seed_decides_everything(settings: ScenarioSettings):
    first, again, other = (settings.on(PLAIN, seed) for seed in (1, 1, 2))
    assert _visits(first, 5) == _visits(again, 5)
    assert _visits(first, 5) != _visits(other, 5)
    assert all(len(indices) == 20 for indices in _visits(first, 5).values())


def test_subsets_are_the_two_level_split():
    settings = Subsets(3, 7, 0.5, 2.0, "symmetric", membership=FixedClients((2,)))
    scenario = settings.on(PLAIN, 9)
    rng = numpy_generator(9, "partition")
    expected = two_level(PLAIN.labels, 3, 7, 0.5, 2.0, rng, "symmetric")
    visit = scenario.at(0).visits[2]
    assert visit.indices.tolist() == expected[2][visit.key].tolist()
    assert (scenario.seed, scenario.clients, scenario.persistent) == (9, 3, True)


@pytest.mark.parametrize(("overlap", "kept"), [(0.0, 0), (0.25, 5), (0.5, 10), (0.95, 19)])
def test_windows_overlap_as_asked(overlap, kept):
    scenario = Window(3, 7, 1.0, overlap=overlap).on(PLAIN, 0)
    for t in range(30):
        now, following = _visits(scenario, t), _visits(scenario, t + 1)
        assert [len(set(now[i]) & set(following[i])) for i in range(3)] == [kept] * 3


def test_a_window_without_overlap_visits_all_subsets_in_turn():
    scenario = Window(3, 7, 1.0, overlap=0.0).on(PLAIN, 0)
    seen = [i for t in range(7) for indices in _visits(scenario, t).values() for i in indices]
    assert sorted(seen) == list(range(420))
    assert _visits(scenario, 7) == _visits(scenario, 0)


def test_stateless_clients_are_new():
    scenario = Stateless(3, 7, 1.0, cohort=2).on(PLAIN, 0)
    seen = [i for t in range(10) for i in _visits(scenario, t)]
    assert len(set(seen)) == 20
    assert not scenario.persistent


def test_stateless_settings_reach_the_stream():
    scenario = Stateless(3, 7, 0.5, 2.0, "symmetric").on(PLAIN, 4)
    stream = StatelessStream(PLAIN.labels, 3, 20, 0.5, 2.0, 4, "symmetric", 7)
    assert _visits(scenario, 6) == _visits(Scenario(stream, Everyone()), 6)


def test_a_million_registered_clients_are_those_of_a_round():
    few, many = (
        Stateless(3, 7, 1.0).on(PLAIN, 4),
        Stateless(3, 7, 1.0, registered=10**6 + 1).on(PLAIN, 4),
    )
    assert (few.rounds, many.rounds) == (None, 333_333)
    assert many.clients == 3
    for t in (0, 6, 333_332):
        assert _visits(many, t) == _visits(few, t)
    assert max(many.at(333_332).visits) == 10**6 - 2


def test_calendar_follows_the_table():
    scenario = Periods(rounds_per_period=2).on(TABLE, 0)
    assert (scenario.clients, scenario.rounds) == (3, 4)
    assert _visits(scenario, 1)[2] == list(range(2, 30, 3))
    assert _visits(scenario, 2)[0] == list(range(30, 60, 3))
    assert _visits(Periods(window=2).on(TABLE, 0), 1)[0] == list(range(0, 60, 3))


def test_membership_and_cohort_reach_the_scenario():
    membership = Schedule(((0, 1, -1),))
    scenario = Periods(membership=membership, cohort=1).on(TABLE, 0)
    assert (scenario.membership, scenario.cohort) == (membership, 1)
    assert 0 not in _visits(scenario, 0)


REFUSED: dict[str, tuple[ScenarioSettings, str]] = {
    "unknown client": (
        Subsets(3, 7, membership=FixedClients((9,))),
        "names client 9, but there are 3",
    ),
    "cohort": (Subsets(3, 7, cohort=4), "cohort = 4, but at most 3 clients"),
    "cohort of a few": (
        Window(3, 7, membership=FixedClients((0, 1)), cohort=3),
        "at most 2 clients",
    ),
    "cohort of new ones": (Stateless(3, 7, cohort=4), "cohort = 4, but at most 3 clients"),
    "one-shot twice": (Stateless(3, 7, membership=OneShot(3)), "only be 'everyone' or 'available'"),
    "fixed new clients": (
        Stateless(3, 7, membership=FixedClients((0,))),
        "new clients in every round",
    ),
    "too few clients": (Subsets(3, 7, membership=OneShot(4)), "asks 4 clients a round"),
    "few samples": (Subsets(50, 9), "420 samples are too few for 50 clients x 9 subsets"),
    "few for windows": (Window(50, 9), "too few"),
    "few for stateless": (Stateless(50, 9), "too few"),
    "few registered": (
        Stateless(3, 7, registered=2),
        "clients = 3 a round, but only 2 are registered",
    ),
    "no movement": (Window(3, 7, overlap=0.98), "overlap = 0.98 of a window of 20 samples"),
    "no table": (Periods(), "data set 'toy' .* use data.kind = \"table\""),
}


@pytest.mark.parametrize(("settings", "words"), REFUSED.values(), ids=REFUSED)
def test_combinations_that_cannot_be(settings, words):
    with pytest.raises(SpecError, match=words) as caught:
        settings.on(PLAIN, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Subsets(0),
        lambda: Subsets(client_alpha=0.0),
        lambda: Subsets(time_alpha=-1.0),
        lambda: Subsets(prior="other"),
        lambda: Window(overlap=1.0),
        lambda: Periods(window=0),
        lambda: Stateless(cohort=0),
    ],
)
def test_values_out_of_range_are_refused(build: Callable[[], ScenarioSettings]):
    with pytest.raises(ValueError, match=r"^(Subsets|Window|Periods|Stateless)\.\w+: "):
        build()


def test_the_base_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        ScenarioSettings()

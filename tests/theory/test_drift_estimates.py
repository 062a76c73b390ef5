"""Estimates of drifts under partial participation: exact on average, near in one run, and never wild.

In a noiseless world all drifts are orthogonal, with exactly the inner products that the model has on average:
an unbiased estimate is exact there. Its global gradient is large and different in every round.
"""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
import torch

from chronofed import Adaptive
from chronofed.methods.weighting import Correlated, Optimal, Timeline
from chronofed.runs.checkpoint import decode, encode
from chronofed.training.loop import Snapshot

PARTICIPATION = [(20, 20), (10, 20), (5, 20), (10, 100)]


def report(gradient, loss=0.0):
    return {
        "gradient": torch.as_tensor(gradient, dtype=torch.float64),
        "information_loss_sq": torch.tensor(loss, dtype=torch.float64),
    }


def follow(weights, rounds, state=None):
    """Yield the state after every round of ``(round, {client: report})``."""
    state = weights.init() if state is None else state
    for round_, reports in rounds:
        state = weights.update(state, reports, round_)
        yield state


def noiseless(cohorts, client, time, correlation=0.0):
    """Make reports whose drifts have the expected inner products exactly."""
    last = max(cohorts) + 1
    number = 1 + max(i for cohort in cohorts.values() for i in cohort)
    steps = np.arange(last)
    root = np.linalg.cholesky(correlation ** np.abs(steps[:, None] - steps))
    rng = np.random.default_rng(0)
    for t, cohort in cohorts.items():
        common = 10 * rng.normal(size=number * (last + 1))
        reports = {}
        for i in cohort:
            drift = np.zeros((number, last + 1))
            drift[i, 0], drift[i, 1:] = np.sqrt(client), np.sqrt(time) * root[t]
            reports[i] = report(common + drift.reshape(-1))
        yield t, reports


def drawn(seed, size, clients, rounds, gap=1):
    """Draw who takes part in every ``gap``-th round."""
    rng = np.random.default_rng(seed)
    every = range(0, gap * rounds, gap)
    return {t: sorted(rng.choice(clients, size, replace=False).tolist()) for t in every}


def uneven(seed):
    """Cohorts of 1 to 5 of 6 clients, and rounds without any."""
    rng = np.random.default_rng(seed)
    sizes = {t: int(rng.integers(0, 6)) for t in range(25)}
    return {t: sorted(rng.choice(6, n, replace=False).tolist()) for t, n in sizes.items() if n}


COHORTS = {
    "all": drawn(0, 5, 5, 15),
    "half": drawn(1, 4, 8, 25),
    "a third": drawn(2, 2, 6, 25),
    "every other round": drawn(3, 4, 8, 20, gap=2),
    "uneven": uneven(4),
}


@pytest.mark.parametrize("discount", [1.0, 0.97])
@pytest.mark.parametrize("cohorts", COHORTS.values(), ids=COHORTS)
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_estimates_are_unbiased(cohorts, discount, correlation):
    weights = Adaptive(discount=discount)
    *_, state = follow(weights, noiseless(cohorts, 4.0, 1.0, correlation))
    found = weights.estimate(state)
    assert found.client_drift_sq == pytest.approx(4.0, rel=1e-6)
    assert found.time_drift_sq == pytest.approx(1.0, rel=1e-6)
    assert found.correlation == pytest.approx(correlation, abs=1e-6)


def test_rounds_that_were_forgotten_hardly_matter():
    """After 88 rounds with a discount of 0.9, a round's clients are no longer listed."""
    weights, cohorts = Adaptive(discount=0.9), drawn(5, 3, 6, 120)
    *_, state = follow(weights, noiseless(cohorts, 4.0, 1.0))
    assert int(state["visits"][0, 0]) == 119 - 87
    assert weights.estimate(state).time_drift_sq == pytest.approx(1.0, rel=1e-3)


def noisy(seed, cohorts, clients, correlation, client=4.0, time=1.0, dimension=200):
    """Draw Gaussian drifts, and an information loss around 0.5."""
    rng = np.random.default_rng(seed)

    def noise(square):
        return rng.normal(size=(clients, dimension)) * np.sqrt(square / dimension)

    fixed, drift = noise(client), noise(time)
    for t in range(max(cohorts) + 1):
        gradients = 10 * rng.normal(size=dimension) + fixed + drift
        losses = 0.5 * rng.chisquare(10, size=clients) / 10
        if t in cohorts:
            yield t, {i: report(gradients[i], losses[i]) for i in cohorts[t]}
        drift = correlation * drift + np.sqrt(1 - correlation**2) * noise(time)


@pytest.mark.some(4)
@pytest.mark.parametrize(("correlation", "discount"), [(0.0, 1.0), (0.5, 0.98)])
@pytest.mark.parametrize(("size", "clients"), PARTICIPATION)
@pytest.mark.slow
def test_one_run_of_100_rounds(size, clients, correlation, discount):
    """All four constants within 10 %, without any average over seeds."""
    weights, cohorts = Adaptive(discount=discount), drawn(size, size, clients, 100)
    *_, state = follow(weights, noisy(clients, cohorts, clients, correlation))
    found = weights.estimate(state)
    assert found.client_drift_sq == pytest.approx(4.0, rel=0.1)
    assert found.time_drift_sq == pytest.approx(1.0, rel=0.1)
    assert found.correlation == pytest.approx(correlation, abs=0.05)
    assert found.information_loss_sq == pytest.approx(0.5, rel=0.1)


def spread(seeds, correlation, dimension):
    """Estimate after 200 rounds of 6 of 30 clients; return the estimates of every seed."""
    found = []
    for seed in seeds:
        rounds = noisy(seed, drawn(seed, 6, 30, 200), 30, correlation, dimension=dimension)
        *_, state = follow(Adaptive(), rounds)
        found.append(astuple(Adaptive().estimate(state)))
    return np.array(found)


def check_spread(found):
    assert found.mean(0)[1:3] == pytest.approx([1.0, 0.5], rel=0.05)
    assert (found.std(0)[1:3] < [0.05, 0.05]).all()
    assert (abs(found[:, 1] - 1) < 0.2).all()


@pytest.mark.slow
def test_estimates_do_not_scatter():
    check_spread(spread(range(2), 0.5, dimension=100))


@pytest.mark.slow
def test_estimates_of_20_seeds_do_not_scatter():
    check_spread(spread(range(20), 0.5, dimension=20))
    assert (spread(range(20), 0.0, dimension=20)[:, 2] > 0).sum() <= 2


# --- what cannot be estimated


def alone(gradients, clients):
    return [(t, {i: report(g)}) for t, (g, i) in enumerate(zip(gradients, clients, strict=True))]


def random_gradients(n, square=3.0):
    return np.random.default_rng(0).normal(size=(n, 100)) * np.sqrt(square / 100)


def never_again():
    gradients = random_gradients(60)
    return [(t, {3 * t + i: report(gradients[3 * t + i]) for i in range(3)}) for t in range(20)]


HOSTILE = {
    "one client": alone(1 + random_gradients(20), [0] * 20),
    "one of two clients a round": alone(random_gradients(20), [0, 1] * 10),
    "no client comes back": never_again(),
    "constant gradients": [(t, {i: report([i, 1.0]) for i in range(4)}) for t in range(30)],
    "equal gradients": [(t, {i: report([1.0, 2.0]) for i in range(4)}) for t in range(30)],
    "no gradients": [(t, {i: report([0.0]) for i in range(2)}) for t in range(9)],
    "a cohort after single clients": [
        *alone(random_gradients(5), [0] * 5),
        (9, {i: report(g) for i, g in enumerate(random_gradients(4))}),
    ],
    "tiny": [
        (t, {i: report(1e-160 * g) for i, g in enumerate(random_gradients(3))}) for t in (0, 5)
    ],
    "a walk": [
        (t, {i: report(g) for i, g in enumerate(np.cumsum(random_gradients(3 * t + 3), 0)[-3:])})
        for t in range(30)
    ],
}


@pytest.mark.some(9)
@pytest.mark.parametrize("loss", [0.0, 0.5])
@pytest.mark.parametrize("rounds", HOSTILE.values(), ids=HOSTILE)
def test_weights_are_valid_after_every_round(rounds, loss):
    weights = Adaptive(warm_up=1)
    for round_, state in enumerate(follow(weights, rounds)):
        found = weights.estimate({**state, "information_loss_sq": torch.tensor([loss, 1.0])})
        assert np.isfinite(astuple(found)).all()
        assert min(astuple(found)) >= 0
        assert found.correlation < 1
        timeline = Timeline(tuple(range(round_)), (9,) * round_, round_, 30)
        p = weights.resolve(state)(timeline)
        assert p.sum() == pytest.approx(1.0)
        assert (p >= 0).all()


def last_estimate(rounds, **settings):
    weights = Adaptive(**settings)
    *_, state = follow(weights, rounds)
    return weights.estimate(state)


def test_clients_that_never_come_back_have_one_drift():
    found = last_estimate(HOSTILE["no client comes back"])
    assert (found.client_drift_sq, found.correlation) == (0.0, 0.0)
    assert found.time_drift_sq == pytest.approx(3.0, rel=0.1)


def test_constant_gradients_have_no_time_drift():
    found = last_estimate(HOSTILE["constant gradients"])
    assert (found.time_drift_sq, found.correlation) == (0.0, 0.0)
    # Of 0, 1, 2, 3.
    assert found.client_drift_sq == pytest.approx(5 / 3)


def test_a_client_alone_is_compared_with_itself():
    assert last_estimate(HOSTILE["one client"]).time_drift_sq == pytest.approx(3.0, rel=0.1)


def test_clients_that_take_turns_alone_are_compared_with_each_other():
    """Twice in a row: the time drift. After another client: both drifts."""
    own, drift = np.eye(102)[:2] * 2, random_gradients(40, 1.0)
    clients = [0, 0, 1, 1] * 10
    gradients = [np.concatenate([own[i][:2], d]) for i, d in zip(clients, drift, strict=True)]
    found = last_estimate(alone(gradients, clients), discount=1.0)
    assert found.time_drift_sq == pytest.approx(1.0, rel=0.1)
    assert found.client_drift_sq == pytest.approx(4.0, rel=0.1)
    turns = last_estimate(alone(gradients[::2], clients[::2]), discount=1.0)
    assert (turns.client_drift_sq, turns.time_drift_sq) == (0.0, pytest.approx(5.0, rel=0.1))


def test_time_drift_is_never_more_than_all_drifts():
    """Gradients that walk away have no finite drift; what was seen bounds the estimate."""
    found = last_estimate(HOSTILE["a walk"], discount=1.0)
    seen = [
        torch.stack([r["gradient"] for r in reports.values()]) for _, reports in HOSTILE["a walk"]
    ]
    most = np.mean([float((g - g.mean(0)).square().sum() / 2) for g in seen])
    assert found.time_drift_sq + found.client_drift_sq == pytest.approx(most)
    assert found.time_drift_sq <= most


def test_clients_that_come_back_after_many_rounds_count_as_independent():
    """Every client comes every fourth round: no pair is near enough to tell the correlation."""
    cohorts = {t: [t % 4, 4 + t % 4, 8 + t % 4] for t in range(40)}
    found = last_estimate(noisy(0, cohorts, 12, 0.5))
    assert found.correlation == 0.0
    # A sixteenth of the drift is common to two visits in a row.
    assert found.time_drift_sq == pytest.approx(1.0, rel=0.1)


def test_a_few_rounds_do_not_tell_a_correlation():
    rounds = list(noisy(0, drawn(0, 20, 20, 12), 20, 0.5))
    found = [Adaptive().estimate(s).correlation for s in follow(Adaptive(), rounds)]
    assert found[:8] == [0.0] * 8
    assert found[-1] == pytest.approx(0.5, rel=0.2)


def test_reports_that_are_not_finite_are_left_out():
    weights = Adaptive()
    rounds = [(0, {0: report([1.0]), 1: report([3.0]), 2: report([np.nan])})]
    (state,) = follow(weights, [*rounds])
    assert state["visits"].tolist() == [[0, 0], [0, 1]]
    assert weights.estimate(state).time_drift_sq == 2.0
    assert weights.update(state, {3: report([1.0], np.inf)}, 1) is state


def test_rounds_without_reports_count():
    """Every other round is missing: neighbours are two rounds apart."""
    for gap, correlation in ((1, 0.25), (2, 0.5)):
        found = last_estimate(noiseless(drawn(0, 5, 5, 15, gap), 4.0, 1.0, 0.25 ** (1 / gap)))
        assert found.correlation == pytest.approx(correlation, abs=1e-3)


def test_the_last_cohort_and_the_correlation_are_used():
    weights = Adaptive(discount=1.0, cohort_aware=True)
    states = list(follow(weights, noiseless(COHORTS["half"], 4.0, 1.0, 0.5)))
    chosen = weights.resolve(states[-1])
    assert isinstance(chosen, Correlated)
    assert chosen.cohort == 4
    assert chosen.correlation == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("warm_up", [1, 4])
def test_the_warm_up_ends_after_its_last_round(warm_up):
    weights = Adaptive(warm_up=warm_up)
    states = [weights.init(), *follow(weights, noiseless(COHORTS["half"], 4.0, 1.0))]
    used = [isinstance(weights.resolve(s), Optimal | Correlated) for s in states]
    assert used == [n >= warm_up for n in range(len(states))]


def test_estimates_go_on_after_a_checkpoint():
    weights, rounds = Adaptive(), list(noiseless(COHORTS["uneven"], 4.0, 1.0, 0.5))
    *_, straight = follow(weights, rounds)
    for stop in (1, 5, 14):
        *_, state = follow(weights, itertools.islice(rounds, stop))
        server = {"params": torch.zeros(2)}
        kept = decode(encode(Snapshot(stop, server, torch.zeros(0), weighting_state=state)))
        *_, resumed = follow(weights, rounds[stop:], kept.weighting_state)
        assert resumed.keys() == straight.keys()
        assert all(torch.equal(resumed[name], straight[name]) for name in straight)

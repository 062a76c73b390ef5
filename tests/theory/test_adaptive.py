"""Estimated drifts against those that the synthetic gradients were made with: within 20 % after 50 rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chronofed import (
    Adaptive,
    Classification,
    CoreSet,
    FedAvg,
    Fisher,
    Linear,
    Method,
    Mlp,
    Subsets,
    Taylor,
    Train,
    run,
)
from chronofed.core.flat import take
from chronofed.core.types import Batch
from chronofed.methods.memories import MemoryItem
from chronofed.methods.probe import probe, sketch
from chronofed.methods.weighting import Correlated, Merged, Optimal, Timeline
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator

ROUNDS = 50


def world(seed, clients, client_drift, time_drift, correlation=0.0, dimension=100):
    """Gradients with known drifts: ``gradient(t, i)`` for rounds in order."""
    rng = np.random.default_rng(seed)

    def noise(square, *shape):
        return rng.normal(size=(*shape, dimension)) * np.sqrt(square / dimension)

    fixed = noise(client_drift, clients)
    xi = noise(time_drift, clients)
    for _ in range(ROUNDS):
        common = 10 * rng.normal(
            size=dimension
        )  # the global gradient: large, and different every round
        yield common + fixed + xi
        xi = correlation * xi + np.sqrt(1 - correlation**2) * noise(time_drift, clients)


def learn(rounds, loss=0.0, weights=None, name=lambda t, i: i):
    weights = weights or Adaptive(discount=1.0)
    state = weights.init()
    for t, gradients in enumerate(rounds):
        reports = {
            name(t, i): {
                "gradient": sketch(torch.from_numpy(gradients[i])),
                "information_loss_sq": torch.tensor(loss, dtype=torch.float64),
            }
            for i in range(len(gradients))
        }
        state = weights.update(state, reports, t)
    return weights, state


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("client", "time"), [(4.0, 1.0), (1.0, 4.0), (1.0, 1.0), (0.5, 5.0)])
def test_independent_drifts(seed, client, time):
    weights, state = learn(world(seed, 10, client, time), loss=0.3)
    found = weights.estimate(state)
    assert found.client_drift_sq == pytest.approx(client, rel=0.2)
    assert found.time_drift_sq == pytest.approx(time, rel=0.2)
    assert found.correlation < 0.1
    assert found.information_loss_sq == pytest.approx(0.3)


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.8])
def test_correlated_drifts(seed, correlation):
    weights, state = learn(world(seed, 20, 2.0, 4.0, correlation))
    found = weights.estimate(state)
    assert found.correlation == pytest.approx(correlation, rel=0.2)
    assert found.time_drift_sq == pytest.approx(4.0, rel=0.2)
    assert found.client_drift_sq == pytest.approx(2.0, rel=0.2)


def test_stateless_clients_count_both_drifts_as_one():
    """Every client is new: its own drift is drawn anew each round too (ERRATA: G2 + D2)."""
    rounds = (next(iter(world(1000 + t, 10, 2.0, 3.0))) for t in range(ROUNDS))
    weights, state = learn(rounds, name=lambda t, i: 10 * t + i)
    found = weights.estimate(state)
    assert found.client_drift_sq == 0.0
    assert found.time_drift_sq == pytest.approx(5.0, rel=0.2)


def test_long_gradients_are_sketched():
    weights, state = learn(world(2, 10, 2.0, 3.0, dimension=20_000))
    assert state["total"].shape == (10, 2048)
    found = weights.estimate(state)
    assert found.client_drift_sq == pytest.approx(2.0, rel=0.2)
    assert found.time_drift_sq == pytest.approx(3.0, rel=0.2)


@pytest.mark.slow
def test_estimates_follow_a_change():
    """With a discount, drifts that fade out are forgotten; without, they linger."""
    change = [*world(0, 10, 1.0, 100.0), *world(0, 10, 1.0, 1.0), *world(1, 10, 1.0, 1.0)]
    follows, state = learn(change, weights=Adaptive(discount=0.9))
    assert follows.estimate(state).time_drift_sq == pytest.approx(1.0, rel=0.3)
    lingers, state = learn(change, weights=Adaptive(discount=1.0))
    assert lingers.estimate(state).time_drift_sq > 10


def test_constants_are_used_once_they_are_known():
    weights = Adaptive(discount=1.0, warm_up=5)
    assert weights.resolve(weights.init()) == Merged()
    _, state = learn(list(world(0, 10, 1.0, 4.0))[:4], loss=2.0, weights=weights)
    assert weights.resolve(state) == Merged()
    _, state = learn(world(0, 10, 1.0, 4.0), loss=2.0, weights=weights)
    chosen = weights.resolve(state)
    assert isinstance(chosen, Optimal | Correlated)
    assert chosen.information_loss_sq == pytest.approx(2.0)
    assert chosen.time_drift_sq == pytest.approx(4.0, rel=0.2)
    _, state = learn(world(0, 20, 1.0, 4.0, 0.6), weights=Adaptive(cohort_aware=True, discount=1.0))
    aware = Adaptive(cohort_aware=True, discount=1.0).resolve(state)
    assert isinstance(aware, Correlated)
    assert aware.cohort == 20


def test_nothing_reported_nothing_learned():
    weights = Adaptive()
    state = weights.init()
    assert weights.update(state, {}, 3) is state
    timeline = Timeline((0,), (10,), 1, 30)
    assert weights(timeline).tolist() == Merged()(timeline).tolist()


def test_sketches_keep_inner_products():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 50_000, generator=generator, dtype=torch.float64)
    y = 0.5 * x + y
    assert float(sketch(x) @ sketch(y)) == pytest.approx(float(x @ y), rel=0.1)
    short = torch.ones(7)
    assert sketch(short).tolist() == [1.0] * 7


def test_estimates_are_measures_of_the_run():
    weights, state = learn(world(0, 10, 1.0, 4.0), loss=0.25)
    report = weights.report(state)
    assert report["estimated_time_drift_sq"] == weights.estimate(state).time_drift_sq
    assert report["estimated_information_loss"] == 0.5
    assert weights.report(weights.init()) == {}


LAYERS = {"fc.*": 1.0, "features.fc2.*": 0.5, "features.fc1.*": 0.0}


def test_drifts_and_information_loss_are_of_the_same_parameters(data):
    """A Taylor memory of the top layers: what the layers below do has no past to be weighed."""
    task = Classification(data, Mlp((6, 4)))
    objective, params, samples = task.objective(), task.initial(0)[0], data.train[torch.arange(40)]
    memory, generator = Taylor(Fisher(), layers=LAYERS), torch.Generator().manual_seed(0)
    record = memory.observe(objective, params + 0.1, samples, generator)
    item = MemoryItem(0, 0, 0, 40, record)
    report = probe(memory, objective, params, samples, item)
    whole = objective.loss_gradient(params, Batch.mean(samples), (slice(0, len(params)),))
    spans, approximation = memory.approximate(objective, params, item)
    there = take(whole, spans)
    assert 0 < len(there) < len(whole)
    torch.testing.assert_close(report["gradient"], there.double())
    lost = float((there - approximation).double().square().sum())
    assert float(report["information_loss_sq"]) == pytest.approx(lost)
    nothing = probe(Taylor(layers={"*": 0.0}), objective, params, samples, replace(item, record={}))
    torch.testing.assert_close(nothing["gradient"], whole.double())
    assert nothing["information_loss_sq"] == 0


def test_clients_report_the_parameters_that_the_memory_covers(data):
    task = Classification(data, Mlp((6, 4)))
    scenario = Subsets(clients=3, subsets=4, client_alpha=1.0).on(data, seed=0)
    for memory, numbers in ((Taylor(layers=LAYERS), 28 + 15), (CoreSet(5), 36 + 28 + 15)):
        state = next(run(Method(FedAvg(), memory, Adaptive()), scenario, task)).weighting_state
        assert state["centred"].shape == (3, numbers)


@pytest.mark.slow
def test_estimates_agree_with_measurements_in_a_real_run(data):
    """What is estimated online, beside what a simulation can measure; the model stands almost still."""
    method = Method(FedAvg(), CoreSet(20), Adaptive())
    scenario = Subsets(clients=8, subsets=10, client_alpha=1.0).on(data, seed=0)
    task = Classification(data, Linear())
    train = Train(lr=1e-4, steps=1)
    *_, last = run(method, scenario, task, rounds=50, train=train)
    measures = Evaluator(task, scenario, method, Evaluate(past=10), seed=0)(last).measures
    for name in ("client_drift_sq", "time_drift_sq", "information_loss"):
        assert measures[f"estimated_{name}"] == pytest.approx(measures[name], rel=0.2)
    assert isinstance(method.weights.resolve(last.weighting_state), Optimal | Correlated)

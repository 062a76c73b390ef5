"""The noisy quadratic model: literal run, exact reduction and exact moments say the same."""

from fractions import Fraction as F

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec.structs import replace

from chronofed import Correlated, Exact, FedAvg, FedProx, Method, Optimal, Taylor, Uniform
from chronofed.core.types import Batch, Objective, Samples, Task
from chronofed.theory import nqm
from chronofed.theory.nqm.literal import Lossy, World, snapshots
from chronofed.theory.nqm.parabola import Parabola
from chronofed.theory.nqm.reduction import coefficients, descend, draw, seen_drift

FEDAVG, FEDPROX, CFL, CFL_SMALL, CFL_LARGE = nqm.ALGORITHMS
SMALL = nqm.Model(dimension=6, clients=3, steps=2, rounds=8)


def algorithm_id(algorithm):
    return algorithm.name


def relative(a, b):
    return float(np.max(np.abs(a / b - 1)))


# --- the literal run and the reduction agree pathwise


@pytest.mark.some(31)
@pytest.mark.parametrize("algorithm", nqm.ALGORITHMS, ids=algorithm_id)
@pytest.mark.parametrize("setting", list(nqm.settings(SMALL)))
@pytest.mark.parametrize("preset", nqm.PRESETS)
def test_literal_run_equals_reduction(preset, setting, algorithm):
    model = nqm.settings(nqm.PRESETS[preset])[setting]
    model = replace(model, rounds=6, clients=3)
    literal = nqm.literal(model, algorithm, lr=0.07, seed=5)
    (reduced,) = descend(model, algorithm, [0.07], World(model, 5).path())[0]
    assert literal.shape == (7,)
    assert relative(literal, reduced) < 1e-12


@pytest.mark.parametrize("algorithm", [FEDAVG, CFL_LARGE], ids=algorithm_id)
def test_literal_run_equals_reduction_over_a_hundred_rounds(algorithm):
    model = replace(nqm.PRESETS["p1"], clients=2, time_drift_sq=100.0)
    literal = nqm.literal(model, algorithm, lr=0.3, seed=1)
    assert relative(literal, descend(model, algorithm, [0.3], World(model, 1).path())[0, 0]) < 1e-12


@examples(max_examples=25)
@given(
    n=st.integers(1, 5),
    clients=st.integers(1, 4),
    steps=st.integers(1, 4),
    lr=st.floats(0.01, 0.5),
    mu=st.floats(0, 2),
    level=st.none() | st.floats(0, 1),
    correlation=st.floats(0, 0.95),
    spectrum=st.sampled_from(["linear", "log"]),
    start=st.sampled_from(["origin", "near"]),
    rotated=st.booleans(),
)
def test_they_agree_for_any_model(
    n, clients, steps, lr, mu, level, correlation, spectrum, start, rotated
):
    model = nqm.Model(
        dimension=n,
        clients=clients,
        steps=steps,
        rounds=5,
        time_drift_sq=1.0,
        client_drift_sq=0.5,
        noise_sq=0.1,
        correlation=correlation,
        spectrum=spectrum,
        start=start,
        rotated=rotated,
    )
    algorithm = nqm.Algorithm(name="any", mu=mu, information_loss_level=level)
    literal = nqm.literal(model, algorithm, lr)
    reduced = descend(model, algorithm, [lr], World(model, 0).path())[0, 0]
    np.testing.assert_allclose(literal, reduced, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backbone", [FedAvg(), FedProx(mu=0.5)], ids=["fedavg", "fedprox"])
@pytest.mark.parametrize("stateless", [False, True], ids=["returning", "stateless"])
def test_taylor_memory_is_perfect_where_curvature_is_diagonal(backbone, stateless):
    """The expansion on the server equals the objective, so it is CFL without information loss.

    Only gradient noise differs: an expansion has none, so that it counts with the weight of the present.
    """
    model = replace(SMALL, rotated=False, stateless=stateless, client_drift_sq=2.0, noise_sq=0.0)
    mu = getattr(backbone, "mu", 0.0)
    algorithm = nqm.Algorithm(name="CFL", mu=mu, information_loss_level=0.0)
    memory = Taylor(curvature=Exact(), layers={"*": 1.0}, unit="rounds")
    method = Method(backbone, memory, algorithm.round_weights(model), average="clients")
    literal = nqm.literal(model, method, lr=0.05)
    reduced = descend(model, algorithm, [0.05], World(model, 0).path())[0, 0]
    assert relative(literal, reduced) < 1e-12


def test_taylor_memory_is_not_perfect_where_it_is_not():
    algorithm = nqm.Algorithm(name="CFL", information_loss_level=0.0)
    memory = Taylor(curvature=Exact(), layers={"*": 1.0}, unit="rounds")
    method = Method(FedAvg(), memory, algorithm.round_weights(SMALL), average="clients")
    reduced = descend(SMALL, algorithm, [0.05], World(SMALL, 0).path())[0, 0]
    assert relative(nqm.literal(SMALL, method, lr=0.05), reduced) > 1e-3


def test_other_weights():
    weights = Correlated(
        time_drift_sq=1.0, information_loss_sq=1.0, correlation=0.5, nonnegative=False
    )
    algorithm = nqm.Algorithm(name="signed", information_loss_level=0.02, weights=weights)
    model = replace(SMALL, correlation=0.5)
    reduced = descend(model, algorithm, [0.1], World(model, 0).path())[0, 0]
    assert algorithm.schedule(model).min() < 0
    assert relative(nqm.literal(model, algorithm, lr=0.1), reduced) < 1e-12


# --- by hand


def test_two_rounds_by_hand():
    """One parameter, one client, known drifts, in exact fractions."""
    model = nqm.Model(
        smoothness=2.0, convexity=2.0, dimension=1, clients=1, steps=2, rounds=2, rotated=False
    )
    algorithm = nqm.Algorithm(name="CFL", mu=1.0, information_loss_level=0.0, weights=Uniform())
    path = World(model, 0).path()
    for name, values in {
        "start": [[3.0]],
        "client": [[[0.5]], [[0.5]]],
        "time": [[[1.0]], [[-2.0]]],
        "noise": [[[[0.25]], [[-0.5]]], [[[1.0]], [[0.0]]]],
    }.items():
        getattr(path, name)[...] = values if name != "client" else 0.5
    lr, curvature, mu = F(1, 8), F(2), F(1)
    w, losses = F(0), [F(3)]
    noises = [[F(1, 4), F(-1, 2)], [F(1), F(0)]]
    for drift, noise in zip([F(3, 2), F(1, 2) + F(1 - 2, 2)], noises, strict=True):
        server = w
        for nu in noise:
            w -= lr * (curvature * w + 3 + drift + nu + mu * (w - server))
        losses.append(abs(curvature * w + 3))
    np.testing.assert_allclose(
        descend(model, algorithm, [0.125], path)[0, 0], [float(x) for x in losses], rtol=1e-15
    )


def test_steps_by_hand():
    model = replace(SMALL, smoothness=4.0, convexity=4.0, dimension=1, steps=3)
    kept = 1 - 0.1 * (4 + 1)
    steps = coefficients(model, replace(FEDPROX, mu=1.0), np.array([0.1]))
    assert steps.shape == (3, 1, 1)
    assert steps.ravel().tolist() == pytest.approx([0.4 * kept**2, 0.4 * kept, 0.4], rel=1e-14)


def test_one_local_step_makes_fedprox_the_same_as_fedavg():
    model = replace(SMALL, steps=1)
    assert (nqm.simulate(model, FEDAVG, [0.1]) == nqm.simulate(model, FEDPROX, [0.1])).all()
    assert (nqm.simulate(SMALL, FEDAVG, [0.1]) != nqm.simulate(SMALL, FEDPROX, [0.1])).any()


# --- exact moments


@pytest.mark.slow
def test_monte_carlo_meets_the_exact_moments():
    models = nqm.settings(replace(nqm.PRESETS["p1"], rounds=15))
    compare(models, lrs=[0.02, 0.09], batches=2)


@pytest.mark.slow
@pytest.mark.parametrize("preset", nqm.PRESETS)
def test_monte_carlo_meets_the_exact_moments_in_every_round_of_the_presets(preset):
    compare(nqm.settings(nqm.PRESETS[preset]), lrs=[0.02, 0.09], batches=30)


def compare(models, lrs, batches, seeds=500):
    """Late rounds are ruled by the few flattest coordinates, so that many runs are needed."""
    pairs = [(model, algorithm) for model in models.values() for algorithm in nqm.ALGORITHMS]
    total = [0.0] * len(pairs)
    for batch in range(batches):
        some = range(batch * seeds, (batch + 1) * seeds)
        for k, (model, algorithm) in enumerate(pairs):
            total[k] += (nqm.simulate(model, algorithm, lrs, some) ** 2).mean(axis=1) / batches
    for (model, algorithm), sampled in zip(pairs, total, strict=True):
        assert relative(sampled, nqm.expected(model, algorithm, lrs)) < 0.05


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "change",
    [
        {"stateless": True, "client_drift_sq": 4.0},
        {"correlation": 0.8, "time_drift_sq": 4.0},
        {"start": "near", "spectrum": "log"},
        {"noise_sq": 10.0, "steps": 3},
        {"client_drift_sq": 10.0, "clients": 2},
        {"rotated": False, "time_drift_sq": 0.1},
    ],
    ids=lambda change: "-".join(change),
)
@pytest.mark.parametrize("algorithm", [FEDPROX, CFL_LARGE], ids=algorithm_id)
def test_moments_of_other_models(change, algorithm):
    model = replace(nqm.Model(dimension=20, rounds=25), **change)
    algorithm = replace(algorithm, information_loss_level=algorithm.information_loss_level and 0.3)
    sampled = (nqm.simulate(model, algorithm, [0.1], seeds=4000) ** 2).mean(axis=1)
    assert relative(sampled, nqm.expected(model, algorithm, [0.1])) < 0.05


def test_moments_by_hand():
    """One parameter and FedAvg: v' = rho^2 v + kappa^2 D2/N, and the client's drift adds up."""
    model = nqm.Model(
        smoothness=2.0,
        convexity=2.0,
        dimension=1,
        clients=4,
        rounds=2,
        time_drift_sq=8.0,
        client_drift_sq=4.0,
    )
    model = replace(model, noise_sq=0.0)
    rho, kappa = F(1, 2), F(1, 2)
    first = rho**2 + kappa**2 * (2 + 1)
    second = rho**4 + kappa**2 * (1 + rho**2) * 2 + (kappa * (1 + rho)) ** 2 * 1
    (found,) = nqm.expected(model, FEDAVG, [0.25])
    assert found.tolist() == pytest.approx([1.0, float(first), float(second)], rel=1e-15)


def test_moments_of_a_literal_run():
    """Not only the reduction: 60 literal runs are as the moments say."""
    model = replace(SMALL, dimension=40, clients=2, steps=1, rounds=6, time_drift_sq=10.0)
    runs = np.array([nqm.literal(model, CFL_LARGE, 0.2, seed) for seed in range(60)])
    assert relative((runs**2).mean(0), nqm.expected(model, CFL_LARGE, [0.2])[0]) < 0.12


# --- randomness


def test_seeds_are_runs_of_their_own():
    model = replace(SMALL, rounds=3)
    together = nqm.simulate(model, CFL, [0.1, 0.2], seeds=4)
    alone = nqm.simulate(model, CFL, [0.2], seeds=[2])
    assert (together[1, 2] == alone[0, 0]).all()
    assert len(set(together[0, :, -1])) == 4
    assert (nqm.literal(model, CFL, 0.1, seed=1) != nqm.literal(model, CFL, 0.1, seed=2)).any()


def test_blocks_of_learning_rates_do_not_matter(monkeypatch):
    lrs = np.linspace(0.01, 0.2, 7)
    whole = nqm.simulate(SMALL, CFL_SMALL, lrs, seeds=2)
    monkeypatch.setattr("chronofed.theory.nqm.reduction.CACHED", 1)
    assert (nqm.simulate(SMALL, CFL_SMALL, lrs, seeds=2) == whole).all()


def test_drifts_have_their_variance():
    model = replace(
        SMALL, dimension=50, rounds=40, time_drift_sq=3.0, client_drift_sq=2.0, correlation=0.6
    )
    world = World(model, 0)
    assert (world.time_drifts**2).sum(-1).mean() == pytest.approx(3.0, rel=0.05)
    assert (world.client_drifts**2).sum(-1).mean() == pytest.approx(2.0, rel=0.2)
    neighbours = (world.time_drifts[1:] * world.time_drifts[:-1]).sum(-1).mean()
    assert neighbours == pytest.approx(0.6 * 3.0, rel=0.1)
    path = draw(model, range(200))
    assert (path.time**2).sum(-1).mean() == pytest.approx(3.0 / 3, rel=0.03)
    assert (path.tilt**2).sum(-1).tolist() == pytest.approx([50.0] * 200)


def test_divergence_is_infinite_and_silent():
    model = replace(SMALL, smoothness=20.0, steps=5, rounds=400)
    losses = nqm.simulate(model, CFL, [1.0, 0.01])
    assert np.isinf(losses[0, 0, -1])
    assert np.isfinite(losses[1]).all()
    assert np.isinf(nqm.expected(model, CFL, [1.0])[0, -1])


# --- the parts of the literal run


def test_world_is_a_task_and_its_objective_an_objective():
    task: Task = World(SMALL, 0)
    objective: Objective = task.objective()
    params = torch.linspace(-1, 1, 6, dtype=torch.float64)
    samples = task.samples(np.array([0, 4]))
    batch = Batch(samples.x, samples.y, torch.tensor([0.25, 0.5], dtype=torch.float64))
    whole = (slice(0, 6),)

    def loss(w):
        single = w @ objective.matrix @ w / 2 + (objective.slope + batch.x) @ w
        return batch.weight @ single

    gradient = torch.func.grad(loss)(params)
    torch.testing.assert_close(objective.gradient(params, batch), gradient)
    parts = (slice(0, 2), slice(3, 5))
    torch.testing.assert_close(
        objective.loss_gradient(params, batch, parts), gradient[[0, 1, 3, 4]]
    )
    hessian = torch.autograd.functional.hessian(loss, params)[[0, 1, 3, 4]][:, [0, 1, 3, 4]]
    v = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(objective.hessian_product(params, batch, parts, v), hessian @ v)
    single = [
        objective.gradient(params, Batch(batch.x[k : k + 1], batch.y[:1], torch.ones(1).double()))
        for k in range(2)
    ]
    squares = 0.25 * single[0] ** 2 + 0.5 * single[1] ** 2
    torch.testing.assert_close(objective.squared_gradients(params, batch, whole), squares)
    assert (objective.input_gradient(params, batch.x, batch.y) == params).all()
    assert objective.features(params, batch.x) is batch.x
    assert objective.decode(objective.encode(batch.x), batch.x) is batch.x
    assert objective.refresh(params, samples) is None


def test_curvature_is_what_was_asked_for():
    for spectrum, convexity in [("linear", 0.0), ("log", 0.0), ("log", 1.0)]:
        model = replace(SMALL, spectrum=spectrum, convexity=convexity)
        found = np.linalg.eigvalsh(World(model, 3).matrix)
        np.testing.assert_allclose(found, model.curvatures, atol=1e-12)
        assert (found.min().round(9), found.max().round(9)) == (convexity, 5.0)
    with pytest.raises(ValueError, match=r"Model.convexity: 9.0 is larger than the smoothness 5.0"):
        nqm.Model(convexity=9.0)


def test_minimum_is_reachable_without_noise():
    for start in ("origin", "near"):
        model = nqm.Model(
            time_drift_sq=0.0,
            client_drift_sq=0.0,
            noise_sq=0.0,
            convexity=0.0,
            dimension=4,
            rounds=60,
        )
        model = replace(model, start=start, clients=2)
        assert nqm.literal(model, CFL, 0.3)[-1] < 1e-12
        assert World(model, 0).loss(World(model, 0).initial(0)[0]) > 0.1


def test_information_loss_is_what_was_asked_for():
    samples = Samples(torch.zeros(1, 20_000).double(), torch.zeros(1).long())
    objective = Parabola(torch.zeros(1, 1), torch.zeros(1), 0.0)
    kept = Lossy(size=1, level=0.5).observe(
        objective, torch.zeros(1), samples, torch.Generator().manual_seed(0)
    )["x"]
    assert float(kept.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(kept.var()) == pytest.approx(0.5 / 1000, rel=0.05)
    assert float((kept**2).sum()) == pytest.approx(
        nqm.Model(dimension=20_000).information_loss_sq(0.5), rel=2e-3
    )


def test_stateless_clients_are_new_in_every_round():
    model = replace(SMALL, stateless=True, rounds=2)
    last = list(snapshots(World(model, 0), FEDAVG, 0.1))[-1]
    assert last.client_states == {}
    world = World(model, 0)
    assert (world.client_drifts[0] != world.client_drifts[1]).all()


def test_weights_of_a_schedule():
    model = nqm.Model(rounds=4, time_drift_sq=2.0, dimension=4)
    level = nqm.Algorithm(name="CFL", information_loss_level=0.5)
    last = level.schedule(model)[-1]
    loss = 4 * (0.25 + 0.0005)
    total = 4 * 2 + 3 * loss
    assert last.tolist() == pytest.approx([2 / total] * 3 + [(3 * loss + 2) / total])
    assert (FEDAVG.schedule(model) == np.eye(4)).all()
    assert level.round_weights(replace(model, stateless=True)) == Optimal(
        time_drift_sq=2.0, information_loss_sq=loss, client_drift_sq=0.01
    )


def test_seen_drift_by_hand():
    model = replace(SMALL, rounds=2)
    path = draw(model, [0])
    algorithm = nqm.Algorithm(name="CFL", information_loss_level=0.04, weights=Uniform())
    off = 0.04 * path.tilt + 0.04**0.5 * 1000**-0.5 * path.blur[0]
    expected = path.client[1] + (path.time[0] + path.time[1]) / 2 + off / 2
    np.testing.assert_allclose(seen_drift(model, algorithm, path)[1], expected, rtol=1e-13)
    np.testing.assert_allclose(
        seen_drift(model, algorithm, path)[0], path.client[0] + path.time[0], rtol=1e-13
    )

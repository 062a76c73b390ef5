"""Made samples: Langevin dynamics against its exact stationary law, and what is made of data."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    Fixed,
    Generative,
    Method,
    Mlp,
    Samples,
    Subsets,
    Train,
    run,
)
from chronofed.methods.memories.generative import LEAST_DEVIATION, _statistics
from chronofed.methods.memories.langevin import langevin
from chronofed.models.objective import CHUNK_SAMPLES, TorchObjective
from chronofed.models.zoo import ResNet18


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- Langevin dynamics -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "lr", "noise"), [(1.0, 0.3, 1.0), (0.5, 0.2, 1.0), (2.0, 1.0, 0.5)]
)
def test_recovers_a_gaussian(sigma, lr, noise):
    """The discretised chain's own stationary law, to within Monte Carlo error."""
    n, mean = 40_000, torch.tensor([3.0, -1.0], dtype=torch.float64)
    start = torch.zeros(n, 2, dtype=torch.float64)
    rate = 1 - lr / sigma**2
    steps = math.ceil(math.log(1e-4) / math.log(abs(rate)))  # until the start is forgotten
    got = langevin(lambda x: (x - mean) / sigma**2, start, steps, lr, noise, generator())
    variance = noise**2 * sigma**2 / (1 - lr / (2 * sigma**2))
    assert (got.mean(0) - mean).abs().max() < 4 * math.sqrt(variance / n)
    assert (got.var(0) / variance - 1).abs().max() < 4 * math.sqrt(2 / n)
    assert abs(variance - noise**2 * sigma**2) > 8 * variance * math.sqrt(
        2 / n
    )  # they can be told apart


def test_without_noise_it_is_gradient_descent_and_the_start_is_left_alone():
    start = torch.tensor([[4.0], [-2.0]])
    got = langevin(lambda x: x, start, steps=3, lr=0.5, noise=0.0, generator=generator())
    assert got.tolist() == [[0.5], [-0.25]]
    assert start.tolist() == [[4.0], [-2.0]]


def test_bounds_hold_at_every_step():
    seen = []

    def gradient(x):
        seen.append(x)
        return torch.full_like(x, -100.0)

    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.5])
    got = langevin(gradient, torch.zeros(5, 2), 3, 0.1, 1.0, generator(), (low, high))
    assert (torch.stack([*seen[1:], got]) == high).all()


def test_the_generator_decides():
    walks = [
        langevin(lambda x: x, torch.zeros(4), 5, 0.1, 1.0, generator(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(walks[0], walks[1])
    assert not torch.equal(walks[0], walks[2])


# --- what is made of data ----------------------------------------------------------------------------


def blobs(counts: tuple[int, ...], seed: int = 0) -> Samples:
    """Classes with means far apart and different deviations; one feature is constant."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    x = torch.randn(len(y), 3, generator=generator(seed)) * (1.0 + y[:, None]) + 20.0 * y[:, None]
    x[:, 2] = 7.0
    return Samples(x, y)


@pytest.fixture(scope="module")
def flat() -> TorchObjective:
    """A model whose slopes are all zero, so that only the statistics count."""
    objective = TorchObjective(Mlp((4,)).build((3,), 3))
    objective.flat.bind(torch.zeros_like(objective.flat.read()))
    return objective


@given(st.lists(st.integers(0, 20), min_size=1, max_size=3).filter(any), st.integers(1, 60))
def test_classes_have_exact_quotas_in_proportion(counts, size):
    data = blobs(tuple(counts))
    objective = TorchObjective(nn.Linear(3, 3))
    record = Generative(size, steps=1).observe(objective, objective.flat.read(), data, generator())
    assert len(record["x"]) == len(record["y"]) == size
    made, real = record["y"].bincount(minlength=3), data.y.bincount(minlength=3)
    assert (made / size - real / real.sum()).abs().max() <= 1 / size + 1e-6
    assert (made[real == 0] == 0).all()


@pytest.mark.parametrize("noise", [1.0, 0.3])
def test_samples_have_the_statistics_of_their_class(flat, noise):
    """At the end of the walk a feature is normal, with the class's mean and a share of its deviation."""
    data = blobs((400, 200, 200))
    memory = Generative(2000, steps=30, lr=0.3, noise=noise, prior=1.0)
    record = memory.observe(flat, flat.flat.read(), data, generator())
    for label in range(3):
        real, made = data.x[data.y == label][:, :2], record["x"][record["y"] == label][:, :2]
        want = noise * real.std(0) / math.sqrt(1 - 0.3 / 2)
        torch.testing.assert_close(made.mean(0), real.mean(0), rtol=0, atol=0.15 * (label + 1))
        torch.testing.assert_close(made.std(0), want, rtol=0.1, atol=0)


def test_a_stronger_prior_narrows_and_none_leaves_the_uniform_start(flat):
    data = blobs((300,))
    spread = {}
    for prior in (4.0, 1.0, 0.0):
        memory = Generative(1000, steps=60, lr=0.1, noise=0.5, prior=prior)
        spread[prior] = memory.observe(flat, flat.flat.read(), data, generator())["x"][:, 0].std()
    assert spread[4.0] < 0.7 * spread[1.0]
    assert spread[0.0] > 2 * spread[1.0]
    low, high = data.x[:, 0].aminmax()
    start = Generative(1000, steps=1, lr=1e-9).observe(flat, flat.flat.read(), data, generator())
    counts = torch.histc(start["x"][:, 0], bins=10, min=float(low), max=float(high))
    assert (counts / 100 - 1).abs().max() < 0.4  # 100 in each tenth of the range


def test_samples_stay_in_the_range_of_the_data_and_constant_features_constant(flat):
    data = blobs((30, 20, 10))
    record = Generative(500, noise=5.0).observe(flat, flat.flat.read(), data, generator())
    assert (record["x"] >= data.x.amin(0)).all()
    assert (record["x"] <= data.x.amax(0)).all()
    assert (record["x"][:, 2] == 7.0).all()


def test_the_range_holds_where_numbers_are_rounded():
    x = 37.7 * torch.randn(40, 50, generator=generator()) + 1000 / 3
    data, objective = Samples(x, torch.arange(40) % 3), TorchObjective(nn.Linear(50, 3))
    memory = Generative(100, noise=5.0)  # so that many end at the edge
    made = memory.observe(objective, objective.flat.read(), data, generator())["x"]
    assert ((made == x.amin(0)) | (made == x.amax(0))).float().mean() > 0.3
    assert ((made >= x.amin(0)) & (made <= x.amax(0))).all()


def test_a_class_of_one_sample_is_that_sample_blurred(flat):
    data = blobs((40, 1, 40))
    (own,) = data.x[data.y == 1]
    record = Generative(810, noise=1.0).observe(flat, flat.flat.read(), data, generator())
    made = record["x"][record["y"] == 1]
    assert len(made) == 10
    away = (made - own).abs() / (data.x.amax(0) - data.x.amin(0)).clamp(min=1e-9)
    assert 0 < away[:, :2].mean() < 2 * LEAST_DEVIATION


def test_statistics_by_hand():
    data = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]], [[100.0, 0.0]]])
    mean, deviation = _statistics(data, torch.tensor([2, 2, 0]), data.amax(0) - data.amin(0))
    assert mean[0].tolist() == [[100.0, 0.0]]
    assert mean[2].tolist() == [[2.0, 0.0]]
    floor = LEAST_DEVIATION * 99
    assert deviation[2].tolist() == [[pytest.approx(max(1.0, floor)), 1.0]]
    assert deviation[0].tolist() == [[pytest.approx(floor), 1.0]]


def test_the_model_pulls_samples_towards_its_own_idea_of_the_class():
    """With cross-entropy in the energy, the model is surer of its samples than of real ones."""
    data = blobs((100, 100, 100))
    data = Samples(
        torch.randn(300, 3, generator=generator()), data.y
    )  # classes cannot be told apart
    objective = TorchObjective(nn.Linear(3, 3))
    params = 3 * objective.flat.read()
    record = Generative(300, noise=0.3).observe(objective, params, data, generator())

    def loss(x, y):
        return float(functional.cross_entropy(objective.logits(params, x), y))

    assert loss(record["x"], record["y"]) < loss(data.x, data.y) - 0.2


def test_the_walk_descends_the_energy_in_the_docstring():
    """One step without noise, from where the walk begins, against autograd on the formula."""
    data = blobs((9, 8, 7))
    objective = TorchObjective(Mlp((6,)).build((3,), 3))
    params = objective.flat.read()
    settings = {"size": 12, "steps": 1, "noise": 0.0, "prior": 0.7}
    before = Generative(**settings, lr=1e-30).observe(objective, params, data, generator())
    after = Generative(**settings, lr=0.01).observe(objective, params, data, generator())
    mean, deviation = (
        t[before["y"]] for t in _statistics(data.x, data.y, data.x.amax(0) - data.x.amin(0))
    )
    x = before["x"].clone().requires_grad_()
    u = (x - mean) / deviation
    cross_entropy = functional.cross_entropy(objective.flat.module(x), before["y"], reduction="sum")
    (gradient,) = torch.autograd.grad(cross_entropy + 0.7 / 2 * u.square().sum(), x)
    # a step in u is one in x with the deviation squared
    want = (x.detach() - 0.01 * deviation**2 * gradient).clamp(data.x.amin(0), data.x.amax(0))
    torch.testing.assert_close(after["x"], want, rtol=1e-5, atol=1e-4)
    assert (after["x"] - before["x"]).abs().max() > 0.01


def test_pictures_are_made_in_the_dtype_of_the_data():
    x = torch.randint(100, 140, (30, 1, 6, 6), dtype=torch.uint8, generator=generator())
    data = Samples(x, torch.arange(30) % 3)
    objective = TorchObjective(Mlp((4,)).build((1, 6, 6), 3))
    record = Generative(10).observe(objective, objective.flat.read(), data, generator())
    assert record["x"].dtype == torch.uint8
    assert record["x"].shape == (10, 1, 6, 6)
    assert (record["x"] >= 100).all()
    assert (record["x"] < 140).all()
    assert len(record["x"].unique()) > 10


def test_double_precision_is_kept():
    objective = TorchObjective(nn.Linear(3, 3).double())
    data = blobs((5, 5, 5))
    data = Samples(data.x.double(), data.y)
    record = Generative(4).observe(objective, objective.flat.read(), data, generator())
    assert record["x"].dtype == torch.float64


def test_a_step_size_that_must_explode_is_refused():
    with pytest.raises(ValueError, match=r"Generative.lr: lr \* prior = 2.4, but steps diverge"):
        Generative(lr=0.6, prior=4.0)


def test_what_is_made_is_not_what_was_there(train_for, data):
    last = train_for(Method(memory=Generative(6), weights=Fixed()), 4)
    real = {tuple(x.tolist()) for x in data.train.x}
    records = [k.record for client_state in last.client_states.values() for k in client_state.items]
    assert all(len(record["y"]) == 6 for record in records)
    assert not any(tuple(x.tolist()) in real for record in records for x in record["x"])


# --- BatchNorm ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> Classification:
    y = torch.arange(120) % 3
    noise = torch.randint(100, (120, 1, 16, 16), generator=generator())
    x = (noise + 50 * y[:, None, None, None]).to(torch.uint8)
    data = Dataset("pictures", Samples(x, y), Samples(x[:9], y[:9]), ("a", "b", "c"))
    return Classification(data, ResNet18(width=4))


@pytest.fixture
def trained(pictures, monkeypatch):
    """Two data sets, one after the other: the model when the second is observed, and the end of the run."""
    scenario = Subsets(clients=1, subsets=2, client_alpha=10.0).on(pictures.data, seed=0)
    first = scenario.at(0).visits[0].key
    second = next(t for t in range(20) if scenario.at(t).visits[0].key != first)

    def trained(memory):
        seen, observe = [], type(memory).observe

        def watched(self, objective, params, samples, generator):
            seen.append((params.clone(), objective.buffers, samples))
            return observe(self, objective, params, samples, generator)

        monkeypatch.setattr(type(memory), "observe", watched)
        method, train = (
            Method(memory=memory, weights=Fixed()),
            Train(lr=0.05, batch_size=16, steps=4),
        )
        *_, last = run(method, scenario, pictures, rounds=second + 1, train=train)
        return *seen[-1], last

    return trained


def fresh_statistics(task, params, samples) -> torch.Tensor:
    """Buffers after one pass over the data from scratch, written with torch alone."""
    objective = task.objective()
    objective.flat.bind(params)
    for module in objective.flat.module.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = 1.0  # the batch's own statistics, whatever came before
    objective.flat.module.train()
    with torch.no_grad():
        objective.flat.module(samples.x)
    return objective.buffers


def test_batch_norm_is_refreshed_with_real_data(trained, pictures):
    params, buffers, samples, last = trained(Generative(30, steps=3))
    assert (
        len(last.client_states[0].items) == 2
    )  # so the second visit replayed what the first had made
    want = fresh_statistics(pictures, params, samples)
    torch.testing.assert_close(buffers, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last.buffers, want, rtol=1e-4, atol=1e-4)


def test_replaying_real_samples_needs_no_refresh(trained, pictures):
    """Statistics of training itself are another thing than a fresh pass: the test above can fail."""
    params, buffers, samples, _ = trained(CoreSet(30))
    want = fresh_statistics(pictures, params, samples)
    assert (buffers - want).abs().max() > 0.05


def test_made_samples_pollute_where_nothing_is_done_about_it(trained, pictures, monkeypatch):
    monkeypatch.setattr(Generative, "synthetic", False)
    params, buffers, samples, _ = trained(Generative(30, steps=3))
    assert (buffers - fresh_statistics(pictures, params, samples)).abs().max() > 0.05


def test_every_sample_counts_the_same_in_a_refresh():
    """Also where there are more than fit into one pass, and the last pass would be a small one."""
    objective = TorchObjective(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    x = torch.arange(CHUNK_SAMPLES + 1.0)[:, None].expand(-1, 2)
    objective.refresh(
        objective.flat.read(), Samples(x, torch.zeros(CHUNK_SAMPLES + 1, dtype=torch.int64))
    )
    assert objective.flat.module[0].running_mean[0] == pytest.approx(CHUNK_SAMPLES / 2, abs=0.6)
    assert objective.flat.module[0].momentum == 0.1

"""Generative replay by a network: exact moments, the VAE's loss and draws, and what a client keeps."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed import (
    Classification,
    Deletion,
    Distil,
    Fixed,
    Forget,
    Generator,
    Linear,
    Merged,
    Method,
    Mlp,
    Optimal,
    Regression,
    Samples,
    Train,
    run,
)
from chronofed.clients.deletion import without_rows
from chronofed.core.errors import SpecError
from chronofed.engines import BatchedEngine, ThreadEngine
from chronofed.methods.memories import gaussians
from chronofed.methods.memories.base import SEVERAL, MemoryItem, Moment
from chronofed.methods.memories.vae import LEAST_VARIANCE, Vae
from chronofed.methods.surrogate import Pool
from chronofed.runs.checkpoint import decode, encode
from chronofed.scenarios.base import Plan, Visit
from tests.helpers.world import blobs, same, slopes

QUICK = Generator(size=60, steps=20, hidden=8, latent=2)
GAUSSIAN = Generator("gaussian", size=60)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def kept(memory, objective, params, data_sets, start=()):
    """Items after rounds with these data sets, ``(key, samples)``."""
    items = start
    for round_, (key, samples) in enumerate(data_sets):
        source = generator(round_)
        record = memory.observe(objective, params, samples, source)
        items = memory.retain(items, [MemoryItem(round_, 0, key, len(samples), record)], source)
    return items


@pytest.fixture(scope="module")
def by_class(task):
    """One data set a class."""
    train = task.data.train
    rows = [(train.y == label).nonzero().flatten() for label in range(3)]
    return [Samples(train.x[r], train.y[r], r) for r in rows]


@pytest.fixture(scope="module")
def observed(task):
    params, _ = task.initial(0)

    def observed(memory, data_sets, start=()):
        return kept(memory, task.objective(), params, data_sets, start)

    return observed


# --- Gaussians ---------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_pooled_moments_are_those_of_the_union(seed, parts, full):
    rng = np.random.default_rng(seed)
    sets = []
    for _ in range(parts):
        n = rng.integers(1, 30)
        sets.append((5 + rng.normal(size=(n, 3)) * rng.normal(size=3), rng.integers(0, 3, n)))
    found = None
    for x, y in sets:
        one = gaussians.moments(torch.from_numpy(x), torch.from_numpy(y), 3, full=full)
        found = one if found is None else gaussians.merged(found, one)
    x, y = (np.concatenate(part) for part in zip(*sets, strict=True))
    for label in range(3):
        mine = x[y == label]
        assert found["counts"][label] == len(mine)
        if not len(mine):
            continue
        scatter = (mine - mine.mean(0)).T @ (mine - mine.mean(0))
        want = scatter if full else np.diag(scatter)
        np.testing.assert_allclose(found["mean"][label], mine.mean(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found["scatter"][label], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("full", [False, True])
def test_draws_have_the_moments(full):
    mix = torch.tensor([[1.0, 0.0], [2.0, 0.5]], dtype=torch.float64)
    data = torch.randn(5000, 2, generator=generator(), dtype=torch.float64) @ mix.T + 3
    codes = torch.arange(5000) % 2
    record = gaussians.moments(data, codes, 2, full=full)
    made = gaussians.draw(record, torch.ones(40_000, dtype=torch.int64), generator())
    want = torch.cov(data[codes == 1].T, correction=0)
    torch.testing.assert_close(made.mean(0), record["mean"][1], rtol=0, atol=0.05)
    got = torch.cov(made.T)
    torch.testing.assert_close(got.diag(), want.diag(), rtol=0.04, atol=0)
    assert float(got[0, 1]) == pytest.approx(float(want[0, 1]) if full else 0.0, abs=0.08)


def test_one_sample_is_its_own_gaussian():
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for full in (False, True):
        record = gaussians.moments(x, torch.tensor([1]), 2, full=full)
        made = gaussians.draw(record, torch.tensor([1, 1]), generator())
        assert torch.equal(made, x.expand(2, -1))


def test_the_generator_of_all_rounds_has_the_moments_of_all_samples(observed, by_class):
    items = observed(GAUSSIAN, [(k, s) for k, s in enumerate(by_class)])
    union = torch.cat([s.x for s in by_class]).double(), torch.cat([s.y for s in by_class])
    want = gaussians.moments(*union, 3, full=False)
    for name, tensor in want.items():
        torch.testing.assert_close(items[-1].record[name], tensor, rtol=1e-12, atol=1e-12)


# --- The VAE -----------------------------------------------------------------------------------------


def test_minus_the_elbo_by_hand():
    """All parameters 0: the latent is the noise, the output 0 and every variance 1 + LEAST_VARIANCE."""
    vae = Vae(2, 2, 3, 1)
    x, y, noise = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([1]), torch.ones(1, 1).double()
    params = torch.zeros(vae.size, dtype=torch.float64)
    variance = 1 + LEAST_VARIANCE
    want = (5 / variance + 2 * math.log(variance)) / 2
    assert vae.losses(params, x, y, noise).item() == pytest.approx(want, rel=1e-14)
    # The encoder's biases are the latent's mean and log variance; their divergence is added.
    start = sum(map(math.prod, vae.shapes[:3]))
    params[start], params[start + 1] = 0.5, 0.3
    want += (0.25 + math.exp(0.3) - 0.3 - 1) / 2
    assert vae.losses(params, x, y, noise).item() == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("targets", [0, 1])
def test_the_gradient_is_that_of_finite_differences(targets):
    vae = Vae(3, 2, 4, 2, targets)
    params = vae.init(generator()).double()
    params += 0.1 * torch.randn(vae.size, generator=generator(1), dtype=torch.float64)
    x = torch.randn(5, 3, generator=generator(2), dtype=torch.float64)
    noise = torch.randn(5, 2, generator=generator(3), dtype=torch.float64)
    weight = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1], dtype=torch.float64)
    batch = Pool(Samples(x, torch.tensor([0, 1, 1, 0, 1])), weight).whole()
    gradient = vae.gradient(params, batch, noise)
    for place in range(vae.size):
        step = torch.zeros_like(params)
        step[place] = 1e-5
        high, low = (
            float(weight @ vae.losses(p, batch.x, batch.y, noise))
            for p in (params + step, params - step)
        )
        assert float(gradient[place]) == pytest.approx((high - low) / 2e-5, abs=1e-8)


def test_the_loss_falls_and_the_seed_decides(by_class):
    x, y = torch.cat([s.x for s in by_class]), torch.cat([s.y for s in by_class])
    vae, pool = Vae(5, 3, 16, 2), Pool(Samples(x, y), even=1.0)
    noise = torch.randn(len(x), 2, generator=generator(9))
    params = vae.init(generator())
    losses = [vae.losses(params, x, y, noise).mean()]
    one, other = (vae.fit(params, pool, 100, 0.01, generator(1)) for _ in range(2))
    losses.append(vae.losses(one, x, y, noise).mean())
    assert losses[1] < losses[0] - 2
    assert torch.equal(one, other)
    assert torch.equal(params, vae.init(generator()))
    assert not torch.equal(one, vae.fit(params, pool, 100, 0.01, generator(2)))


@pytest.mark.parametrize("memory", [Generator(size=1500), Generator("gaussian", size=1500)])
def test_draws_of_all_past_classes_are_near_the_data(memory, observed, by_class):
    """Classes came one by one; the network was never trained on two of them together."""
    items = observed(memory, list(enumerate(by_class)))
    (past,) = memory.recalled(items, Moment(3, 9, 10))
    x, y = past.record["x"], past.record["y"]
    assert y.bincount().tolist() == pytest.approx([len(s) * 1500 / 1200 for s in by_class], abs=1)
    far = 0.4 if memory.form == "vae" else 0.2
    for label, samples in enumerate(by_class):
        mine = x[y == label]
        torch.testing.assert_close(mine.mean(0), samples.x.mean(0), rtol=0, atol=far)
        torch.testing.assert_close(mine.std(0), samples.x.std(0), rtol=0, atol=far)


# --- What a client keeps -----------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [QUICK, GAUSSIAN])
def test_the_present_data_set_is_not_replayed(memory, observed, by_class):
    first, second, _ = by_class
    assert memory.recalled((), Moment(0, 0, 5)) == ()
    items = observed(memory, [(0, first)])
    assert memory.recalled(items, Moment(1, 0, 5)) == ()
    items = observed(memory, [(0, first), (1, second), (1, second)])
    assert [k.key for k in items] == [SEVERAL, SEVERAL]
    assert [k.size for k in items] == [len(first), len(first) + len(second)]
    (past,) = memory.recalled(items, Moment(3, 1, 5))
    assert past.record["y"].unique().tolist() == [0]
    (past,) = memory.recalled(items, Moment(3, 2, 5))
    assert past.record["y"].unique().tolist() == [0, 1]
    shapes = [{name: t.shape for name, t in k.record.items() if name != "sources"} for k in items]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("memory", [QUICK, GAUSSIAN])
def test_draws_are_new_in_every_round_and_the_same_in_one(memory, observed, by_class):
    items = observed(memory, [(0, by_class[0])])
    one, again, other = (memory.recall(items, Merged(), Moment(r, 1, 5)) for r in (1, 1, 2))
    assert torch.equal(one.replay.samples.x, again.replay.samples.x)
    assert not torch.equal(one.replay.samples.x, other.replay.samples.x)
    assert len(one.replay) == memory.size
    assert one.present == pytest.approx(5 / 65)


@pytest.mark.parametrize("memory", [QUICK, GAUSSIAN])
def test_a_deleted_sample_takes_every_generator_that_knew_it(memory, observed, by_class):
    items = observed(memory, list(enumerate(by_class)))

    def left(row):
        found = [without_rows(item, row[None]) for item in items]
        return [item is not None for item in found]

    assert left(by_class[0].rows[0]) == left(by_class[1].rows[0]) == [False, False]
    assert left(by_class[2].rows[0]) == [True, False]
    assert left(torch.tensor(99_999)) == [True, True]


@pytest.mark.parametrize("memory", [QUICK, Generator("gaussian", covariance="full")])
@pytest.mark.parametrize("regression", [False, True])
def test_deletions_of_a_run(task, scenario, memory, regression):
    chosen = Regression(slopes(), Linear()) if regression else task
    rows = tuple(scenario.at(1).visits[1].indices[:40].tolist())
    gone = [Deletion(round=3, rows=rows, clients=(2,))]
    train = Train(steps=2, batch_size=8)
    *_, last = run(Method(memory=memory), scenario, chosen, rounds=5, train=train, deletions=gone)
    assert 2 not in last.client_states
    for state in last.client_states.values():
        for item in state.items:
            assert not set(item.record["sources"].tolist()) & set(rows)


def test_bytes_stay_bytes(task):
    x = torch.randint(0, 256, (40, 1, 3, 3), generator=generator(), dtype=torch.uint8)
    x[:, 0, 0, 0] = 7
    pictures = Samples(x, torch.arange(40) % 3)
    objective = Classification(blobs(), Mlp((4,))).objective()
    objective.logits = lambda params, x: torch.zeros(len(x), 3)
    for memory in (QUICK, GAUSSIAN):
        items = kept(memory, objective, torch.zeros(1), [(0, pictures)])
        (past,) = memory.recalled(items, Moment(1, 1, 5))
        assert past.record["x"].shape == (60, 1, 3, 3)
        assert past.record["x"].dtype == torch.uint8
        assert len(past.record["x"].unique()) > 20


@pytest.mark.parametrize(
    "memory", [Generator(size=2000), Generator("gaussian", size=2000, covariance="full")]
)
def test_a_regression_draws_targets_that_go_with_the_inputs(memory):
    data = slopes()
    task = Regression(data, Linear())
    params, _ = task.initial(0)
    memory.check(task.objective(), params, data.train)
    items = kept(memory, task.objective(), params, [(0, data.train)])
    (past,) = memory.recalled(items, Moment(1, 1, 5))
    x, y = past.record["x"].double(), past.record["y"].double()
    assert past.record["y"].dtype == torch.float32
    slope = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    want = torch.tensor([0.8, -0.4, 0.3, 0.2, -0.2], dtype=torch.float64)
    far = 0.01 if memory.form == "gaussian" else 0.1
    torch.testing.assert_close(slope, want, rtol=0, atol=far)


def test_the_gradient_of_an_item_is_that_of_draws(task, observed, by_class):
    """Of a new data set it is that of a generator of it alone: near the truth, and the same every time."""
    params, _ = task.initial(0)
    objective = task.objective()
    samples = by_class[1]
    record = GAUSSIAN.observe(objective, params, samples, generator())
    memory = Generator("gaussian", size=4000)
    new = MemoryItem(0, 0, 0, len(samples), record)
    _, gradient = memory.approximate(objective, params, new)
    assert torch.equal(gradient, memory.approximate(objective, params, new)[1])
    truth = objective.loss_gradient(params, Pool(samples, even=1.0).whole(), (slice(0, 18),))
    assert (gradient - truth).norm() < 0.1 * truth.norm()
    item = observed(memory, [(0, samples)])[-1]
    assert torch.equal(memory.approximate(objective, params, item)[1], gradient)


def test_settings_that_do_not_fit():
    data = slopes()
    params = torch.zeros(6)
    with pytest.raises(ValueError, match="only form = 'gaussian' has a covariance"):
        Generator(covariance="full")
    with pytest.raises(SpecError, match="use 'full' or form = 'vae'"):
        GAUSSIAN.check(None, params, data.train)
    wide = Samples(torch.zeros(2, 300), torch.tensor([0, 1]))
    with pytest.raises(SpecError, match="at most 256 numbers a sample, not 300"):
        Generator("gaussian", covariance="full").check(None, params, wide)
    GAUSSIAN.check(None, params, wide)


class OneByOne:
    """One client that holds one class, and then another."""

    clients, rounds, persistent = 1, None, True

    def __init__(self, data, classes):
        self.rows = [(data.train.y == label).nonzero().flatten().numpy() for label in classes]

    def at(self, t):
        return Plan(t, {0: Visit(self.rows[t], t)})


@pytest.mark.parametrize(
    "memory", [pytest.param(Generator(steps=100), marks=pytest.mark.slow), Generator("gaussian")]
)
def test_the_past_class_is_remembered(memory, task):
    """Two rounds, one class each: the old one has a lower loss for every pair."""
    test = task.data.test

    def after(memory, classes, weights):
        train = Train(lr=0.1, batch_size=16, steps=60)
        method = Method(memory=memory, weights=weights)
        *_, last = run(method, OneByOne(task.data, classes), task, rounds=2, train=train)
        old = test[(test.y == classes[0]).nonzero().flatten()]
        return last.params, task.score(task.objective(), last.params, last.buffers, old)

    half, nothing = Fixed(0.5), Optimal(time_drift_sq=0.0, information_loss_sq=1.0)
    for classes in permutations(range(3), 2):
        params, lost = after(Forget(), classes, half)
        _, remembered = after(memory, classes, half)
        assert remembered.loss < lost.loss
        assert torch.equal(after(memory, classes, nothing)[0], params)
        if classes == (0, 2):
            assert lost.accuracy < 0.5
            assert remembered.accuracy > 0.9


def test_it_goes_inside_a_memory_with_teachers(task, scenario):
    train = Train(steps=2, batch_size=8)
    found = []
    for memory in (QUICK, Distil(past=0.0, memory=QUICK)):
        *_, last = run(Method(memory=memory), scenario, task, rounds=3, train=train)
        items = last.client_states[1].items
        found.append([k.record["network"] for k in items if "network" in k.record])
    assert len(found[0]) == len(found[1]) > 0
    assert all(map(torch.equal, *found))


def test_gaussians_on_engines_and_in_checkpoints(task, train_for):
    """The laws have the default form; the other has records of other shapes."""
    method = Method(memory=Generator("gaussian", covariance="full"), weights=Fixed(0.5))
    straight = train_for(method, 4)
    half = decode(encode(train_for(method, 2)))
    assert same(train_for(method, 4, start=half), straight)
    with ThreadEngine(task, 2) as engine:
        assert same(train_for(method, 4, engine=engine), straight)
    with BatchedEngine(task) as engine:
        batched = train_for(method, 4, engine=engine)
    torch.testing.assert_close(batched.params, straight.params, rtol=1e-5, atol=1e-5)

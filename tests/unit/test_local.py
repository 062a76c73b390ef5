"""The one local training loop, against numbers worked out by hand."""

import pytest
import torch
from torch import nn

from chronofed import Train
from chronofed.core.errors import DataError
from chronofed.core.types import Batch, Samples
from chronofed.methods import local as local_module
from chronofed.methods.local import ClientLocal
from chronofed.methods.surrogate import Pool, Quadratic, Surrogate
from chronofed.models.objective import TorchObjective


class Parabola:
    """f(w) = mean of (w - x)^2 / 2 over samples: its gradient is sum of weight * (w - x)."""

    buffers = torch.empty(0)
    uses_batch_statistics = False

    def gradient(self, params, batch: Batch):
        return batch.weight.sum() * params - batch.weight @ batch.x

    def augment(self, x, generator):
        return x


def local(train: Train, past: Surrogate | None = None, x=(1.0, 3.0)) -> ClientLocal:
    data = Samples(torch.tensor(x, dtype=torch.float64)[:, None], torch.zeros(len(x)).long())
    return ClientLocal(
        Parabola(), data, past or Surrogate(), train, torch.Generator().manual_seed(0)
    )


def descend(one: ClientLocal, start: float = 0.0) -> float:
    return float(one.descend(torch.tensor([start], dtype=torch.float64), one.stochastic_gradient))


def test_two_plain_steps():
    # full batch: gradient w - 2; from 0: 0.2, then 0.2 + 0.1 * 1.8
    assert descend(local(Train(lr=0.1, batch_size=2, steps=2))) == pytest.approx(0.38, abs=1e-15)


def test_momentum():
    # velocity -2, w 0.2; velocity 0.5 * -2 + (0.2 - 2) = -2.8, w 0.48
    train = Train(lr=0.1, batch_size=2, steps=2, momentum=0.5)
    assert descend(local(train)) == pytest.approx(0.48, abs=1e-15)


def test_weight_decay():
    # gradient w - 2 + 0.5 w; from 1: 1 - 0.1 * -0.5 = 1.05
    train = Train(lr=0.1, batch_size=2, steps=1, weight_decay=0.5)
    assert descend(local(train), start=1.0) == pytest.approx(1.05, abs=1e-15)


def test_weight_decay_goes_through_the_momentum():
    # from 1: velocity -0.5, w 1.05; velocity 0.5 * -0.5 + (1.05 - 2 + 0.525) = -0.675, w 1.1175
    train = Train(lr=0.1, batch_size=2, steps=2, momentum=0.5, weight_decay=0.5)
    assert descend(local(train), start=1.0) == pytest.approx(1.1175, abs=1e-15)


def past_of_both_kinds() -> Surrogate:
    one = torch.tensor([1.0], dtype=torch.float64)
    replay = Pool(Samples(10 * one[:, None], torch.zeros(1).long()), 0.5 * one)
    return Surrogate(
        0.5, replay, Quadratic((slice(0, 1),), scale=(1.0,), linear=3 * one, diagonal=2 * one)
    )


def test_past_samples_and_quadratic_count_with_their_weights():
    # 0.5 (w - 2) + 0.5 (w - 10) + 3 + 2 w at w = 1: -0.5 - 4.5 + 3 + 2 = 0
    one, w = (
        local(Train(lr=0.1, batch_size=20_000, steps=1), past_of_both_kinds()),
        torch.ones(1).double(),
    )
    assert float(one.full_gradient(w)) == pytest.approx(0.0, abs=1e-15)
    assert float(one.stochastic_gradient(w)) == pytest.approx(0.0, abs=0.1)  # deviation 0.03


def test_full_batches_are_exact_whatever_the_weights():
    # as above, but without chance: 0.5 (w - 2) + 0.5 (w - 10) + 3 + 2 w = 3 w - 3, from 0 to 0.3
    one = local(Train(lr=0.1, batch_size="full", steps=1), past_of_both_kinds())
    assert descend(one) == pytest.approx(0.3, abs=1e-15)


def test_gradients_at_several_points_share_the_batch():
    here, there = local(Train(batch_size=1)).stochastic_gradients(
        torch.tensor([1.0]).double(), torch.tensor([5.0]).double()
    )
    assert float(there - here) == 4.0


def test_slow_clients_do_a_part_of_their_steps():
    train = Train(steps=10, slow=0.5)
    paces = [train.pace(torch.Generator().manual_seed(k)) for k in range(400)]
    slow = [p for p in paces if p < 1]
    assert 0.4 < len(slow) / 400 < 0.6
    assert 0.4 < sum(slow) / len(slow) < 0.6
    assert {p for p in paces if p >= 1} == {1.0}
    assert Train().pace(torch.Generator()) == 1.0
    data = Samples(torch.ones(2, 1).double(), torch.zeros(2).long())
    steps = [
        ClientLocal(Parabola(), data, Surrogate(), train, torch.Generator(), p).steps
        for p in (1.0, 0.55, 0.01)
    ]
    assert steps == [10, 6, 1]


def test_start_is_left_alone():
    start = torch.zeros(1, dtype=torch.float64)
    one = local(Train(steps=3))
    one.descend(start, one.stochastic_gradient)
    assert start.tolist() == [0.0]


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        (Train(batch_size=32), 8),  # 238 / 32 = 7.4
        (Train(batch_size=32, epochs=2), 15),
        (Train(batch_size=32, epochs=0.01), 1),
        (Train(batch_size=32, steps=5), 5),
        (Train(batch_size=32, epoch="union"), 11),  # 338 / 32 = 10.6
        (Train(batch_size="full"), 1),
        (Train(batch_size="full", epochs=2.5, epoch="union"), 3),
    ],
)
def test_number_of_steps(train, steps):
    assert train.count(present=238, union=338) == steps


@pytest.mark.parametrize(
    "bad", [{"lr": 0.0}, {"batch_size": 0}, {"momentum": 1.0}, {"epoch": "all"}]
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=f"Train.{next(iter(bad))}: "):
        Train(**bad)


class Noisy(Parabola):
    """Draws from torch's global generator, and counts its calls, as dropout and BatchNorm would."""

    def __init__(self):
        self.buffers = torch.zeros(1)

    def gradient(self, params, batch: Batch):
        self.buffers = self.buffers + 1
        return super().gradient(params, batch) + torch.rand(1, dtype=torch.float64)


def test_the_second_point_sees_the_same_dropout_and_leaves_the_buffers():
    data = Samples(torch.ones(2, 1).double(), torch.zeros(2).long())
    objective = Noisy()
    one = ClientLocal(objective, data, Surrogate(), Train(batch_size=2), torch.Generator())
    here, there = one.stochastic_gradients(torch.zeros(1).double(), torch.ones(1).double())
    assert float(there - here) == pytest.approx(1.0, abs=1e-15)
    assert objective.buffers.tolist() == [1.0]


# BatchNorm


def normalised(n: int, train: Train, past: Surrogate | None = None) -> ClientLocal:
    """A client whose samples are sorted by class, with a model that normalises its inputs."""
    source = torch.Generator().manual_seed(3)
    y = torch.arange(n) * 3 // n
    x = torch.randn(n, 4, generator=source, dtype=torch.float64) + 2 * y[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
        objective = TorchObjective(nn.Sequential(*layers).double())
    return ClientLocal(objective, Samples(x, y), past or Surrogate(), train, source)


def test_a_last_mini_batch_of_one_sample_joins_the_one_before_it():
    train = Train(lr=0.1, batch_size=16, epochs=2)
    one = normalised(33, train)
    assert one.steps == 4
    epoch = [one.draw() for _ in range(2)]
    assert [len(pick) for pick, _ in epoch] == [16, 17]
    assert sorted(torch.cat([pick for pick, _ in epoch]).tolist()) == list(range(33))
    assert [float(weight.sum()) for _, weight in epoch] == pytest.approx([1.0, 1.0])
    assert torch.isfinite(one.descend(one.objective.flat.read(), one.stochastic_gradient)).all()
    # Two samples have statistics, and other models need none.
    assert [len(normalised(34, train).draw()[0]), normalised(34, train).steps] == [16, 5]
    assert local(train, x=range(33)).steps == 5
    assert [train.count(n, n, least=2) for n in (1, 16, 17, 18, 33)] == [1, 2, 2, 3, 4]


@pytest.mark.parametrize(("n", "size"), [(1, 16), (5, 1)])
def test_a_single_sample_is_refused_in_one_line(n, size):
    one = normalised(n, Train(batch_size=size))
    with pytest.raises(
        DataError, match=r"BatchNorm cannot train on .* one sample: set train\.batch_"
    ) as e:
        one.stochastic_gradient(one.objective.flat.read())
    assert "\n" not in str(e.value)


def test_one_sample_leaves_the_statistics_alone():
    """A model may train on it together with replayed samples."""
    one = normalised(1, Train())
    before = one.objective.buffers
    one.objective.refresh(one.objective.flat.read(), one.samples)
    assert torch.equal(one.objective.buffers, before)


def test_with_batch_norm_the_full_gradient_is_the_mean_of_mini_batches(monkeypatch):
    """Sorted classes must not be normalised apart, and the size of a chunk must not matter."""
    one = normalised(240, Train(batch_size=16))
    w, buffers = one.objective.flat.read(), one.objective.buffers
    full = one.full_gradient(w)
    assert torch.equal(one.objective.buffers, buffers)
    mean = sum(one.stochastic_gradient(w) for _ in range(15 * 20)) / (15 * 20)
    assert (full - mean).norm() < 0.2 * mean.norm()
    monkeypatch.setattr(local_module, "FULL_GRADIENT_SAMPLES", 40)
    assert torch.equal(one.full_gradient(w), full)
    # What it was before: parts in the order of the data, normalised one by one.
    apart = sum(one.objective.gradient(w, batch) for batch in one.pool.parts(64))
    assert (apart - mean).norm() > 0.5 * mean.norm()
    running = one.objective.loss_gradient(w, one.pool.whole(), (slice(0, len(w)),))
    assert (running - mean).norm() > 0.5 * mean.norm()


def test_with_full_batches_the_full_gradient_is_the_only_one():
    one = normalised(33, Train(batch_size="full"))
    w = one.objective.flat.read()
    torch.testing.assert_close(one.full_gradient(w), one.stochastic_gradient(w), rtol=0, atol=1e-14)


def test_the_full_gradient_of_replayed_samples_counts_their_weights():
    x = torch.full((3, 4), 9.0, dtype=torch.float64)
    past = Pool(Samples(x, torch.tensor([0, 1, 2])), torch.tensor([0.1, 0.1, 0.2]).double())
    one = normalised(33, Train(batch_size="full"), Surrogate(0.6, past))
    w = one.objective.flat.read()
    want = one.objective.gradient(w, one.pool.whole())
    torch.testing.assert_close(one.full_gradient(w), want, rtol=0, atol=1e-14)

"""The one local training loop, against numbers worked out by hand."""

import pytest
import torch

from chronofed import Train
from chronofed.local import Local
from chronofed.surrogate import Pool, Surrogate
from chronofed.types import Batch, Samples


class Quadratic:
    """f(w) = mean of (w - x)^2 / 2 over samples: its gradient is sum of weight * (w - x)."""

    buffers = torch.empty(0)

    def gradient(self, params, batch: Batch):
        return batch.weight.sum() * params - batch.weight @ batch.x

    def augment(self, x, generator):
        return x


def local(train: Train, past: Surrogate | None = None, x=(1.0, 3.0)) -> Local:
    data = Samples(torch.tensor(x, dtype=torch.float64)[:, None], torch.zeros(len(x)).long())
    return Local(Quadratic(), data, past or Surrogate(), train, torch.Generator().manual_seed(0))


def descend(one: Local, start: float = 0.0) -> float:
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


def test_past_samples_and_quadratic_count_with_their_weights():
    # 0.5 (w - 2) + 0.5 (w - 10) + 3 + 2 w at w = 1: -0.5 - 4.5 + 3 + 2 = 0
    replay = Pool(
        Samples(torch.tensor([[10.0]]).double(), torch.zeros(1).long()),
        torch.tensor([0.5]).double(),
    )
    past = Surrogate(0.5, torch.tensor([3.0]).double(), torch.tensor([2.0]).double(), replay)
    one = local(Train(lr=0.1, batch_size=20_000, steps=1), past)
    gradient = float(one.stochastic_gradient(torch.tensor([1.0], dtype=torch.float64)))
    assert gradient == pytest.approx(0.0, abs=0.1)  # drawn with replacement: deviation 0.03


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

"""Where a Taylor memory loses nothing, and how fast it loses elsewhere."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from chronofed import (
    Exact,
    Fisher,
    Hutchinson,
    Method,
    Optimal,
    Samples,
    Subsets,
    Taylor,
    Train,
    run,
)
from chronofed.core.types import Batch
from chronofed.methods.memories import MemoryItem
from chronofed.methods.weighting import Timeline
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Linear
from tests.helpers.world import blobs

SIZE = 5
CURVATURES = torch.tensor([[0.2, 1.0, 3.0, 0.5, 2.0], [1.0, 0.1, 0.7, 2.0, 0.3], [0.0, 2, 1, 1, 1]])


class Separable:
    """Losses with a diagonal Hessian; a subclass gives slope and curvature of each sample's loss."""

    buffers = torch.empty(0)
    uses_batch_statistics = False
    names = {"a": slice(0, 2), "b": slice(2, SIZE)}

    def gradient(self, params, batch: Batch):
        return batch.weight @ self.slopes(params, batch)

    def loss_gradient(self, params, batch: Batch, spans):
        return torch.cat([self.gradient(params, batch)[span] for span in spans])

    def hessian_product(self, params, batch: Batch, spans, v):
        diagonal = batch.weight @ self.curvatures(params, batch)
        return torch.cat([diagonal[span] for span in spans]) * v

    def gradient_and_products(self, *asked):
        *asked, vectors = asked
        return self.loss_gradient(*asked), [self.hessian_product(*asked, v) for v in vectors]

    def squared_gradients(self, params, batch: Batch, spans):
        squares = batch.weight @ self.slopes(params, batch).square()
        return torch.cat([squares[span] for span in spans])

    def gradient_moments(self, *asked):
        return self.loss_gradient(*asked), self.squared_gradients(*asked)

    def augment(self, x, generator):
        return x


class Parabolas(Separable):
    """(w - x)' A_y (w - x) / 2 with a diagonal A for each class."""

    def slopes(self, params, batch):
        return CURVATURES.double()[batch.y] * (params - batch.x)

    def curvatures(self, params, batch):
        return CURVATURES.double()[batch.y]


class Softplus(Separable):
    """sum_k log(1 + exp(x_k w_k)): the curvature changes from place to place."""

    def slopes(self, params, batch):
        return batch.x * torch.sigmoid(batch.x * params)

    def curvatures(self, params, batch):
        chance = torch.sigmoid(batch.x * params)
        return batch.x.square() * chance * (1 - chance)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def samples(n: int = 30, seed: int = 0) -> Samples:
    return Samples(normal(n, SIZE, seed=seed), torch.arange(n) % 3)


def information_loss(memory: Taylor, objective, here, there, data: Samples) -> float:
    """The norm of the error at ``there`` of an expansion around ``here``."""
    record = memory.observe(objective, here, data, torch.Generator())
    spans, guess = memory.approximate(objective, there, MemoryItem(0, 0, 0, len(data), record))
    return float((objective.loss_gradient(there, Batch.mean(data), spans) - guess).norm())


@pytest.mark.parametrize("curvature", [Hutchinson(), Exact()], ids=str)
@pytest.mark.parametrize("layers", [{"*": 1.0}, {"b": 0.5}], ids=str)
def test_a_quadratic_objective_is_remembered_without_loss(curvature, layers):
    memory = Taylor(curvature, layers)
    for seed in range(5):
        here, there = 10 * normal(2, SIZE, seed=seed)
        assert information_loss(memory, Parabolas(), here, there, samples(seed=seed)) < 1e-10


def test_a_fisher_diagonal_of_it_loses():
    here, there = normal(2, SIZE)
    assert information_loss(Taylor(Fisher(), {"*": 1.0}), Parabolas(), here, there, samples()) > 0.1


def test_loss_is_of_second_order_in_the_distance():
    memory, here, way = Taylor(Exact(), {"*": 1.0}), normal(SIZE), normal(SIZE, seed=1)
    losses = [
        information_loss(memory, Softplus(), here, here + 2.0**-k * way, samples())
        for k in (6, 7, 8)
    ]
    assert [a / b for a, b in pairwise(losses)] == pytest.approx([4, 4], rel=0.1)


def test_loss_is_bounded_by_the_change_of_curvature():
    """``bounded approximation error``: at most eps |w - w_hat|, eps the change of the Hessian between."""
    data, objective, memory = samples(), Softplus(), Taylor(Exact(), {"*": 1.0})
    for seed in range(20):
        here, there = 3 * normal(2, SIZE, seed=seed)
        way = [here + s * (there - here) for s in torch.linspace(0, 1, 101).double()]
        h = torch.stack([objective.curvatures(w, data).mean(0) for w in way])
        eps = float((h - h[0]).abs().max())
        bound = eps * float((there - here).norm())
        assert information_loss(memory, objective, here, there, data) <= 1.01 * bound


def test_loss_of_softmax_regression_follows_from_what_is_left_out():
    """Close by, the error is the product of the distance with what the diagonal leaves of the Hessian."""
    objective = TorchObjective(Linear().build((SIZE,), 3).double())
    data, here = samples(), normal(18)

    def loss(w):
        return functional.cross_entropy(data.x @ w[:15].view(3, 5).T + w[15:], data.y)

    hessian = torch.autograd.functional.hessian(loss, here)
    rest, way = hessian - hessian.diagonal().diag(), 1e-4 * normal(18, seed=1)
    lost = information_loss(Taylor(Exact()), objective, here, here + way, data)
    assert lost == pytest.approx(float((rest @ way).norm()), rel=1e-2)


@dataclass
class QuadraticTask:
    """Parabolas as a task."""

    data: object = field(default_factory=lambda: blobs(dtype=torch.float64))

    def objective(self):
        return Parabolas()

    def initial(self, seed):
        return normal(SIZE, seed=seed), torch.empty(0)

    def samples(self, indices):
        rows = torch.from_numpy(indices)
        return Samples(self.data.train.x[rows], self.data.train.y[rows])


def descended(task, scenario, rounds, weights, buffer, steps=3, lr=0.1):
    """The paper's objective with all past data at hand, written out: CFL without approximation."""
    w, past, objective = task.initial(0)[0], [], Parabolas()
    for t in range(rounds):
        visits = scenario.at(t).visits
        present = {i: task.samples(visit.indices) for i, visit in sorted(visits.items())}
        sizes = tuple(len(data) for _, data in past)
        typical = round(sum(sizes) / len(sizes)) if sizes else 1
        p = weights(Timeline(tuple(r for r, _ in past), sizes, t, typical))
        deltas = []
        for data in present.values():
            v = w.clone()
            for _ in range(steps):
                g = p[-1] * objective.gradient(v, Batch.mean(data))
                for weight, (_, old) in zip(p, past, strict=False):
                    g += weight * objective.gradient(v, Batch.mean(old))
                v = v - lr * g
            deltas.append(len(data) * (v - w))
        w = w + sum(deltas) / sum(len(data) for data in present.values())
        past = [*past, *((t, data) for data in present.values())][-buffer:]
    return w


@pytest.mark.parametrize("buffer", [40, 5])
def test_on_quadratics_the_loop_is_cfl_with_all_past_data(buffer):
    task = QuadraticTask()
    scenario = Subsets(clients=3, subsets=5, client_alpha=1.0).on(task.data, seed=0)
    weights = Optimal(time_drift_sq=1.0, information_loss_sq=0.3)
    method = Method(memory=Taylor(layers={"*": 1.0}, buffer=buffer), weights=weights)
    train = Train(lr=0.1, batch_size=10**6, steps=3)
    *_, last = run(method, scenario, task, rounds=12, train=train)
    want = descended(task, scenario, 12, weights, buffer)
    torch.testing.assert_close(last.params, want, rtol=0, atol=1e-10)

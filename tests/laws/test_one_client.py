"""S = 1 is plain continual learning: the same numbers come out of a loop that knows no federation."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from chronofed import Classification, CoreSet, FedAvg, FedProx, Forget, Method, Subsets, Train, run
from chronofed.engines import SerialEngine
from chronofed.models.zoo import Custom
from tests.helpers.world import blobs

EVERYTHING = 10**6  # a batch, or a core set, that holds all there is


def double_linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes).double()


@pytest.fixture(scope="module")
def world():
    data = blobs(dtype=torch.float64)
    task = Classification(data, Custom(f"{__name__}:double_linear"))
    return task, Subsets(clients=1, subsets=6, client_alpha=1.0).on(data, seed=0)


def plain_continual_learning(task, scenario, rounds, mu, remember):
    """Gradient descent on all that is remembered, written out with torch alone."""
    w = task.initial(0)[0]
    past: dict[int, torch.Tensor] = {}
    for t in range(rounds):
        visit = scenario.at(t).visits[0]
        past = past | {visit.key: torch.from_numpy(visit.indices)} if remember else {}
        index = torch.cat([*past.values()]) if remember else torch.from_numpy(visit.indices)
        x, y, anchor = task.data.train.x[index], task.data.train.y[index], w
        for _ in range(3):
            v = w.clone().requires_grad_()
            loss = functional.cross_entropy(functional.linear(x, v[:15].view(3, 5), v[15:]), y)
            (loss + mu / 2 * (v - anchor).square().sum()).backward()
            w = w - 0.2 * v.grad
    return w


@pytest.mark.parametrize("memory", [Forget(), CoreSet(EVERYTHING)], ids=["forget", "keep all"])
@pytest.mark.parametrize(("backbone", "mu"), [(FedAvg(), 0.0), (FedProx(0.3), 0.3)])
def test_equals_plain_continual_learning(backbone, mu, memory, world):
    task, scenario = world
    train = Train(lr=0.2, batch_size=EVERYTHING, steps=3)
    *_, last = run(Method(backbone, memory), scenario, task, rounds=12, train=train)
    want = plain_continual_learning(task, scenario, 12, mu, remember=memory != Forget())
    torch.testing.assert_close(last.params, want, rtol=0, atol=1e-12)


def test_the_lone_client_keeps_its_core_set_to_itself(world):
    task, scenario = world
    engine = SerialEngine(task)
    *_, last = run(Method(FedAvg(), CoreSet(7)), scenario, task, rounds=9, engine=engine)
    seen = {scenario.at(t).visits[0].key for t in range(9)}
    assert {k.key for k in last.client_states[0].items} == seen
    assert all(len(k.record["y"]) == 7 for k in last.client_states[0].items)
    assert set(last.server) == {"params"}

"""A client's work on one order: what its probe sees."""

import torch
from torch import nn

from chronofed import Adaptive, Classification, CoreSet, FedAvg, Method, Train
from chronofed.clients.client import Client
from chronofed.clients.messages import Order
from chronofed.core.types import Batch
from chronofed.methods.probe import sketch
from chronofed.models.zoo import Custom


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def test_a_probe_sees_the_model_that_the_server_sent(data, scenario):
    """With its statistics: those after training belong to another model."""
    task = Classification(data, Custom(f"{__name__}:normed"))
    params, _ = task.initial(0)
    objective, visit = task.objective(), scenario.at(0).visits[0]
    objective.refresh(params, data.test)
    sent = objective.buffers
    train = Train(lr=0.5, batch_size=8, steps=4)
    method = Method(FedAvg(), CoreSet(10), Adaptive())
    weights = method.weights.resolve(method.weights.init())
    order = Order(0, 0, {"params": params}, sent, weights, None, train, 0)
    samples = task.samples(visit.indices)
    result, client_state = Client(method, order, None, objective, samples, visit.key).serve()
    assert not torch.equal(result.buffers, sent)

    def gradient(x, y, buffers):
        objective.buffers = buffers
        batch = Batch(x, y, torch.full((len(y),), 1 / len(y), dtype=torch.float64))
        return objective.loss_gradient(params, batch, (slice(0, len(params)),))

    want = gradient(samples.x, samples.y, sent)
    torch.testing.assert_close(result.probe["gradient"], sketch(want))
    (item,) = client_state.items
    lost = want - gradient(item.record["x"], item.record["y"], sent)
    torch.testing.assert_close(
        result.probe["information_loss_sq"], lost.double().square().sum(), rtol=1e-5, atol=0
    )
    after = gradient(samples.x, samples.y, result.buffers)
    assert (after - want).norm() > 0.01 * want.norm()

"""Backbones that know the layers of a model, on models that have some: the other laws use a single layer."""

from dataclasses import replace

import pytest
import torch

from chronofed import (
    Additive,
    Classification,
    Clipped,
    CoreSet,
    Cwr,
    Deletion,
    FedOpt,
    FedProx,
    HeteroFL,
    Method,
    Mime,
    Mlp,
    Pnn,
    Private,
    Progressive,
    Scaffold,
    Si,
    Taylor,
    Train,
    run,
)
from chronofed.clients.messages import Order
from chronofed.clients.order_check import OrderCheck, OrderLimits
from chronofed.core.errors import IncompatibleError
from chronofed.engines import ProcessEngine, ThreadEngine
from chronofed.engines.batched.support import unsupported
from chronofed.methods.backbones.base import first_server_state
from chronofed.methods.wrappers.base import parts
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.world import same
from tests.laws.test_flower import same as same_but_clients
from tests.laws.test_flower import world

__all__ = ["world"]

AR1 = Cwr(Si(largest=0.001, layers={"fc.*": 0.0, "*": 1.0}))
METHODS = [
    Method(Si(FedProx(0.1)), Taylor(layers={"*": 0.5})),
    Method(AR1, CoreSet(5)),
    Method(Pnn(Scaffold())),
    Method(Additive(FedOpt()), CoreSet(5)),
    Method(HeteroFL(Scaffold()), Taylor(layers={"*": 0.5})),
    Method(HeteroFL(Mime(), rates=(0.5, 0.25))),
]
TRAIN = Train(lr=0.1, batch_size=16, steps=2)


def label(method):
    return "-".join(type(part).__name__ for part in parts(method.backbone))


every = pytest.mark.parametrize("method", METHODS, ids=label)


@pytest.fixture
def task(method, data):
    model = Progressive(2, (4,)) if isinstance(method.backbone, Pnn) else Mlp((6, 4))
    return Classification(data, model)


@pytest.fixture
def after(task, scenario):
    def after(method, rounds=3, **others):
        *_, last = run(method, scenario, task, rounds=rounds, train=TRAIN, **others)
        return last

    return after


@every
@pytest.mark.some(4)
def test_same_bits_again_resumed_in_any_order_and_on_threads(method, after, task):
    whole = after(method)
    assert same(after(method, start=decode(encode(after(method, 2)))), whole)
    assert same(after(method, engine=ShuffledWorkers(task)), whole)
    with ThreadEngine(task, 2) as threads:
        assert same(after(method, engine=threads), whole)


@every
@pytest.mark.product
def test_processes_agree(method, after, task):
    with ProcessEngine(task, 2) as processes:
        assert same(after(method, engine=processes), after(method))


@every
@pytest.mark.some(3)
def test_flower_ends_with_the_same_bits(method, world, after):
    """The check of orders and the screen of replies let honest ones pass, also those of a part of the model."""
    there = world(method)
    assert same_but_clients(after(method, engine=there.engine), after(method))
    assert set(there.kinds()) == {"joined"}


@every
def test_the_batched_engine_refuses(method, task):
    outer = type(method.backbone).__name__
    reason = f"{outer}.start is not declared to work on stacked clients (@stacked)"
    if isinstance(method.backbone, Pnn):
        assert "ProgressiveNetwork" in unsupported(method, task)
        task = Classification(task.data, Mlp((4,)))
    assert unsupported(method, task) == reason


@every
@pytest.mark.some(3)
def test_clipped_without_a_bound_is_the_inner_backbone(method, after):
    inner = method.backbone
    bounds = {entry: 1e30 for entry in inner.upload_keys if entry != "delta"}
    wrapped = Method(Clipped(inner, 1e30, bounds), method.memory)
    assert same(after(wrapped, 2), after(method, 2))
    tight = dict.fromkeys(bounds, 0.001)
    assert not same(after(Method(Clipped(inner, 1e-3, tight), method.memory), 2), after(method, 2))


@every
def test_private_serves_those_that_need_no_names(method, after):
    inner = method.backbone
    bounds = {entry: 1.0 for entry in inner.upload_keys if entry != "delta"}
    private = Method(Private(inner, bounds=bounds, noise=0.01), average="clients")
    if isinstance(inner, HeteroFL | Additive):
        with pytest.raises(IncompatibleError, match="none that is private"):
            after(private, 1)
    else:
        last = after(private, 2)
        assert torch.isfinite(last.params).all()
        assert same(last, after(private, 2))


# Orders


def ordered(method, task, client=1):
    """A check of orders, and an honest one."""
    params, buffers = task.initial(0)
    backbone = method.backbone
    server = first_server_state(backbone, params, 4, task.objective())
    sent = backbone.address(backbone.broadcast(backbone.draw(server, 0, 0)), client)
    order = Order(0, client, sent, buffers, method.weights, None, Train(steps=1), 0)
    samples = task.samples(torch.arange(8).numpy())
    return OrderCheck(method, Train(), task.objective(), samples, OrderLimits()), order


@every
def test_an_order_that_lacks_something_is_refused(method, task):
    check, order = ordered(method, task)
    exchange = "prepare" if method.backbone.two_phase else "train"
    assert check.problem(order, exchange, None) is None
    for name, tensor in order.server.items():
        less = {n: t for n, t in order.server.items() if n != name}
        assert f"server.{name}: missing" in check.problem(
            replace(order, server=less), exchange, None
        )
        longer = {**order.server, name: torch.cat([tensor.reshape(-1), tensor.reshape(-1)])}
        assert f"server.{name}: expected" in check.problem(
            replace(order, server=longer), exchange, None
        )


@pytest.mark.parametrize("method", METHODS[4:5], ids=label)
def test_an_order_for_a_client_of_another_width_is_refused(method, task):
    check, order = ordered(method, task)
    _, wider = ordered(method, task, client=0)
    assert "server.params: expected" in check.problem(
        replace(order, server=wider.server), "train", None
    )


# Deletion


@pytest.mark.parametrize("method", METHODS[3:4], ids=label)
def test_a_deleted_client_and_a_deleted_sample_leave_the_additive_parts(method, after, scenario):
    """Of client 2 nothing stays, also on the server; client 1 starts anew, without what it had learnt."""
    row = int(scenario.at(0).visits[1].indices[0])
    gone = [Deletion(2, clients=(2,)), Deletion(2, rows=(row,))]
    before, last = after(method, 2), after(method, 3, deletions=gone)
    assert before.server["additive_known"].tolist() == [1.0] * 4
    assert last.server["additive_known"].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert before.server["additive_parts"][2].any()
    assert not last.server["additive_parts"][2].any()
    assert set(last.client_states) == {0, 1, 3}
    kept = {i: set(s.backbone_state["sources"].tolist()) for i, s in last.client_states.items()}
    assert kept[1] == set(scenario.at(2).visits[1].indices.tolist()) - {row}
    assert kept[0] == {r for t in range(3) for r in scenario.at(t).visits[0].indices.tolist()}

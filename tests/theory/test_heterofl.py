"""HeteroFL against networks that are really cut, and its averages by hand, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from chronofed import (
    Classification,
    Cnn,
    Cnn1d,
    Custom,
    Dataset,
    FedAvg,
    HeteroFL,
    Method,
    Mime,
    Mlp,
    Private,
    Progressive,
    ResNet18,
    Samples,
    Scaffold,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError
from chronofed.methods.layers import levels
from chronofed.models.objective import TorchObjective
from chronofed.scenarios.base import Plan, Visit
from tests.helpers.world import blobs

DATA = blobs(dtype=torch.float64)
HIDDEN = (6, 4)
LR, STEPS = 0.3, 5


def double_mlp(shape, classes):
    return Mlp(HIDDEN).build(shape, classes).double()


def double_sigmoid(shape, classes):
    model = double_mlp(shape, classes)
    for number in (1, 2):
        setattr(model.features, f"relu{number}", torch.nn.Sigmoid())
    return model


TASK = Classification(DATA, Custom(f"{__name__}:double_mlp"))
SIGMOID = Classification(DATA, Custom(f"{__name__}:double_sigmoid"))


class World:
    """Client *i* has the classes ``held[i]``: 20 samples of each, and 5 more times its number."""

    persistent, rounds = True, None

    def __init__(self, *held, clients=None):
        self.held, self.clients = held, len(held)
        self.names = clients or range(len(held))

    def at(self, t):
        labels = DATA.train.y.numpy()
        return Plan(t, {i: self.visit(labels, *pair) for i, pair in enumerate(self.pairs)})

    @property
    def pairs(self):
        return list(zip(self.names, self.held, strict=True))

    @staticmethod
    def visit(labels, name, classes):
        rows = [np.flatnonzero(labels == c)[100 * name :][: 20 + 5 * name] for c in classes]
        return Visit(np.concatenate(rows), 0)


ALL = (0, 1, 2)


def trained(backbone, world, rounds=1, start=None, average="clients", on=TASK, **settings):
    train = Train(lr=LR, steps=STEPS, batch_size="full", **settings)
    method = Method(backbone, average=average)
    return [*run(method, world, on, rounds=rounds, train=train, start=start)]


def tensors(params):
    objective = TASK.objective()
    return {n: params[s].view(objective.shapes[n]) for n, s in objective.names.items()}


LAYERS = ("features.fc1", "features.fc2", "fc")


def really_cut(
    params, world, rate, scaler=True, present=None, decay=0.0, momentum=0.0, bend=functional.relu
):
    """Train a network of the first units of each layer with torch, and return its tensors."""
    whole, units = tensors(params), [5, *(-int(-rate * n // 1) for n in HIDDEN), 3]
    cut = [
        part.clone().requires_grad_()
        for name, inputs, outputs in zip(LAYERS, units, units[1:], strict=False)
        for part in (whole[f"{name}.weight"][:outputs, :inputs], whole[f"{name}.bias"][:outputs])
    ]
    rows = world.at(0).visits[0].indices
    x, y = DATA.train.x[rows], DATA.train.y[rows]
    mask = torch.tensor([float(c in (present or ALL)) for c in ALL], dtype=torch.float64)
    speeds = [torch.zeros_like(part) for part in cut]
    for _ in range(STEPS):
        h = x
        for weight, bias in zip(cut[:-2:2], cut[1:-2:2], strict=True):
            h = bend((h @ weight.T + bias) / (rate if scaler else 1))
        loss = functional.cross_entropy((h @ cut[-2].T + cut[-1]) * mask, y)
        slopes = torch.autograd.grad(loss, cut)
        with torch.no_grad():
            for part, slope, speed in zip(cut, slopes, speeds, strict=True):
                part -= LR * speed.mul_(momentum).add_(slope + decay * part)
    return [part.detach() for part in cut]


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.3, 0.01])
@pytest.mark.parametrize(
    "how", [{}, {"scaler": False}, {"decay": 0.1, "momentum": 0.5}], ids=["", "plain", "hard"]
)
def test_a_cut_client_is_a_network_really_cut(rate, how):
    """And all entries that it does not hold stay, bit for bit."""
    start, alone = TASK.initial(0)[0], World(ALL)
    settings = {"momentum": how.get("momentum", 0.0), "weight_decay": how.get("decay", 0.0)}
    backbone = HeteroFL(rates=(rate,), scaler=how.get("scaler", True))
    (last,) = trained(backbone, alone, **settings)
    got, before = tensors(last.params), tensors(start)
    parts = really_cut(start, alone, rate, **how)
    for name, want in zip(
        (f"{n}.{p}" for n in LAYERS for p in ("weight", "bias")), parts, strict=True
    ):
        corner = tuple(slice(n) for n in want.shape)
        # Parameters are below 1, so this is a few units in the last place.
        torch.testing.assert_close(got[name][corner], want, rtol=0, atol=3e-16)
        outside = torch.ones_like(got[name], dtype=torch.bool)
        outside[corner] = False
        assert torch.equal(got[name][outside], before[name][outside]), name


def test_a_cut_unit_that_is_not_0_sends_nothing_on():
    """A sigmoid of nothing is a half, whose weights must stay cut."""
    start, alone = SIGMOID.initial(0)[0], World(ALL)
    (last,) = trained(HeteroFL(rates=(0.5,)), alone, on=SIGMOID)
    parts = really_cut(start, alone, 0.5, bend=torch.sigmoid)
    got = tensors(last.params)
    for name, want in zip(("features.fc1.weight", "fc.weight"), (parts[0], parts[-2]), strict=True):
        corner = tuple(slice(n) for n in want.shape)
        torch.testing.assert_close(got[name][corner], want, rtol=0, atol=1e-15)


@pytest.mark.parametrize("present", [(0,), (0, 2)], ids=str)
def test_the_masked_loss_sets_logits_to_0(present):
    """Not to minus infinity: absent classes still take probability. Their rows stay."""
    start, few = TASK.initial(0)[0], World(present)
    (last,) = trained(HeteroFL(rates=(0.5,)), few)
    parts = really_cut(start, few, 0.5, present=present)
    got, before = tensors(last.params), tensors(start)
    torch.testing.assert_close(
        got["fc.weight"][list(present), :2], parts[-2][list(present)], rtol=0, atol=1e-15
    )
    torch.testing.assert_close(got["features.fc1.weight"][:3], parts[0], rtol=0, atol=1e-15)
    absent = [c for c in ALL if c not in present]
    for name in ("fc.weight", "fc.bias"):
        assert torch.equal(got[name][absent], before[name][absent])
    (other,) = trained(HeteroFL(rates=(0.5,), masked_loss=False), few)
    assert not torch.equal(tensors(other.params)["fc.bias"][absent], before["fc.bias"][absent])


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_two_rounds_by_hand(average):
    """Every entry is the mean over the clients that hold it and, in the last layer, have its class."""
    rates, held = (1.0, 0.5, 0.25), ((0, 1), (1, 2), (0, 1, 2))
    backbone, sizes = HeteroFL(rates=rates), [40, 50, 90]
    weights = sizes if average == "samples" else [1, 1, 1]
    together = World(*held)
    ends = trained(backbone, together, 2, average=average)
    params, objective = TASK.initial(0)[0], TASK.objective()
    level = levels(objective)
    classes = torch.full_like(level, -1)
    classes[objective.names["fc.weight"]] = torch.arange(3.0).double().repeat_interleave(4)
    classes[objective.names["fc.bias"]] = torch.arange(3.0).double()
    for end in ends:
        sums, total = torch.zeros_like(params), torch.zeros_like(params)
        for name, rate in enumerate(rates):
            only, first = World(held[name], clients=[name]), replace(ends[0], round=0)
            server = {**first.server, "params": params}
            (alone,) = trained(
                HeteroFL(rates=(rate,)), only, start=replace(first, server=server, client_states={})
            )
            has = (level < rate) & torch.isin(classes, torch.tensor([-1.0, *held[name]]).double())
            sums += weights[name] * has * (alone.params - params)
            total += weights[name] * has
        params = params + torch.where(total > 0, sums / total, 0)
        torch.testing.assert_close(end.params, params, rtol=0, atol=1e-15)


@pytest.mark.parametrize("inner", [FedAvg(), Scaffold(), Mime(), FedAvg(server_lr=0.5)], ids=repr)
def test_all_rates_1_is_the_inner_backbone(inner):
    """Bit for bit, its state on server and clients included."""
    world, settings = World(ALL, (0, 1)), {"average": "clients"}
    whole = trained(HeteroFL(inner, (1.0,), masked_loss=False), world, 3, **settings)
    for one, other in zip(whole, trained(inner, world, 3, **settings), strict=True):
        for name, tensor in other.server.items():
            assert torch.equal(one.server[name], tensor), name
        assert str(one.client_states) == str(other.client_states)


@pytest.mark.parametrize("inner", [FedAvg(), Scaffold(), Mime()], ids=repr)
def test_entries_that_nobody_holds_stay(inner):
    start = TASK.initial(0)[0]
    last = trained(HeteroFL(inner, (0.5, 0.25)), World(ALL, ALL), 3)[-1]
    free = levels(TASK.objective()) < 0.5
    assert torch.equal(last.params[~free], start[~free])
    assert (last.params[free] != start[free]).float().mean() > 0.7  # one unit is dead


def held_by(settings, shape, rate):
    """A model in float64, and the mask of what a rate holds."""
    torch.manual_seed(3)
    model = settings.build(shape, 3).double()
    objective = TorchObjective(model)
    return objective, levels(objective) < rate


@pytest.mark.parametrize(
    ("whole", "half", "shape"),
    [
        (Mlp((6, 4)), Mlp((3, 2)), (5,)),
        (Cnn((4, 6), 8), Cnn((2, 3), 4), (1, 8, 8)),
        (Cnn1d((4, 6), 8), Cnn1d((2, 3), 4), (8, 2)),
        (ResNet18(4, norm="none"), ResNet18(2, norm="none"), (1, 6, 6)),
        (ResNet18(8, norm="group"), ResNet18(4, norm="group"), (1, 4, 4)),
    ],
    ids=lambda part: type(part).__name__ if not isinstance(part, tuple) else "",
)
def test_what_half_a_network_holds(whole, half, shape):
    """As many parameters as half the width has, and the same outputs; GroupNorm is cut between groups."""
    objective, held = held_by(whole, shape, 0.5)
    small, _ = held_by(half, shape, 1.0)
    params = objective.flat.read()
    assert int(held.sum()) == small.flat.size
    x = torch.randn(4, *shape, dtype=torch.float64)
    got = objective.logits(params * held, x)
    torch.testing.assert_close(got, small.logits(params[held], x), rtol=0, atol=1e-12)
    assert not torch.allclose(got, objective.logits(params, x))


# What travels

IMAGES = Dataset(
    "grey",
    *(Samples(torch.zeros(40, 1, 28, 28, dtype=torch.uint8), torch.arange(40) % 10),) * 2,
    tuple("abcdefghij"),
)
KILOBYTES = {1.0: 636.0, 0.5: 318.0, 0.25: 159.0, 0.125: 79.5, 0.0625: 41.4}


@pytest.mark.parametrize(("rate", "kilobytes"), KILOBYTES.items(), ids=str)
def test_bytes_by_width(rate, kilobytes):
    """An MLP 784-200-10: the figures of docs/related.md."""

    class One:
        persistent, rounds, clients = True, None, 1

        def at(self, t):
            return Plan(t, {0: Visit(np.arange(40), 0)})

    task, train = Classification(IMAGES, Mlp((200,))), Train(steps=1, batch_size=4)
    (last,) = run(Method(HeteroFL(rates=(rate,))), One(), task, rounds=1, train=train)
    units = -int(-rate * 200 // 1)
    size = 4 * (784 * units + units + 10 * units + 10)
    assert last.traffic.down_bytes == size + 8  # and the rate
    assert last.traffic.up_bytes == size + 8 * 10  # and the classes
    assert size / 1000 == pytest.approx(kilobytes, abs=0.1)


def test_traffic_is_the_sum_of_the_clients():
    rates = (1.0, 0.5, 0.25)
    last = trained(HeteroFL(rates=rates), World(ALL, ALL, ALL, ALL))[-1]
    sizes = [int((levels(TASK.objective()) < rates[i % 3]).sum()) for i in range(4)]
    assert sizes == [6 * 6 + 7 * 4 + 5 * 3, 6 * 3 + 4 * 2 + 3 * 3, 6 * 2 + 3 * 1 + 2 * 3, 79]
    assert last.traffic.down_bytes == 8 * (sum(sizes) + 4)
    assert last.traffic.up_bytes == 8 * (sum(sizes) + 4 * 3)


# Refusals


def with_batch_norm(shape, classes):
    layers = torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, classes)
    return torch.nn.Sequential(*layers).double()


def once(backbone, task=TASK, **method):
    settings = Train(steps=1)
    return [*run(Method(backbone, **method), World(ALL, ALL), task, rounds=1, train=settings)]


def test_batch_norm_is_refused_where_a_client_is_cut():
    task = Classification(DATA, Custom(f"{__name__}:with_batch_norm"))
    with pytest.raises(IncompatibleError, match=r"BatchNorm does not allow.*or rates = \[1\.0\]"):
        once(HeteroFL(), task)
    once(HeteroFL(rates=(1.0,)), task)


def test_a_model_without_a_chain_of_layers_is_refused():
    with pytest.raises(IncompatibleError, match=r"'columns\.1\.fc1' has 5 inputs and .* 3 outputs"):
        once(HeteroFL(), Classification(blobs(), Progressive(2, (4,))))


class HalfUpdate(FedAvg, tag="test-half-update"):
    """Sends a part of its update."""

    def finish(self, params, server, client, local):
        upload, state = super().finish(params, server, client, local)
        return {"delta": upload["delta"][:3]}, state

    def unpack(self, upload, params):
        return {"delta": torch.cat([upload["delta"], torch.zeros_like(params[3:])])}


def test_an_inner_backbone_that_sends_a_part_is_refused():
    with pytest.raises(IncompatibleError, match="HeteroFL needs the update of the whole model"):
        once(HeteroFL(HalfUpdate()))


@pytest.mark.parametrize("rates", [(1.0, 0.5), (0.5,)], ids=str)
def test_private_is_refused(rates):
    """With parts of different sizes, and where nobody may know who sent a part."""
    private = Private(HeteroFL(rates=rates), bounds={"classes": 2.0})
    with pytest.raises(IncompatibleError, match="none that is private"):
        once(private, average="clients")


def test_settings():
    with pytest.raises(ValueError, match=r"^HeteroFL\.rates: empty; name at least one rate"):
        HeteroFL(rates=())
    with pytest.raises(ValueError, match=r"^HeteroFL\.rates: .* <= 1"):
        HeteroFL(rates=(1.5,))
    with pytest.raises(ValueError, match=r"^HeteroFL\.server_lr: set server_lr of the inner"):
        HeteroFL(server_lr=0.5)

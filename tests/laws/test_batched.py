"""The batched engine: what the serial one computes, up to rounding, for every method that it takes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

from chronofed import (
    Adaptive,
    Backbone,
    Classification,
    CoreSet,
    Correlated,
    Dataset,
    Ditto,
    FedAvg,
    FedOpt,
    FedProx,
    Fisher,
    Fixed,
    Hutchinson,
    Merged,
    Method,
    Mime,
    MimeLite,
    Mlp,
    Optimal,
    Samples,
    Scaffold,
    Scenario,
    Taylor,
    Train,
    Uniform,
    run,
)
from chronofed.clients.messages import Order
from chronofed.clients.state import ClientState
from chronofed.core.errors import IncompatibleError
from chronofed.core.stacking import stacked
from chronofed.engines import BatchedEngine
from chronofed.engines.batched.engine import chunk_size
from chronofed.engines.batched.kernel import BatchedMlp
from chronofed.engines.batched.layout import Layout, layout_of
from chronofed.engines.batched.support import unsupported
from chronofed.methods.memories.curvature import SquaredGradient
from chronofed.methods.surrogate import Surrogate
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import encode
from chronofed.scenarios import Everyone
from chronofed.scenarios.base import Plan, Visit
from tests.helpers.methods import every_method, name, quick_pairs, server_samples
from tests.helpers.world import blobs

HARD = Train(lr=0.1, batch_size=8, epochs=2, momentum=0.5, weight_decay=0.01, slow=0.5)
TRAINS = {
    "plain": Train(lr=0.1, batch_size=8, epochs=2),
    "decay": Train(lr=0.1, batch_size=8, steps=3, weight_decay=0.05),
    "slow": Train(lr=0.1, batch_size=8, steps=6, slow=0.7),
    "momentum": Train(lr=0.1, batch_size=16, momentum=0.9),
    "union": Train(lr=0.1, batch_size=8, epoch="union"),
    "full": Train(lr=0.1, batch_size="full", steps=2),
}
PARTLY = Taylor(layers={"*": 0.7})
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True)
class Uneven:
    """Clients of very different sizes, with new data each round; every third comes one round later."""

    sizes: tuple[int, ...] = (40, 3, 17, 16, 1, 29, 8)
    clients = property(lambda self: len(self.sizes))
    rounds = None
    persistent = True

    def candidates(self, round_):
        return np.array([c for c in range(self.clients) if c % 3 or round_])

    def visit(self, client, round_):
        rng = np.random.default_rng([client, round_])
        return Visit(np.sort(rng.choice(1200, self.sizes[client], replace=False)), round_)


WORLD = Scenario(Uneven(), Everyone())


def double_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Mlp((8, 6)).build(shape, classes).double()


def with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, classes))


TASKS = {
    torch.float64: Classification(blobs(dtype=torch.float64), Custom(f"{__name__}:double_mlp")),
    torch.float32: Classification(blobs(), Mlp((8,))),
}


def last_of(method, task, engine=None, train=HARD, rounds=3, start=None, seed=0):
    *_, last = run(
        method,
        WORLD,
        task,
        rounds=rounds,
        train=train,
        engine=engine,
        start=start,
        seed=seed,
        server_samples=server_samples(method, task),
    )
    return last


def agree(got, want, limit: float) -> None:
    """Every tensor of two snapshots, relative to its size; everything else is equal."""
    assert got.traffic == want.traffic
    one, other = load(encode(got)), load(encode(want))
    assert one.keys() == other.keys()
    for place, tensor in other.items():
        assert one[place].dtype == tensor.dtype, place
        assert one[place].shape == tensor.shape, place
        if tensor.numel():
            off = (one[place].double() - tensor.double()).abs().max()
            assert off <= limit * max(1.0, tensor.double().abs().max()), (place, float(off))


def check(method, train=HARD, dtype=torch.float64, **engine) -> None:
    task = TASKS[dtype]
    assert unsupported(method, task) is None
    batched = BatchedEngine(task, workers=2, **engine)
    agree(last_of(method, task, batched, train), last_of(method, task, None, train), LIMIT[dtype])
    batched.close()


# Quick are every other part in float64, where the limit is strict, and others in float32.
AGREEMENTS = [
    pytest.param(*param.values, dtype, id=f"{param.id}-{dtype}", marks=param.marks)
    for offset, dtype in enumerate(LIMIT)
    for param in every_method(offset)
]


# Their steps have a length of their own, need products of whole gradients, or several of one mini-batch.
ONE_BY_ONE = {"FedLin", "PFedMe", "FedGlomo", "AGem", "Gem", "Balanced", "FedReg", "FedRod"}
# They start elsewhere than at the server's model, or note something there.
OWN_START = {"Additive", "Cwr", "FedRobust", "HeteroFL", "Pnn", "Pvi", "Si"}


def refusal(backbone: str) -> str | None:
    """The reason for which a backbone of this name is refused, if it is."""
    if backbone not in ONE_BY_ONE | OWN_START:
        return None
    step = "start" if backbone in OWN_START else "gradient"
    return f"{backbone}.{step} is not declared to work on stacked clients (@stacked)"


@pytest.mark.parametrize(("method", "dtype"), AGREEMENTS)
def test_every_method_agrees_with_the_serial_engine_or_is_refused(method, dtype):
    backbone = name(method.backbone)
    if refusal(backbone):
        assert unsupported(method, TASKS[dtype]) == refusal(backbone)
    elif getattr(method.memory, "keep_logits", 0.0):
        reason = "Surrogate.keep is set, which the kernel does not read"
        assert unsupported(method, TASKS[dtype]) == reason
    elif method.loss is not None:
        reason = "Method.loss is set, which the kernel does not read"
        assert unsupported(method, TASKS[dtype]) == reason
    elif method.backbone.several_models:
        assert unsupported(method, TASKS[dtype]).startswith(f"{backbone}.")
    elif method.memory.teaches:
        reason = f"{name(method.memory)} recalls teachers, which the kernel does not read"
        assert unsupported(method, TASKS[dtype]) == reason
    else:
        check(method, dtype=dtype)


KINDS = [Method(b, m, Uniform()) for b in (FedAvg(), Scaffold()) for m in (CoreSet(5), PARTLY)]


@pytest.mark.parametrize(
    ("method", "train"),
    [
        pytest.param(m, train, marks=marks, id=f"{name(m.backbone)}-{name(m.memory)}-{label}")
        for m, (label, train), marks in quick_pairs(KINDS, list(TRAINS.items()))
    ],
)
def test_every_kind_of_training(method, train):
    check(method, train)


@pytest.mark.some(4)
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("backbone", [FedAvg(), Ditto()], ids=name)
def test_any_number_of_clients_at_a_time(backbone, chunk):
    check(Method(backbone, CoreSet(size=5)), chunk=chunk)


@pytest.mark.some(2)
@pytest.mark.parametrize("inner", [Scaffold(option="I"), Ditto(), Mime(), FedProx()], ids=name)
def test_wrapped_backbones(inner):
    check(Method(FedOpt(backbone=inner)))
    check(Method(inner), TRAINS["plain"])


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "weights",
    [Merged(), Fixed(0.5), Optimal(1.0, 0.1), Correlated(1.0, 0.1, 0.9), Adaptive()],
    ids=name,
)
@pytest.mark.parametrize("memory", [CoreSet(size=5), Taylor()], ids=name)
def test_every_weighting(memory, weights):
    check(Method(MimeLite(), memory, weights))


class OwnTaylor(Taylor, tag=True):
    """Expansions that stay on the client: every client descends a quadratic of its own."""

    location = "client"


@pytest.mark.parametrize("mode", ["theory", "practice"])
def test_a_quadratic_for_every_client(mode):
    check(Method(FedProx(), OwnTaylor(layers={"*": 0.7}, mode=mode), Uniform()))


class Partial(Taylor, tag=True):
    """Remembers half of a layer: no step of a whole layer can have it in it."""

    def observe(self, objective, params, samples, generator):
        record = super().observe(objective, params, samples, generator)
        half = record["linear"].numel() // 2
        (start, _), *_ = record["spans"].tolist()
        cut = {name: record[name][:half] for name in ("linear", "diagonal", "gradient")}
        return {**record, **cut, "spans": torch.tensor([[start, start + half]])}


@pytest.mark.some(5)
@pytest.mark.parametrize("train", [TRAINS["plain"], TRAINS["slow"]], ids=["alike", "unlike"])
@pytest.mark.parametrize("memory", [Taylor(), OwnTaylor(), Partial()], ids=name)
@pytest.mark.parametrize("dtype", LIMIT, ids=str)
def test_a_past_in_fused_steps(dtype, memory, train):
    check(Method(FedAvg(), memory, Uniform()), train, dtype)


def test_alike_clients_with_a_past_train_as_one_call(monkeypatch):
    task, seen = TASKS[torch.float64], []
    whole = BatchedMlp.descend_

    def descend_(self, params, schedule, lr, decay, quadratic):
        seen.append([bool(part) for part in quadratic or ()])
        whole(self, params, schedule, lr, decay, quadratic)

    monkeypatch.setattr(BatchedMlp, "descend_", descend_)
    world = Scenario(Uneven((8, 8, 8, 8)), Everyone())
    for _ in run(
        Method(FedAvg(), Taylor(), Uniform()), world, task, rounds=3, engine=BatchedEngine(task)
    ):
        pass
    assert seen[0] == []  # nothing to remember yet
    assert seen[-1] == [False] * 4 + [True] * 2  # the last layer's weights and bias


class Counting(Taylor, tag=True):
    """Counts how often a client is observed alone."""

    alone: ClassVar[list[int]] = []

    @stacked
    def observe(self, objective, params, samples, generator):
        self.alone.append(len(samples))
        return super().observe(objective, params, samples, generator)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("samples", [None, 5])
@pytest.mark.parametrize("curvature", [Fisher(), SquaredGradient(), Hutchinson()], ids=name)
def test_clients_observed_together(curvature, samples, dtype):
    for kind in (Taylor, OwnTaylor):
        memory = kind(curvature, {"fc.*": 0.5}, samples=samples)
        check(Method(FedAvg(), memory, Uniform()), TRAINS["plain"], dtype)


@pytest.mark.parametrize(("curvature", "alone"), [(Fisher(), 0), (Hutchinson(), 7)], ids=str)
def test_who_can_be_observed_together_is(curvature, alone):
    task, method = TASKS[torch.float64], Method(FedAvg(), Counting(curvature))
    Counting.alone.clear()
    last_of(method, task, BatchedEngine(task), rounds=1)
    assert len(Counting.alone) == min(alone, len(WORLD.at(0).visits))


class Hoarder(Backbone, tag=True):
    """Keeps and sends the model itself, which is a view of memory that will be used again."""

    stateful = True

    def finish(self, params, server, client, local):
        upload, _ = super().finish(params, server, client, local)
        return {**upload, "all": params}, {"half": params[: len(params) // 2]}

    def aggregate(self, server, uploads):
        models = torch.stack([upload["all"] for _, upload in uploads])
        return {**super().aggregate(server, uploads), "mean": models.mean(0)}


class Diary(CoreSet, tag=True):
    """Remembers a part of the model with the samples: a view, too."""

    def observe(self, objective, params, samples, generator):
        return {**super().observe(objective, params, samples, generator), "w": params[:4]}


def test_what_is_kept_stays_as_it_is():
    check(Method(Hoarder(), CoreSet(size=5)))
    check(Method(FedAvg(), Diary(size=5)))


def test_a_personal_model_does_not_hold_others_in_memory():
    engine = BatchedEngine(TASKS[torch.float64], workers=1)
    last_of(Method(Ditto()), engine.task, engine)
    for client_state in engine.client_states.values():
        personal = client_state.backbone_state["personal"]
        assert personal.untyped_storage().nbytes() == personal.nbytes


def test_bytes():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (1200, 1, 4, 4), generator=generator, dtype=torch.uint8)
    samples = Samples(x, torch.randint(3, (1200,), generator=generator))
    task = Classification(Dataset("bytes", samples, samples, ("a", "b", "c")), Mlp((8,)))
    engine = BatchedEngine(task, workers=2)
    for method in (Method(), Method(Scaffold(), CoreSet(size=5))):
        agree(last_of(method, task, engine), last_of(method, task), 1e-5)


@pytest.mark.parametrize("method", [Method(Ditto(), CoreSet()), Method(Mime(), Taylor())], ids=str)
def test_same_bits_for_any_number_of_workers_and_after_a_resumption(method):
    task = TASKS[torch.float32]
    first, *others = (
        encode(last_of(method, task, BatchedEngine(task, workers, chunk=2)))
        for workers in (1, 2, 5)
    )
    assert others == [first, first]
    half = last_of(method, task, BatchedEngine(task, chunk=2), rounds=1)
    assert encode(last_of(method, task, BatchedEngine(task, chunk=2), start=half)) == first


def test_random_numbers_of_others_are_left_alone():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    last_of(Method(Mime(), CoreSet()), TASKS[torch.float32], BatchedEngine(TASKS[torch.float32]))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


class Clipped(FedProx, tag=True):
    """Not elementwise, and does not say that it were."""

    def direction(self, grad, params, server, client):
        return super().direction(grad, params, server, client) / grad.norm()


@pytest.mark.parametrize("backbone", [Clipped(), FedOpt(backbone=Clipped())], ids=name)
def test_a_backbone_that_does_not_say_it_can_be_stacked_is_refused(backbone):
    task, method = TASKS[torch.float32], Method(backbone)
    reason = "Clipped.direction is not declared to work on stacked clients (@stacked)"
    assert unsupported(method, task) == reason
    with pytest.raises(IncompatibleError, match=r"engine batched: Clipped.direction"):
        last_of(method, task, BatchedEngine(task))


def test_a_model_that_cannot_be_batched_is_refused(data):
    task = Classification(data, Custom(f"{__name__}:with_dropout"))
    reason = "the model has a Dropout: only linear models and MLPs are batched"
    assert unsupported(Method(), task) == reason
    with pytest.raises(IncompatibleError, match=f"engine batched: {reason}"):
        last_of(Method(), task, BatchedEngine(task))


class Greedy(Backbone, tag=True):
    """Two mini-batches a step."""

    @stacked
    def gradient(self, params, server, local):
        return local.stochastic_gradient(params) + local.stochastic_gradient(params)


class Odd(Surrogate):
    """A surrogate that may do anything."""


class Inventive(CoreSet, tag=True):
    """Remembers in its own way."""

    def recall(self, kept, weights, moment):
        return Odd()


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Method(Greedy()), "the backbone draws several mini-batches per step"),
        (Method(FedAvg(), Inventive()), "the memory's surrogate is of a type of its own"),
    ],
    ids=["backbone", "memory"],
)
def test_what_turns_out_later_is_refused_too(method, reason):
    task = TASKS[torch.float32]
    with pytest.raises(IncompatibleError, match=f"engine batched: {reason}"):
        last_of(method, task, BatchedEngine(task))


def test_an_engine_can_be_used_after_it_was_closed():
    task = TASKS[torch.float32]
    engine = BatchedEngine(task, workers=1)
    first = encode(last_of(Method(), task, engine))
    engine.close()
    engine.close()
    assert encode(last_of(Method(), task, engine)) == first


def test_chunks_fit_into_the_cache():
    small, large = (_layout(Mlp((200,)).build(shape, 10)) for shape in ((5,), (1, 28, 28)))
    assert chunk_size(small, Train(batch_size=32), 50) == 32
    assert chunk_size(large, Train(batch_size=32), 50) == 11
    assert chunk_size(large, Train(batch_size=32), 1) == 13
    assert chunk_size(large, Train(batch_size="full"), 10**6) == 1


@pytest.mark.parametrize(
    ("clients", "chunk", "wanted"),
    [
        (3, None, [3]),
        (7, None, [3, 4]),
        (12, None, [3, 3, 3, 3]),
        (7, 2, [1, 2, 2, 2]),
        (7, 9, [7]),
    ],
)
def test_clients_are_shared_evenly(clients, chunk, wanted):
    engine = BatchedEngine(TASKS[torch.float32], chunk=chunk)
    visits = {c: Visit(np.arange(c + 1), 0) for c in range(clients)}
    orders = [Order(0, c, {}, torch.empty(0), Merged(), None, Train(), 0) for c in visits]
    chunks = list(engine._chunks(orders, Plan(0, visits)))
    assert [len(chunk) for chunk in chunks] == wanted
    assert [o.client for chunk in chunks for o in chunk] == list(reversed(range(clients)))


def test_newcomers_train_together_since_they_replay_nothing():
    engine = BatchedEngine(
        TASKS[torch.float32], chunk=2, client_states={c: ClientState() for c in (1, 2, 4)}
    )
    visits = {c: Visit(np.arange(8 if c == 5 else 5), 0) for c in range(6)}
    orders = [Order(0, c, {}, torch.empty(0), Merged(), None, Train(), 0) for c in visits]
    chunks = engine._chunks(orders, Plan(0, visits))
    assert [[order.client for order in chunk] for chunk in chunks] == [[5, 1], [2, 4], [0, 3]]


def _layout(module: nn.Module) -> Layout:
    layout = layout_of(TorchObjective(module))
    assert isinstance(layout, Layout)
    return layout

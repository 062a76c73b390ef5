"""The laws of the product space in a world of numbers: every backbone x memory learns a linear target."""

from functools import cache
from itertools import islice

import pytest
import torch
from torch import nn

from chronofed import (
    Absolute,
    Classification,
    CoreSet,
    CrossEntropy,
    Experiment,
    FedAvg,
    FedRep,
    Fisher,
    Forget,
    Gaussian,
    Generative,
    Huber,
    Linear,
    Method,
    Mlp,
    Optimal,
    Quantile,
    Regression,
    Remote,
    Scaffold,
    Squared,
    Subsets,
    Taylor,
    Train,
    run,
)
from chronofed.clients.store import inspect
from chronofed.core.errors import IncompatibleError
from chronofed.data.client_source import TableFile
from chronofed.data.client_source.rows import SourceRows
from chronofed.engines import BatchedEngine
from chronofed.engines.batched.support import unsupported
from chronofed.flower import server_app
from chronofed.flower.client_app import make_node
from chronofed.flower.settings import Federation
from chronofed.methods.method import check_task
from chronofed.models.losses import Loss
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.fake_transport import FakeClock, FakeTransport
from tests.helpers.methods import BACKBONES, MEMORIES, name, quick_pairs, server_samples
from tests.helpers.methods import every_method as methods
from tests.helpers.world import blobs, same, scores_of, slopes

TRAIN = Train(lr=0.1, batch_size=16, steps=4)
DATA = slopes()
TASK = Regression(DATA, Linear())
WORLD = Subsets(clients=4, subsets=6, client_alpha=1.0).on(DATA, seed=0)

# A local loss and a head for classes are refused.
FITTING, OTHERS = [], []
for param in methods():
    (chosen,) = param.values
    fits = chosen.loss is None and not isinstance(chosen.head, Gaussian)
    (FITTING if fits else OTHERS).append(param)
every_method = pytest.mark.parametrize("method", FITTING)


@pytest.mark.parametrize("method", OTHERS)
def test_parts_for_classes_are_refused(method):
    with pytest.raises(IncompatibleError, match=r"^method\.(loss|head): "):
        check_task(method, regression=True)
    check_task(method, regression=False)
    with pytest.raises(IncompatibleError, match=r"^method\.(loss|head): "):
        after(1, method)


def rounds(method, task=TASK, engine=None, start=None, seed=0, train=TRAIN):
    samples = server_samples(method, task)
    return run(
        method,
        WORLD,
        task,
        train=train,
        engine=engine,
        start=start,
        seed=seed,
        server_samples=samples,
    )


def after(count, method, **others):
    start = others.get("start")
    return list(islice(rounds(method, **others), count - (start.round if start else 0)))[-1]


@cache
def straight(method, count):
    return after(count, method)


@pytest.mark.some(4)
@every_method
def test_same_seed_same_bits_and_resuming_equals_the_straight_run(method):
    whole = after(4, method)
    assert same(whole, straight(method, 4))
    half = decode(encode(straight(method, 2)))
    assert same(after(4, method, start=half), whole)


@pytest.mark.some(6)
@every_method
def test_neither_workers_nor_the_order_of_results_matter(method):
    assert same(after(4, method, engine=ShuffledWorkers(TASK)), straight(method, 4))


@pytest.mark.some(4)
@every_method
def test_learns(method):
    """The variance of the target is about 1; without learning, the loss is about a half."""
    # The head and the body of FedRep share the steps of a round.
    rounds = 24 if isinstance(method.backbone, FedRep) else 12
    for score in scores_of(TASK, WORLD, straight(method, rounds)):
        assert score.loss < 0.1


@pytest.mark.parametrize(
    ("backbone", "memory"),
    [
        pytest.param(b, m, marks=marks, id=f"{name(b)}-{name(m)}")
        for b, m, marks in quick_pairs(BACKBONES, MEMORIES, 1)
    ],
)
def test_a_past_without_weight_is_forgotten(backbone, memory):
    weightless = Method(backbone, memory, Optimal(time_drift_sq=0.0, information_loss_sq=1.0))
    assert torch.equal(after(3, weightless).params, straight(Method(backbone, Forget()), 3).params)


def double_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Mlp((8, 6)).build(shape, classes).double()


EXACT = slopes(dtype=torch.float64)
LOSSES = [Squared(), Absolute(), Huber(0.3), Quantile(0.8)]
HARD = Train(lr=0.1, batch_size=8, epochs=2, momentum=0.5, weight_decay=0.01, slow=0.5)
PLAIN = Train(lr=0.1, batch_size=8, epochs=2)


def agrees(task, method, train, limit):
    one = after(3, method, task=task, train=train)
    with BatchedEngine(task) as engine:
        other = after(3, method, task=task, train=train, engine=engine)
    torch.testing.assert_close(other.params, one.params, rtol=limit, atol=limit)
    assert one.client_states.keys() == other.client_states.keys()
    for kept, again in zip(one.past, other.past, strict=True):
        torch.testing.assert_close(again.record, kept.record, rtol=limit, atol=limit)


@pytest.mark.some(4)
@every_method
def test_the_batched_engine_agrees(method):
    """In double precision up to 1e-10, as for classes."""
    task = Regression(EXACT, Custom(f"{__name__}:double_mlp"))
    if unsupported(method, task) is not None:
        pytest.skip("the batched engine refuses this backbone; see test_batched")
    agrees(task, method, HARD, 1e-10)


@pytest.mark.parametrize("train", [PLAIN, HARD], ids=["fused", "momentum"])
@pytest.mark.parametrize("loss", LOSSES, ids=name)
@pytest.mark.some(3)
def test_the_batched_engine_knows_every_loss(loss, train):
    task = Regression(EXACT, Custom(f"{__name__}:double_mlp"), loss=loss)
    agrees(task, Method(memory=Taylor(curvature=Fisher(), layers={"*": 0.7})), train, 1e-10)
    agrees(task, Method(Scaffold(), CoreSet(5)), train, 1e-10)


@pytest.mark.parametrize("train", [PLAIN, HARD], ids=["fused", "momentum"])
def test_the_batched_engine_knows_class_weights(train):
    data = blobs(dtype=torch.float64)
    loss = CrossEntropy({"a": 3.0, "c": 0.5})
    task = Classification(data, Custom(f"{__name__}:double_mlp"), loss=loss)
    plain = Classification(data, Custom(f"{__name__}:double_mlp"))
    method = Method(memory=Taylor(curvature=Fisher(), layers={"*": 0.7}))
    agrees(task, method, train, 1e-10)
    one, other = (after(1, method, task=each, train=train).params for each in (task, plain))
    assert (one - other).abs().max() > 1e-3


class Cubic(Loss, tag="cubic"):
    """A loss of the user's own."""

    def __call__(self, outputs, targets):
        return (outputs[:, 0] - targets).abs() ** 3


def test_the_batched_engine_refuses_another_loss():
    task = Regression(DATA, Linear(), loss=Cubic())
    assert unsupported(Method(), task) == "the loss is Cubic, which the kernel does not compute"
    assert torch.isfinite(after(2, Method(), task=task).params).all()


@pytest.mark.parametrize("loss", LOSSES, ids=name)
@pytest.mark.parametrize("memory", [Generative(size=8, steps=3), CoreSet(4, "balanced")], ids=name)
def test_memories_of_samples_replay_numbers(memory, loss):
    snapshot = after(3, Method(FedAvg(), memory), task=Regression(DATA, Linear(), loss=loss))
    kept = [item.record["y"] for s in snapshot.client_states.values() for item in s.items]
    assert kept
    assert all(y.dtype == torch.float32 for y in kept)
    assert same(decode(encode(snapshot)), snapshot)


SOURCE = """
[source]
kind = "table-file"
path = "rows-{client}.csv"
mean = 50.0
deviation = 10.0
time = "when"
"""


def rows(client, count):
    lines = [
        f"2020-01-{k + 1:02},{k % 5},{(k + client) % 3},{40 + 5 * (k % 5)}" for k in range(count)
    ]
    return "\n".join(["when,a,b,y", *lines]) + "\n"


def test_clients_elsewhere_bring_numbers(tmp_path):
    """Orders, results, screening and client stores over a transport in memory; the loss is the spec's."""
    (tmp_path / "test.csv").write_text(rows(0, 20))
    test = TableFile(path=str(tmp_path / "test.csv"), mean=50.0, deviation=10.0, time="when")
    experiment = Experiment(
        rounds=6,
        data=SourceRows(test),
        model=Linear(),
        loss=Huber(2.0),
        scenario=Remote(2),
        method=Method(Scaffold(), CoreSet(4)),
        train=Train(lr=0.1, steps=4, batch_size=8),
    )
    (tmp_path / "spec.toml").write_text(experiment.resolved())
    nodes = {}
    for client in range(2):
        (tmp_path / f"rows-{client}.csv").write_text(rows(client, 24))
        (tmp_path / f"{client}.toml").write_text(SOURCE.format(client=client))
        source, state = str(tmp_path / f"{client}.toml"), str(tmp_path / "state")
        nodes[10 + client] = make_node(
            {"client": client, "state": state, "source": source}, {}, tmp_path
        )
    transport = FakeTransport(FakeClock(), nodes, lambda request, answer, again: (answer, 0.0))
    settings = Federation(poll_s=0.001)
    summary = server_app.run_server(experiment, tmp_path / "run", transport, settings)
    assert summary["rounds"] == 6
    assert summary["last_rmse"] < summary["anytime_rmse"] < 20
    (store,) = (tmp_path / "state").glob("client-0-*.sqlite")
    (item,) = inspect(store).data_sets
    assert (item.samples, item.classes) == (4, 0)

"""Orders on the client: what its own method, model and limits do not allow is refused in one line."""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from chronofed import (
    Afl,
    Averaged,
    Compressed,
    FedGlomo,
    FedOpt,
    FedRep,
    Gaussian,
    L2gd,
    Method,
    Mime,
    Private,
    QFfl,
    Scaffold,
    Train,
)
from chronofed.clients.messages import Order
from chronofed.clients.order_check import OrderCheck, OrderLimits, with_time_limit
from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore, inspect
from chronofed.core.errors import RunError
from chronofed.core.limits import read_json
from chronofed.core.types import Batch
from chronofed.methods.backbones.base import Upload, first_server_state
from chronofed.methods.heads.base import ASKED, BODY
from chronofed.methods.surrogate import Quadratic, Surrogate


@pytest.fixture
def ordered(task):
    """Return a check, and an order that passes it."""

    def ordered(method):
        params, buffers = task.initial(0)
        samples = task.samples(torch.arange(8).numpy())
        server = method.backbone.broadcast(method.backbone.init_server(params, 4))
        order = Order(0, 1, server, buffers, method.weights, None, Train(steps=2), 0)
        limits = OrderLimits(max_steps=50)
        return OrderCheck(method, Train(), task.objective(), samples, limits), order

    return ordered


HONEST = [Scaffold(), FedOpt(backbone=Scaffold()), Private(), Mime()]
HONEST += [QFfl(), Afl(), FedRep(), FedGlomo(), Compressed(Mime(), feedback=True)]


@pytest.mark.parametrize("backbone", HONEST, ids=lambda b: type(b).__name__)
def test_an_honest_order_passes(ordered, backbone):
    check, order = ordered(Method(backbone, average="clients"))
    exchange = "prepare" if backbone.two_phase else "train"
    assert check.problem(order, exchange, None) is None


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (Train(steps=10**9), "more than 50 local steps; max_steps"),
        (Train(epochs=1e6), "more than 50 local steps; max_steps"),
        (Train(epochs=49.0, batch_size=1), "more than 50 local steps; max_steps"),
        (Train(steps=1, batch_size=10**12), "train.batch_size: 1000000000000 is above 32"),
    ],
)
def test_an_order_without_end_is_refused(ordered, train, reason):
    check, order = ordered(Method())
    assert reason in check.problem(replace(order, train=train), "train", None)


def test_an_order_without_its_coin_or_the_model_before_is_refused(ordered):
    check, order = ordered(Method(L2gd()))
    assert check.problem(order, "train", None) is None
    assert "server.pulls: missing" in check.problem(
        replace(order, server={"params": order.server["params"]}), "train", None
    )
    check, order = ordered(Method(FedGlomo()))
    short = {**order.server, "before": order.server["before"][:-1]}
    assert "server.before: expected" in check.problem(replace(order, server=short), "train", None)


def test_what_a_head_needs_is_sent_when_it_asks_for_sums(task):
    method, objective = Method(Averaged(), head=Gaussian()), task.objective()
    params, buffers = task.initial(0)
    samples = task.samples(torch.arange(8).numpy())
    server = first_server_state(method.composed, params, 4, objective)
    check = OrderCheck(method, Train(), objective, samples, OrderLimits())
    order = Order(0, 1, {}, buffers, method.weights, None, Train(steps=2), 0)

    def problem(*names):
        return check.problem(replace(order, server={n: sent[n] for n in names}), "train", None)

    sent = method.composed.broadcast(server)
    assert problem("params", ASKED, BODY) is None
    assert "server.head_body: missing" in problem("params", ASKED)
    assert problem("params") is None
    assert "server.params: missing" in problem(ASKED, BODY)


@pytest.mark.parametrize("length", [0, None])
def test_what_was_not_sent_may_be_empty_or_a_model(ordered, length):
    check, order = ordered(Method(Compressed(feedback=True)))
    error = order.server["params"][:length]
    assert check.problem(order, "train", ClientState({"error.delta": error})) is None
    wrong = ClientState({"error.delta": error.double()})
    assert "error.delta: expected" in check.problem(order, "train", wrong)


def test_an_order_of_two_exchanges_with_short_uploads_passes(ordered):
    """The form of the second is known from what the server makes of the first."""
    check, order = ordered(Method(Compressed(Mime(), bits=2)))
    gradient = torch.zeros_like(order.server["params"])
    begun = Mime().begin(Mime().init_server(gradient, 4), [Upload(1.0, {"gradient": gradient})])
    assert check.problem(replace(order, server=Mime().broadcast(begun)), "train", None) is None


def test_an_order_without_control_is_refused(ordered):
    check, order = ordered(Method(Scaffold()))
    server = {name: tensor for name, tensor in order.server.items() if name != "control"}
    assert "server.control: missing" in check.problem(replace(order, server=server), "train", None)
    mime, order = ordered(Method(Mime()))
    assert "server.control: missing" in mime.problem(order, "train", None)


def test_wrong_numbers_are_refused(ordered):
    check, order = ordered(Method(Scaffold()))
    wrong = {**order.server, "control": order.server["control"] * torch.nan}
    assert "not finite" in check.problem(replace(order, server=wrong), "train", None)
    assert "buffers" in check.problem(replace(order, buffers=torch.zeros(3)), "train", None)
    past = Surrogate(float("inf"))
    assert "too large" in check.problem(replace(order, past=past), "train", None)
    other = ClientState({"velocity": torch.zeros(18)})
    assert "control: missing" in check.problem(order, "train", other)
    assert check.problem(order, "train", ClientState()) is None  # a deletion took it


def test_a_quadratic_beyond_the_model_is_refused(ordered):
    """A message cannot tell: it may hold a part of the model."""
    check, order = ordered(Method())
    size = len(order.server["params"])
    for stop, problem in ((size, None), (size + 1, "past: the quadratic surrogate does not fit")):
        vectors = torch.ones(2), torch.ones(2)
        past = Surrogate(quadratic=Quadratic((slice(stop - 2, stop),), (1.0,), *vectors))
        found = check.problem(replace(order, past=past), "train", None)
        assert found is None if problem is None else found.startswith(problem)


def test_time_is_limited(task):
    params, _ = task.initial(0)
    objective = with_time_limit(task.objective(), 1e-9)
    time.sleep(0.001)
    with pytest.raises(RunError, match="took more than 1e-09 s; max_round_s"):
        objective.gradient(params, Batch.mean(task.samples(torch.arange(4).numpy())))


@pytest.mark.parametrize(
    "text", ["[" * 40 + "]" * 40, "[" + "[]," * 10_000 + "[]]", "[" + "0," * (2**20 + 1) + "0]"]
)
def test_json_is_bounded(text):
    with pytest.raises(ValueError, match="are accepted"):
        read_json(text)


def test_brackets_in_a_text_are_not_levels():
    assert read_json('["' + "[" * 100 + '"]') == ["[" * 100]


def test_a_client_store_with_damaged_tables_is_one_line(tmp_path):
    path = tmp_path / "client.sqlite"
    with ClientStore(path):
        pass
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TABLE forgotten", b"CREATE TABLE \xff\xffrgotten"))
    with pytest.raises(RunError, match="client store is damaged"):
        inspect(path)
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE VIEW more AS SELECT 1")
        database.commit()
    with pytest.raises(RunError, match="its tables are not those of a client store"):
        inspect(path)


def test_a_kept_optimiser_of_another_model_is_refused(ordered):
    check, order = ordered(Method())
    train = Train(steps=2, optimizer="adamw", optimizer_state="keep")
    order, size = replace(order, train=train), len(order.server["params"])
    good = {f"0.{name}": t for name, t in train.first_state(order.server["params"]).items()}
    assert check.problem(order, "train", ClientState(optimizer_state=good)) is None
    short = {**good, "0.mean": torch.zeros(size - 1)}
    problem = check.problem(order, "train", ClientState(optimizer_state=short))
    assert problem.startswith("the client's own state: 0.mean: expected float32 of shape")
    other = {"0.velocity": torch.zeros(size)}
    problem = check.problem(order, "train", ClientState(optimizer_state=other))
    assert problem.startswith("the client's own state: 0.velocity: unknown; was it kept")
    # Nothing reads it if the optimiser is reset.
    plain = replace(order, train=Train(steps=2))
    assert check.problem(plain, "train", ClientState(optimizer_state=other)) is None

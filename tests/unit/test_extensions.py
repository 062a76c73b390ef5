"""What the extensions of the contracts touch: uploads, messages, orders, the client store, server data."""

from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
import torch

from chronofed import (
    Clipped,
    Experiment,
    FedAvg,
    Linear,
    Method,
    Private,
    Scaffold,
    Subsets,
    Surrogate,
    Teacher,
    Train,
    Upload,
)
from chronofed.clients.deletion import Deletion, apply_deletions
from chronofed.clients.messages import Order
from chronofed.clients.order_check import OrderCheck, OrderLimits
from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.data.settings import Images
from chronofed.flower.codec import OrderWriter, read_order
from chronofed.flower.messages import Message, MessageError, read_request
from chronofed.methods.weighting import Merged
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.training.evaluation import Evaluate
from chronofed.training.traffic import Traffic
from tests.helpers.extended import Polished, Tailored, Tracing

VECTOR = torch.tensor([3.0, 4.0], dtype=torch.float64)


# Uploads


def test_an_upload_is_a_pair_with_a_name():
    upload = Upload(2.0, {"delta": VECTOR}, 7)
    weight, record = upload
    assert (weight, upload.client) == (2.0, 7)
    assert record["delta"] is VECTOR
    with pytest.raises(IncompatibleError, match="which client sent an upload, which Private hides"):
        _ = Upload(2.0, record).client


class Listening(FedAvg):
    """Writes down who sent what."""

    def aggregate(self, server, uploads):
        heard.append([(upload.sender, upload[1]["delta"].tolist()) for upload in uploads])
        return super().aggregate(server, uploads)


heard: list = []


def test_clipped_keeps_names_and_private_hides_them():
    uploads = [Upload(1.0, {"delta": VECTOR}, 5), Upload(1.0, {"delta": 0 * VECTOR}, 9)]
    server = {"params": torch.zeros(2, dtype=torch.float64)}
    heard.clear()
    Clipped(Listening(), bound=1.0).aggregate(server, uploads)
    private = Private(Listening(), bound=1.0, noise=0.0)
    private.aggregate(private.draw(server, 0, 0), uploads)
    (first, second), hidden = heard
    assert (first[0], second) == (5, (9, [0.0, 0.0]))
    assert first[1] == pytest.approx([0.6, 0.8])
    assert [name for name, _ in hidden] == [None, None]


# Messages


def order(past=None, client=0, server=None) -> Order:
    sent = {"params": torch.zeros(18)} if server is None else server
    return Order(3, client, sent, torch.empty(0), Merged(), past, Train(), seed=1)


def travelled(sent: Order) -> Order:
    _, message = OrderWriter("00c0ffee", "m").write(sent, "train")
    there = Message.unpack(message.pack())
    return read_order(read_request(there), there.body, Method())


TEACHERS = (
    Teacher(torch.randn(18), 0.25, 3.0, torch.tensor([0, 2]), torch.randn(4), "sigmoid"),
    Teacher(None, -0.5),
)


def test_teachers_travel_bit_for_bit():
    found = travelled(order(Surrogate(0.5, teachers=TEACHERS))).past.teachers
    assert len(found) == 2
    for one, other in zip(found, TEACHERS, strict=True):
        for name in (field.name for field in fields(Teacher)):
            a, b = getattr(one, name), getattr(other, name)
            assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b, name


@pytest.mark.parametrize(
    "change", [{"temperature": 0.0}, {"weight": float("inf")}, {"form": "tanh"}]
)
def test_teachers_that_make_no_sense_are_refused(change):
    with pytest.raises(MessageError):
        travelled(order(Surrogate(teachers=(replace(TEACHERS[0], **change),))))


def test_what_differs_by_client_is_packed_for_each():
    writer, common = OrderWriter("00c0ffee", "m"), {"params": torch.zeros(18)}
    first = order(server=common)
    same = [writer.write(replace(first, client=i), "train")[1].body for i in range(2)]
    assert same[0] is same[1]
    own = [order(client=i, server={"params": torch.full((18,), float(i))}) for i in (0, 1, 0)]
    found = [travelled(one).server["params"][0].item() for one in own]
    bodies = [writer.write(one, "train")[1].body for one in own]
    assert found == [0.0, 1.0, 0.0]
    assert bodies[0] == bodies[2] != bodies[1]


def test_teachers_count_as_traffic():
    bare, taught = (
        Traffic().after([order(past)], []) for past in (None, Surrogate(teachers=TEACHERS))
    )
    assert taught.down_bytes - bare.down_bytes == 4 * 18 + 8 * 2 + 4 * 4


# Orders on the client


@pytest.fixture
def checked(task):
    def checked(backbone, client=0, **changes):
        params, buffers = task.initial(0)
        server = backbone.address(backbone.broadcast(backbone.init_server(params, 9)), client)
        sent = Order(0, client, server, buffers, Merged(), None, Train(), 0)
        samples = task.samples(np.arange(8))
        method = Method(backbone)
        check = OrderCheck(method, Train(), task.objective(), samples, OrderLimits())
        return check.problem(replace(sent, **changes), "train", None)

    return checked


def test_an_addressed_order_passes_for_every_client(checked):
    for client in (0, 1, 8):
        assert checked(Tailored(), client) is None
    wrong = {"params": torch.zeros(3)}
    assert "server.params" in checked(Tailored(), 8, server=wrong)


@pytest.mark.parametrize(
    ("teacher", "reason"),
    [
        (Teacher(torch.zeros(18), 1.0), None),
        (Teacher(None, 1.0, classes=torch.tensor([0, 2])), None),
        (Teacher(torch.zeros(17), 1.0), "expected float32"),
        (Teacher(torch.full((18,), torch.nan), 1.0), "not finite"),
        (Teacher(None, 1e300), "too large"),
        (Teacher(None, 1.0, classes=torch.tensor([3])), "classes must be 0 to 2"),
        (Teacher(None, 1.0, classes=torch.tensor([0.5])), "expected int64"),
        (Teacher(torch.zeros(18), 1.0, buffers=torch.zeros(2)), "expected float32 of shape (0)"),
    ],
)
def test_teachers_of_an_order_are_checked(checked, teacher, reason):
    problem = checked(FedAvg(), past=Surrogate(teachers=(teacher,)))
    assert problem is None if reason is None else reason in problem


# Deletion


def test_a_state_made_of_deleted_rows_starts_anew():
    made, other = ({"path": torch.ones(2), "sources": torch.tensor(rows)} for rows in ([1, 2], [3]))
    states = {0: ClientState(made), 1: ClientState(other)}
    apply_deletions(states, [Deletion(rows=(2,))])
    assert states[0].backbone_state == {}
    assert states[1].backbone_state is other


def test_the_client_store_forgets_it_too(tmp_path):
    state = ClientState({"path": torch.ones(2), "sources": torch.tensor([1, 2])})
    for number, (what, stays) in enumerate(
        [({"rows": [7]}, True), ({"rows": [2]}, False), ({"keys": [5]}, False)]
    ):
        with ClientStore(tmp_path / f"{number}.sqlite") as store:
            store.commit("order", b"reply", state)
            store.forget(**what)
            assert bool(store.client_state().backbone_state) is stays
    with ClientStore(tmp_path / "plain.sqlite") as store:
        store.commit("order", b"reply", ClientState({"control": torch.ones(2)}))
        store.forget(keys=[5])
        assert store.client_state().backbone_state


def test_a_client_whose_state_is_gone_begins_as_a_new_one(task, scenario):
    from chronofed.engines import SerialEngine
    from chronofed.engines.base import Job

    visit = scenario.at(0).visits[0]
    params, buffers = task.initial(0)
    sent = Order(0, 0, {"params": params}, buffers, Merged(), None, Train(steps=1), 0)
    engine = SerialEngine(task)
    for kept in (None, ClientState()):
        client = Job(Method(Tracing()), sent, visit, kept).build_client(
            task, task.objective(), engine.timer
        )
        assert int(client.starting_state().backbone_state["key"]) == -1
    assert int(client.serve()[1].backbone_state["key"]) == visit.key


# Samples of the server


def experiment(**changes) -> Experiment:
    start = Experiment(
        rounds=2,
        model=Linear(),
        scenario=Subsets(clients=2, subsets=4),
        method=Method(Polished()),
        train=Train(steps=1),
        evaluate=Evaluate(seen=0),
        server_data=Images(),
        engine="serial",
    )
    return msgspec.structs.replace(start, **changes)


def test_the_server_has_training_inputs_without_anything_that_is_evaluated_on():
    built = build(experiment())
    train, test = built.task.data.train, built.task.data.test
    found = {row.numpy().tobytes() for row in built.server_samples}
    assert found <= {row.numpy().tobytes() for row in train.x}
    assert not found & {row.numpy().tobytes() for row in test.x}
    chosen = experiment(data=Images(validation=0.2), evaluate=Evaluate(seen=0, on="validation"))
    held = build(chosen)
    found = {row.numpy().tobytes() for row in held.server_samples}
    assert not found & {row.numpy().tobytes() for row in held.task.data.test.x}
    assert len(held.server_samples) < len(built.server_samples)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"server_data": None}, "server_data: missing; Polished refines the model on unlabelled"),
        (
            {"method": Method(Scaffold())},
            "server_data: Scaffold does not use samples on the server",
        ),
    ],
)
def test_samples_that_are_missing_or_unused_are_refused(changes, reason):
    with pytest.raises(SpecError, match=reason):
        build(experiment(**changes))


def test_they_decide_the_identity_and_a_client_does_not_need_them():
    with_samples, without = build(experiment()), build(experiment(), on_client=True)
    assert with_samples.identity["server_data"] == with_samples.server_digest != ""
    assert "server_data" not in without.identity
    assert without.server_samples is None
    assert build(experiment(server_data=None), on_client=True).identity == without.identity


def test_a_run_refines_and_resumes(tmp_path):
    whole = runner.run(experiment(), tmp_path / "run")
    assert whole["rounds"] == 2
    from chronofed.runs import RunDirectory
    from chronofed.runs.load_spec import load_run

    assert load_run(RunDirectory(tmp_path / "run")).server_data == Images()


def test_samples_of_another_shape_are_refused(tmp_path):
    table = tmp_path / "other.csv"
    rows = [f"{c},{t},{v},{v % 2}" for c in range(2) for t in range(4) for v in range(6)]
    table.write_text("client,time,a,label\n" + "\n".join(rows) + "\n")
    from chronofed import Table

    other = Table(str(table), target="label", period="1")
    with pytest.raises(
        SpecError, match=r"^server_data: its samples are float32 \(1,\), those of the clients"
    ):
        build(experiment(server_data=other))
    with pytest.raises(SpecError, match=r"^server_data\.path: no file"):
        build(experiment(server_data=msgspec.structs.replace(other, path="absent.csv")))

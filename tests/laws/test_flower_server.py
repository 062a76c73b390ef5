"""A server on Flower writes an ordinary run directory and resumes after any crash; tested without Flower."""

import itertools
import json
import logging
import threading

import msgspec
import pytest
import torch

from chronofed import CoreSet, Experiment, Linear, Merged, Method, Scaffold, Subsets, Train
from chronofed.clients.messages import Order
from chronofed.core.errors import RunError, SpecError
from chronofed.data.client_source import TableFile
from chronofed.data.client_source.load import load_source
from chronofed.flower import server_app
from chronofed.flower.client_app import experiments, make_node
from chronofed.flower.codec import OrderWriter
from chronofed.flower.messages import method_fingerprint, read_reply, write_hello
from chronofed.flower.node import ClientNode, ScenarioData, SourceData
from chronofed.flower.settings import Federation
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.training.evaluate import Evaluate
from tests.helpers.fake_transport import FakeClock, FakeTransport

EXPERIMENT = Experiment(
    rounds=3,
    model=Linear(),
    scenario=Subsets(clients=3, subsets=4),
    method=Method(Scaffold(), CoreSet(size=10)),
    train=Train(steps=2),
    evaluate=Evaluate(seen=0),
    engine="serial",
)


class Crash(KeyboardInterrupt):
    """The server's process dies."""


@pytest.fixture
def transport(tmp_path):
    known = {method_fingerprint(EXPERIMENT): EXPERIMENT}
    client_nodes = {
        10 + i: ClientNode(i, known, tmp_path / "state", ScenarioData()) for i in range(3)
    }
    return FakeTransport(FakeClock(), client_nodes)


def serve(transport, path, **settings):
    return server_app.run_server(EXPERIMENT, path, transport, Federation(poll_s=0.001, **settings))


def kinds(path):
    return [json.loads(line)["event"] for line in (path / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("serial") / "run"
    return path, runner.run(EXPERIMENT, path)


def equal_records(one, other):
    return all(
        (one / f).read_bytes() == (other / f).read_bytes() for f in ("metrics.jsonl", "spec.toml")
    )


@pytest.mark.slow
def test_the_run_directory_is_that_of_one_machine(transport, tmp_path, reference):
    path, right = reference
    summary = serve(transport, tmp_path / "run")
    assert equal_records(tmp_path / "run", path)
    assert {k: v for k, v in summary.items() if not k.startswith("seconds")} == {
        k: v for k, v in right.items() if not k.startswith("seconds")
    }
    assert kinds(tmp_path / "run") == ["started", *["joined"] * 3, "finished"]
    (line,) = server_app.RunDirectory(tmp_path / "run").engines()
    assert line["engine"] == "FlowerEngine"
    for name in ("model.json", "model.safetensors"):
        ours, theirs = (folder / "model" / name for folder in (path, tmp_path / "run"))
        assert ours.read_bytes() == theirs.read_bytes()


# Quick are the first answer, one in the middle of a round, and the last.
FATAL = [k if k == 5 else pytest.param(k, marks=pytest.mark.slow) for k in range(1, 10)]


@pytest.mark.parametrize("fatal", FATAL)
def test_a_server_killed_at_any_answer_ends_with_the_same_bits(
    fatal, transport, tmp_path, reference
):
    """There are nine answers; the server dies when it would get one of them, and starts again."""
    count = itertools.count(1)

    def tamper(request, answer, again):
        if next(count) == fatal:
            raise Crash
        return answer, 0.0

    transport.tamper = tamper
    with pytest.raises(Crash):
        serve(transport, tmp_path / "run")
    serve(transport, tmp_path / "run")
    assert equal_records(tmp_path / "run", reference[0])
    assert serve(transport, tmp_path / "run")["rounds"] == 3  # finished: nothing is done again


@pytest.mark.slow
def test_a_run_cannot_change_between_one_machine_and_many(transport, tmp_path):
    """What its clients keep would be left behind."""

    def tamper(request, answer, again):
        if request.round == 2:
            raise Crash
        return answer, 0.0

    transport.tamper = tamper
    with pytest.raises(Crash):
        serve(transport, tmp_path / "there")
    with pytest.raises(RunError, match=r"its clients, and their states, are on Flower.* flwr run"):
        runner.resume(server_app.RunDirectory.open(tmp_path / "there"))

    def stop(progress):
        if progress.round == 2:
            raise Crash

    directory = runner.create(build(EXPERIMENT), tmp_path / "here")
    experiment = server_app.checkpoint_every_round(EXPERIMENT)
    with pytest.raises(Crash):
        runner.resume(directory, experiment=experiment, on_round=stop)
    with pytest.raises(RunError, match=r"was started on this machine.* chronofed resume"):
        serve(transport, tmp_path / "here")


@pytest.mark.slow
def test_a_directory_is_for_one_method(transport, tmp_path):
    serve(transport, tmp_path / "run")
    other = msgspec.structs.replace(EXPERIMENT, method=Method())
    with pytest.raises(RunError, match="another method or model"):
        server_app.run_server(other, tmp_path / "run", transport, Federation())


@pytest.mark.slow
def test_every_round_is_saved_before_the_next_begins(transport, tmp_path):
    saved = []

    def tamper(request, answer, again):
        names = sorted(p.name[:8] for p in (tmp_path / "run/checkpoints").glob("*.safetensors"))
        saved.append((request.round, int(names[-1]) if names else 0))
        return answer, 0.0

    transport.tamper = tamper
    serve(transport, tmp_path / "run")
    assert set(saved) == {(0, 0), (1, 1), (2, 2)}


def test_the_reason_of_a_stop_is_an_event(transport, tmp_path):
    transport.client_nodes.clear()
    transport.clock.sleep(0)
    with pytest.raises(RunError, match="round 0: only 0 of 3"):
        serve(transport, tmp_path / "run", quorum_timeout_s=0.05, max_skips=0)
    last = json.loads((tmp_path / "run/events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "stopped"
    assert last["code"] == RunError.exit_code
    assert last["reason"].startswith("round 0: only 0 of 3")


@pytest.mark.slow
def test_warnings_about_the_run_are_events(transport, tmp_path, monkeypatch):
    """Those of a client, which may quote its data, are not; nor those of a run in another thread."""
    proceed = runner.proceed

    def warning(*arguments, **others):
        logging.getLogger("chronofed.runs.runner").warning("a damaged checkpoint")
        logging.getLogger("chronofed.flower.node").warning("a secret row")
        thread = threading.Thread(
            target=logging.getLogger("chronofed.runs.runner").warning, args=["other"]
        )
        thread.start()
        thread.join()
        return proceed(*arguments, **others)

    monkeypatch.setattr(runner, "proceed", warning)
    serve(transport, tmp_path / "run")
    events = map(json.loads, (tmp_path / "run/events.jsonl").read_text().splitlines())
    assert [e["message"] for e in events if e["event"] == "warning"] == ["a damaged checkpoint"]
    assert not logging.getLogger("chronofed.runs").handlers


def test_settings_of_an_app():
    table = {
        "spec": "spec.toml",
        "run": "/srv/run",
        "data": "",
        "quorum": 2,
        "round_timeout_s": 5.0,
    }
    assert server_app.federation(table) == Federation(quorum=2, round_timeout_s=5.0)
    with pytest.raises(SpecError, match=r"tool.flwr.app.config.quorom: unknown key; did you mean"):
        server_app.federation({"quorom": 2})
    assert str(server_app.run_path({"run": "/srv/run"})) == "/srv/run"
    for wrong in ({}, {"run": "runs/one"}):
        with pytest.raises(SpecError, match=r"expected the absolute path"):
            server_app.run_path(wrong)


def test_a_checkpoint_every_round():
    sparse = msgspec.structs.replace(EXPERIMENT, checkpoint=server_app.Checkpoint(every=10, keep=5))
    assert server_app.checkpoint_every_round(sparse).checkpoint == server_app.Checkpoint(
        every=1, keep=5
    )
    assert server_app.checkpoint_every_round(EXPERIMENT).checkpoint.keep == 2


@pytest.fixture
def app(tmp_path):
    (tmp_path / "spec.toml").write_text(EXPERIMENT.resolved())
    return tmp_path


@pytest.mark.parametrize("node", [{"client": 2}, {"partition-id": 2, "num-partitions": 3}])
def test_a_node_says_which_client_it_is(node, app):
    client_node = make_node({**node, "state": str(app / "state")}, {"spec": "spec.toml"}, app)
    assert client_node.client == 2
    assert read_reply(client_node.answer(write_hello("00c0ffee"))).client == 2
    assert list(client_node.experiments) == [method_fingerprint(EXPERIMENT)]


def test_a_node_says_which_further_clients_it_has(app):
    state = str(app / "state")
    client_node = make_node({"client": 2, "others": "4, 3", "state": state}, {}, app)
    reply = read_reply(client_node.answer(write_hello("00c0ffee")))
    assert (reply.client, reply.others) == (2, (4, 3))
    with pytest.raises(SpecError, match=r"others: expected numbers such as '1,2,5', not '-1'"):
        make_node({"client": 2, "others": "-1"}, {}, app)


@pytest.mark.parametrize("node", [{}, {"client": -1}, {"client": "2"}, {"client": True}])
def test_a_node_without_a_client_number_is_refused(node, app):
    with pytest.raises(SpecError, match="--node-config 'client=0'"):
        make_node(node, {}, app)


def test_an_app_without_a_specification(tmp_path):
    with pytest.raises(SpecError, match=r"the app has no specification none.toml"):
        experiments({"spec": "none.toml"}, tmp_path)


SOURCE = """
[source]
kind = "table-file"
path = "rows.csv"
classes = ["a", "b"]
target = "y"
time = ""
"""


def test_a_client_with_data_of_its_own(tmp_path):
    (tmp_path / "source.toml").write_text(SOURCE)
    source = load_source(tmp_path / "source.toml")
    assert isinstance(source, TableFile)
    assert source.path == str(tmp_path / "rows.csv")
    (tmp_path / "broken.toml").write_text("=")
    with pytest.raises(SpecError, match=r"broken.toml: cannot be read"):
        load_source(tmp_path / "broken.toml")


def test_new_rows_of_a_client_are_trained_on_and_counted(tmp_path):
    """Two rows more in the second round: the server learns their number, and nothing else of them."""
    (tmp_path / "source.toml").write_text(SOURCE)
    rows = tmp_path / "rows.csv"
    rows.write_text("u,v,y\n" + "".join(f"{k},{-k},{'ab'[k % 2]}\n" for k in range(10)))
    experiment = msgspec.structs.replace(EXPERIMENT, method=Method(memory=CoreSet(size=4)))
    client_node = ClientNode(
        0,
        {method_fingerprint(experiment): experiment},
        tmp_path / "state",
        SourceData(load_source(tmp_path / "source.toml")),
    )
    sizes, keys = [], []
    for round_ in range(2):
        state, none = {"params": torch.zeros(2 * 2 + 2)}, torch.zeros(0)
        order = Order(round_, 0, state, none, Merged(), None, Train(steps=2), 0)
        _, message = OrderWriter("00c0ffee", *client_node.experiments).write(order, "train")
        reply = read_reply(client_node.answer(message))
        assert reply.error == ""
        sizes.append(reply.size)
        keys.append(reply.key)
        with rows.open("a") as file:
            file.write("11,2,a\n12,3,b\n")
    assert sizes == [10, 12]
    assert len(set(keys)) == 2

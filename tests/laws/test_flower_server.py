"""A server on Flower leaves an ordinary run directory, and comes back from any crash; without Flower."""

import itertools
import json

import msgspec
import pytest
import torch
from post_office import PostOffice, Time

from chronofed import CoreSet, Experiment, Linear, Merged, Method, Scaffold, Subsets, Train
from chronofed.errors import RunError, SpecError
from chronofed.experiments import runner
from chronofed.experiments.own import load_source
from chronofed.flower import server
from chronofed.flower.client import experiments, station_of
from chronofed.flower.settings import Federation
from chronofed.flower.station import Own, Share, Station
from chronofed.flower.wire import Desk, fingerprint, read_reply, write_hello
from chronofed.metrics.evaluation import Evaluate
from chronofed.protocol import Order
from chronofed.sources import TableSource

EXPERIMENT = Experiment(
    rounds=3,
    model=Linear(),
    scenario=Subsets(clients=3, subsets=4),
    method=Method(Scaffold(), CoreSet(size=10)),
    train=Train(steps=2),
    evaluate=Evaluate(seen=0),
    engine="serial",
)


class Crash(Exception):
    """The server's process dies."""


@pytest.fixture
def office(tmp_path):
    known = {fingerprint(EXPERIMENT): EXPERIMENT}
    stations = {10 + i: Station(i, known, tmp_path / "vaults", Share()) for i in range(3)}
    return PostOffice(Time(), stations)


def conduct(office, path, **settings):
    return server.conduct(EXPERIMENT, path, office, Federation(poll=0.001, **settings))


def kinds(path):
    return [json.loads(line)["event"] for line in (path / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("serial") / "run"
    return path, runner.proceed(runner.start(EXPERIMENT, path))


def equal_records(one, other):
    return all(
        (one / f).read_bytes() == (other / f).read_bytes() for f in ("metrics.jsonl", "spec.toml")
    )


def test_the_run_directory_is_that_of_one_machine(office, tmp_path, reference):
    path, right = reference
    summary = conduct(office, tmp_path / "run")
    assert equal_records(tmp_path / "run", path)
    assert {k: v for k, v in summary.items() if not k.startswith("seconds")} == {
        k: v for k, v in right.items() if not k.startswith("seconds")
    }
    assert kinds(tmp_path / "run") == ["started", *["joined"] * 3, "finished"]
    (line,) = server.RunDirectory(tmp_path / "run").engines()
    assert line["engine"] == "FlowerEngine"


@pytest.mark.parametrize("fatal", range(1, 10))
def test_a_server_killed_at_any_answer_ends_with_the_same_bits(fatal, office, tmp_path, reference):
    """There are nine answers; the server dies when it would get one of them, and starts again."""
    count = itertools.count(1)

    def tamper(question, answer, again):
        if next(count) == fatal:
            raise Crash
        return answer, 0.0

    office.tamper = tamper
    with pytest.raises(Crash):
        conduct(office, tmp_path / "run")
    conduct(office, tmp_path / "run")
    assert equal_records(tmp_path / "run", reference[0])
    assert conduct(office, tmp_path / "run")["rounds"] == 3  # finished: nothing is done again


def test_a_run_cannot_change_between_one_machine_and_many(office, tmp_path):
    """What its clients keep would be left behind."""

    def tamper(question, answer, again):
        if question.round == 2:
            raise Crash
        return answer, 0.0

    office.tamper = tamper
    with pytest.raises(Crash):
        conduct(office, tmp_path / "there")
    with pytest.raises(RunError, match=r"its clients are on Flower.* flwr run"):
        runner.proceed(server.RunDirectory.open(tmp_path / "there"))

    def stop(progress):
        if progress.round == 2:
            raise Crash

    directory = runner.start(EXPERIMENT, tmp_path / "here")
    with pytest.raises(Crash):
        runner.proceed(directory, watch=stop, change=server.every_round)
    with pytest.raises(RunError, match=r"begun on this machine.* chronofed resume"):
        conduct(office, tmp_path / "here")


def test_a_directory_is_for_one_method(office, tmp_path):
    conduct(office, tmp_path / "run")
    other = msgspec.structs.replace(EXPERIMENT, method=Method())
    with pytest.raises(RunError, match="another method or model"):
        server.conduct(other, tmp_path / "run", office, Federation())


def test_every_round_is_saved_before_the_next_begins(office, tmp_path):
    saved = []

    def tamper(question, answer, again):
        names = sorted(p.name[:8] for p in (tmp_path / "run/checkpoints").glob("*.safetensors"))
        saved.append((question.round, int(names[-1]) if names else 0))
        return answer, 0.0

    office.tamper = tamper
    conduct(office, tmp_path / "run")
    assert set(saved) == {(0, 0), (1, 1), (2, 2)}


def test_what_stops_a_run_is_noted(office, tmp_path):
    office.stations.clear()
    office.time.sleep(0)
    with pytest.raises(RunError, match="round 0: only 0 of 3"):
        conduct(office, tmp_path / "run", patience=0.05)
    last = json.loads((tmp_path / "run/events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "stopped"
    assert last["code"] == RunError.exit_code
    assert last["reason"].startswith("round 0: only 0 of 3")


def test_settings_of_an_app():
    table = {"spec": "spec.toml", "run": "/srv/run", "data": "", "quorum": 2, "deadline": 5.0}
    assert server.federation(table) == Federation(quorum=2, deadline=5.0)
    with pytest.raises(SpecError, match=r"tool.flwr.app.config.quorom: unknown key; did you mean"):
        server.federation({"quorom": 2})
    assert str(server.directory_of({"run": "/srv/run"})) == "/srv/run"
    for wrong in ({}, {"run": "runs/one"}):
        with pytest.raises(SpecError, match=r"expected the absolute path"):
            server.directory_of(wrong)


def test_a_checkpoint_every_round():
    sparse = msgspec.structs.replace(EXPERIMENT, checkpoint=server.Checkpoint(every=10, keep=5))
    assert server.every_round(sparse).checkpoint == server.Checkpoint(every=1, keep=5)
    assert server.every_round(EXPERIMENT).checkpoint.keep == 2


@pytest.fixture
def app(tmp_path):
    (tmp_path / "spec.toml").write_text(EXPERIMENT.resolved())
    return tmp_path


@pytest.mark.parametrize("node", [{"client": 2}, {"partition-id": 2, "num-partitions": 3}])
def test_a_node_says_which_client_it_is(node, app):
    station = station_of({**node, "state": str(app / "state")}, {"spec": "spec.toml"}, app)
    assert station.client == 2
    assert read_reply(station.answer(write_hello("00c0ffee"))).client == 2
    assert list(station.experiments) == [fingerprint(EXPERIMENT)]


@pytest.mark.parametrize("node", [{}, {"client": -1}, {"client": "2"}, {"client": True}])
def test_a_node_that_does_not_say_so_is_told(node, app):
    with pytest.raises(SpecError, match="--node-config 'client=0'"):
        station_of(node, {}, app)


def test_an_app_without_a_specification(tmp_path):
    with pytest.raises(SpecError, match=r"the app has no specification none.toml"):
        experiments({"spec": "none.toml"}, tmp_path)


SOURCE = """
[source]
kind = "table"
path = "rows.csv"
classes = ["a", "b"]
target = "y"
time = ""
"""


def test_a_client_with_data_of_its_own(tmp_path):
    (tmp_path / "source.toml").write_text(SOURCE)
    source = load_source(tmp_path / "source.toml")
    assert isinstance(source, TableSource)
    assert source.path == str(tmp_path / "rows.csv")
    (tmp_path / "broken.toml").write_text("=")
    with pytest.raises(SpecError, match=r"broken.toml: cannot be read"):
        load_source(tmp_path / "broken.toml")


def test_own_data_that_grow_are_trained_on_and_counted(tmp_path):
    """Two rows more in the second round: the server learns their number, and nothing else of them."""
    (tmp_path / "source.toml").write_text(SOURCE)
    rows = tmp_path / "rows.csv"
    rows.write_text("u,v,y\n" + "".join(f"{k},{-k},{'ab'[k % 2]}\n" for k in range(10)))
    experiment = msgspec.structs.replace(EXPERIMENT, method=Method(memory=CoreSet(size=4)))
    station = Station(
        0,
        {fingerprint(experiment): experiment},
        tmp_path / "vaults",
        Own(load_source(tmp_path / "source.toml")),
    )
    sizes, keys = [], []
    for round_ in range(2):
        state, none = {"params": torch.zeros(2 * 2 + 2)}, torch.zeros(0)
        order = Order(round_, 0, state, none, Merged(), None, Train(steps=2), 0)
        _, letter = Desk("00c0ffee", *station.experiments).write(order, "train")
        reply = read_reply(station.answer(letter))
        assert reply.error == ""
        sizes.append(reply.size)
        keys.append(reply.key)
        with rows.open("a") as file:
            file.write("11,2,a\n12,3,b\n")
    assert sizes == [10, 12]
    assert len(set(keys)) == 2

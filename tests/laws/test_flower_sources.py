"""Clients on other machines whose rows grow, over a transport in memory: client stores and screening."""

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import torch

from chronofed import CoreSet, Experiment, Linear, Method, Remote, Scaffold, Table, Train
from chronofed.clients.messages import Order
from chronofed.clients.store import inspect
from chronofed.core.errors import RunError, SpecError
from chronofed.flower import engine, server_app
from chronofed.flower.client_app import answer, log_to_stderr, make_node
from chronofed.flower.codec import OrderWriter, read_result, write_result
from chronofed.flower.messages import method_fingerprint, read_reply, read_request, write_hello
from chronofed.flower.settings import Federation, Node
from chronofed.methods.weighting import Merged
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.load_spec import load_settings
from chronofed.scenarios import Schedule
from tests.helpers.fake_transport import FakeClock, FakeTransport

ROWS = 6  # of a client in a round
FRACTION = ".2509765625"  # exact in float32, and in no clock or file size
METHOD = Method(Scaffold(), CoreSet(size=4))
SOURCE = """
[source]
kind = "table-file"
path = "{path}"
classes = ["calm", "storm"]
target = "weather"
time = "when"
id = "row"
features = [{{ name = "wind" }}, {{ name = "rain", mean = 1.0, deviation = 2.0 }}]
current = {{ kind = "each-round", count = {rows} }}
"""


def lines(client, start, count):
    """Rows of one client: days apart, from long ago."""
    rows = range(start, start + count)
    days = [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=k) for k in rows]
    return "".join(
        f"c{client}-{k},{day:%Y-%m-%d},{client + k % 5}{FRACTION},{k % 3},{('calm', 'storm')[k % 2]}\n"
        for k, day in zip(rows, days, strict=True)
    )


class Coast:
    """A server with a test table, and clients whose files get new rows before every round."""

    def __init__(self, folder: Path, clients: int = 2, rounds: int = 3, **changes):
        self.folder = folder
        test = "client,when,wind,rain,weather\n" + "".join(
            f"buoy,2024-01-{k + 1:02d},{k % 5},{k % 3},{('calm', 'storm')[k % 2]}\n"
            for k in range(20)
        )
        (folder / "test.csv").write_text(test)
        table = Table(
            str(folder / "test.csv"),
            "weather",
            "client",
            "when",
            test=0.5,
            holdout="random",
            standardise=False,
        )
        start = Experiment(
            rounds=rounds,
            data=table,
            model=Linear(),
            scenario=Remote(clients),
            method=METHOD,
            train=Train(steps=2, batch_size=4),
        )
        self.experiment = msgspec.structs.replace(start, **changes)
        self.app = folder / "app"
        self.app.mkdir()
        (self.app / "spec.toml").write_text(self.experiment.resolved())
        for client in range(clients):
            path = folder / f"rows-{client}.csv"
            path.write_text("row,when,wind,rain,weather\n")
            (folder / f"{client}.toml").write_text(SOURCE.format(path=path.name, rows=ROWS))
        self.grown = 0

    def grow(self):
        """A round's worth of rows for everybody."""
        for path in self.folder.glob("rows-*.csv"):
            with path.open("a") as file:
                file.write(lines(int(path.stem[5:]), self.grown * ROWS, ROWS))
        self.grown += 1

    def node(self, client, **more):
        state, source = str(self.folder / "state"), str(self.folder / f"{client}.toml")
        return {"client": client, "state": state, "source": source, **more}

    def client_node(self, client, **more):
        return make_node(self.node(client, **more), {}, self.app)

    def transport(self, tamper=None, **more):
        """Rows arrive when the first order of a round does."""

        def tampered(request, answer, again):
            return (answer, 0.0) if tamper is None else tamper(request, answer)

        clients = range(self.experiment.scenario.clients)
        transport = FakeTransport(
            FakeClock(), {10 + i: self.client_node(i, **more) for i in clients}, tampered
        )
        send = transport.send

        def growing(messages, ttl_s, largest=0):
            rounds = [read_request(message).round for _, message in messages if message.body]
            while rounds and self.grown <= max(rounds):
                self.grow()
            return send(messages, ttl_s, largest)

        transport.send = growing
        return transport

    def serve(self, run="run", tamper=None, more=None, **settings):
        settings = Federation(
            **{"poll_s": 0.001, "quorum_timeout_s": 0.3, "max_skips": 0, **settings}
        )
        transport = self.transport(tamper, **(more or {}))
        return server_app.run_server(self.experiment, self.folder / run, transport, settings)

    def events(self, kind, run="run"):
        found = (self.folder / run / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, found) if event["event"] == kind]

    def client_store(self, client):
        (path,) = (self.folder / "state").glob(f"client-{client}-*.sqlite")
        return inspect(path)


@pytest.fixture
def coast(tmp_path):
    return Coast(tmp_path)


def test_they_learn_from_rows_that_arrive_during_the_run(coast):
    summary = coast.serve()
    assert summary["rounds"] == 3
    for client in (0, 1):
        seen = coast.client_store(client)
        assert [(d.round, d.size, d.samples) for d in seen.data_sets] == [
            (0, 6, 4),
            (1, 6, 4),
            (2, 6, 4),
        ]
        assert f"{seen.data_sets[2].oldest:%Y-%m-%d}" >= "2020-01-13"
    history = server_app.RunDirectory(coast.folder / "run").history()
    assert len(history) == 3
    assert not any("seen" in key or "forgetting" in key for line in history for key in line)
    about = server_app.RunDirectory(coast.folder / "run").scenario()
    assert (about["remote"], about["clients"]) == (True, 2)


def test_a_machine_with_several_clients_reads_the_file_of_each(tmp_path, monkeypatch):
    apart, together = tmp_path / "apart", tmp_path / "together"
    apart.mkdir()
    together.mkdir()
    one, other = Coast(apart), Coast(together)
    one.serve()
    both = {"others": "1", "source": str(together / "{client}.toml")}
    machine = {10: other.client_node(0, **both)}
    monkeypatch.setattr(other, "client_node", lambda client, **_: machine[10])
    other.serve()
    kept = [load_latest(folder / "run" / "checkpoints")[0] for folder in (apart, together)]
    assert all(torch.equal(kept[0].server[name], kept[1].server[name]) for name in kept[0].server)
    assert [other.client_store(client).samples for client in (0, 1)] == [12, 12]


def test_the_server_does_not_learn_where_a_client_keeps_its_files(coast, caplog):
    client_node = coast.client_node(0)
    coast.grow()
    assert read_reply(client_node.answer(first_order(coast))).error == ""
    with client_node.make_store(client_node.store_path("00c0ffee")):
        reply = read_reply(client_node.answer(first_order(coast, 1)))
    assert reply.error.startswith("client-0-00c0ffee.sqlite: another process is using")
    assert str(coast.folder) in caplog.text


def test_the_server_s_directory_has_none_of_their_rows(coast):
    """The distinctive fraction of every wind, as text and as a number of any width, and the names of rows."""
    coast.serve()
    wind = float(f"3{FRACTION}")
    secret = [b"c0-1", torch.tensor([wind, 0.0]).numpy().tobytes(), f"3{FRACTION}".encode()]
    kept = b"".join(p.read_bytes() for p in (coast.folder / "state").glob("*.sqlite"))
    assert torch.tensor([wind]).numpy().tobytes() in kept  # so the search could find it
    for path in (coast.folder / "run").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [each for each in secret if each in content], path


def test_a_client_without_a_source_says_so_in_one_line(coast, caplog):
    node = {"client": 0, "state": str(coast.folder / "state")}
    reply = read_reply(answer(first_order(coast), node, {}, coast.app))
    assert "client 0 has no source" in reply.error
    assert "--node-config 'client=0 source=" in reply.error
    assert caplog.messages == [reply.error]


def first_order(coast, size=6, round_=0):
    none = torch.zeros(0)
    state = coast.experiment.method.backbone.init_server(torch.zeros(size), clients=4)
    train = Train(steps=1, batch_size=6)
    order = Order(round_, 0, state, none, Merged(), None, train, 0)
    return OrderWriter("00c0ffee", method_fingerprint(coast.experiment)).write(order, "train")[1]


def test_the_server_s_table_need_not_be_on_the_client(coast):
    coast.grow()
    (coast.folder / "test.csv").unlink()
    message = coast.client_node(0).answer(first_order(coast))
    assert read_reply(message).error == ""
    assert read_result(read_reply(message), message.body).size == ROWS
    assert load_settings(coast.app / "spec.toml") == coast.experiment


def test_features_that_were_not_agreed_on_are_one_line(coast):
    coast.grow()
    reply = read_reply(coast.client_node(0).answer(first_order(coast, size=10)))
    assert "make a model of 6 parameters, but the server's has 10" in reply.error


def test_a_problem_with_a_row_is_logged_on_the_node_only(coast, caplog):
    (coast.folder / "rows-0.csv").write_text(
        "row,when,wind,rain,weather\nr,2020-01-01,1,2,plague\n"
    )
    message = coast.client_node(0).answer(first_order(coast))
    reply = read_reply(message)
    assert reply.error == "client 0 cannot read its own data in round 0: see its node's log"
    assert "plague" not in message.header
    (said,) = caplog.messages
    assert "'plague' is not a known class" in said
    assert said.startswith(f"{reply.error} (")
    assert len(said.splitlines()) == 1


def test_wrong_settings_of_a_node_are_one_line(coast, caplog):
    cases = {
        "node-config.max_aeg: unknown key; did you mean 'max_age'?": {"max_aeg": "3 days"},
        "Node.max_age: 'soon' is not a duration such as '7 days'": {"max_age": "soon"},
        "node-config.limit_mb: expected float": {"limit_mb": 0},
        "which client it is: start it with --node-config 'client=0'": {"client": -1},
    }
    for line, more in cases.items():
        reply = read_reply(
            answer(write_hello("00c0ffee"), {**coast.node(0), **more}, {}, coast.app)
        )
        assert line in reply.error
        assert "\n" not in reply.error
        assert (reply.client, caplog.messages) == (-1, [reply.error])
        caplog.clear()
    flowers = {"partition-id": 1, "num-partitions": 3}
    assert read_reply(answer(write_hello("00c0ffee"), flowers, {}, coast.app)).client == 1


@pytest.mark.parametrize("text", [None, '[source]\nclasses = ["plague"]\n', "[source"])
def test_a_problem_with_a_source_file_is_logged_on_the_node_only(text, coast, tmp_path, caplog):
    """Neither its path nor its content reach the server."""
    file = tmp_path / "private.toml"
    if text is not None:
        file.write_text(text)
    message = answer(write_hello("00c0ffee"), {**coast.node(0), "source": str(file)}, {}, coast.app)
    reply = read_reply(message)
    assert reply.error == "client 0 cannot use the description of its own data: see its node's log"
    (said,) = caplog.messages
    assert said.startswith(f"{reply.error} (")
    assert len(said) > len(reply.error) + 10


def test_limit_mb_bounds_the_client_store(coast):
    coast.serve(more={"limit_mb": 0.0005})  # 524 bytes: one data set of the three
    seen = coast.client_store(0)
    assert [d.round for d in seen.data_sets] == [2]
    assert 524 / 2 < seen.data_sets[0].bytes <= 524


def test_max_age_removes_old_rows(coast, monkeypatch):
    """At noon of the 20th January 2020 the rows of round 0 are older than ten days."""
    noon = datetime(2020, 1, 20, 12, tzinfo=UTC)
    monkeypatch.setattr("chronofed.clients.store.store.now", lambda: noon)
    coast.serve(more={"max_age": "10 days"})
    seen = coast.client_store(0)
    assert seen.samples > 0
    assert min(d.oldest for d in seen.data_sets) >= noon - timedelta(days=10)
    assert [d.round for d in seen.data_sets] == [1, 2]


def test_a_node_without_limits_has_none(tmp_path):
    client_store = Node(0).client_store(tmp_path / "v")
    assert (client_store.limit_bytes, client_store.max_age) == (None, None)
    client_store = Node(0, limit_mb=2.5, max_age="2 weeks").client_store(tmp_path / "v")
    assert (client_store.limit_bytes, client_store.max_age) == (5 * 2**19, timedelta(days=14))


def test_warnings_go_to_the_node_s_standard_error_once(coast, capsys, monkeypatch):
    library = logging.getLogger("chronofed")
    monkeypatch.setattr(library, "handlers", [])
    log_to_stderr()
    log_to_stderr()
    reply = read_reply(answer(write_hello("00c0ffee"), {}, {}, coast.app))
    assert capsys.readouterr().err == f"chronofed: {reply.error}\n"


# Screening after a restart


def louder(request, answer, factor):
    reply = read_reply(answer)
    result = read_result(reply, answer.body)
    upload = {**result.upload, "delta": factor * result.upload["delta"]}
    result = type(result)(
        result.client, result.key, result.size, upload, result.buffers, result.record
    )
    return write_result(request, result)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Ask clients that were refused again at once."""
    monkeypatch.setattr(engine, "RETRY_PAUSE_S", 0.001)


def one_left(tmp_path):
    """Client 1 leaves before round 2, so that client 0 is alone with the server's memory of usual lengths."""
    scenario = Remote(2, membership=Schedule(((1, 0, 2),)))
    return Coast(tmp_path, scenario=scenario, method=Method())


class Stop(KeyboardInterrupt):
    """The server's process dies."""


def stop_at_round_2(request, answer):
    if request.round == 2:
        raise Stop
    return answer, 0.0


def shout_at_round_2(request, answer):
    return louder(request, answer, 100.0) if request.round == 2 else answer, 0.0


def test_a_server_that_was_restarted_still_scales_far_too_large_norms_down(tmp_path):
    coast = one_left(tmp_path)
    with pytest.raises(Stop):
        coast.serve(tamper=stop_at_round_2)
    coast.serve(tamper=shout_at_round_2)
    (clipped,) = coast.events("clipped")
    assert "max_norm_factor" in clipped["reason"]
    assert clipped["round"] == 2
    assert load_latest(coast.folder / "run/checkpoints")[0].round == 3


def test_accepted_norms_are_in_the_checkpoint(tmp_path):
    coast = one_left(tmp_path)
    with pytest.raises(Stop):
        coast.serve(tamper=stop_at_round_2)
    saved, _ = load_latest(coast.folder / "run/checkpoints")
    (norms,) = [t for name, t in saved.engine.items() if "upload.delta" in name]
    assert norms[:, 0].tolist() == [0.0, 1.0]
    assert saved.engine["accepted"].tolist() == [[0, 1], [1, 1]]
    again = server_app.FlowerEngine(None, None, "00c0ffee", "m", result_filter := ResultFilter())
    again.load_state_dict(saved.engine)
    assert result_filter.known.keys() == saved.engine.keys() - {"accepted"}
    assert again.state_dict().keys() == saved.engine.keys()


class ResultFilter:
    known = None

    def load_state_dict(self, state_dict):
        self.known = state_dict

    def state_dict(self):
        return self.known


def test_the_screen_s_limits_can_be_set(tmp_path):
    coast = one_left(tmp_path)
    with pytest.raises(RunError, match="round 0: only 0 of 2 clients"):
        coast.serve("strict", max_norm=1e-9)
    assert {"max_norm" in e["reason"] for e in coast.events("refused", "strict")} == {True}
    coast.serve("lax", tamper=shout_at_round_2, max_norm_factor=1e5)
    assert coast.events("clipped", "lax") == []


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"max_nrm": 3.0}, r"tool.flwr.app.config.max_nrm: unknown key; did you mean 'max_norm'\?"),
        ({"max_norm": -1.0}, r"config.max_norm: expected float > 0.0, got float -1.0"),
        ({"max_norm_factor": 1.0}, r"config.max_norm_factor: expected float > 1.0"),
        ({"history": "all"}, r"config.history: expected int, got str 'all'"),
    ],
)
def test_wrong_limits_are_one_line(table, line):
    with pytest.raises(SpecError, match=line):
        server_app.federation({"spec": "spec.toml", **table})
    assert server_app.federation({"max_norm": 5, "quorum": 2}) == Federation(max_norm=5.0, quorum=2)

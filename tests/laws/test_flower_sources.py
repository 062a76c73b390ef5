"""Clients elsewhere whose rows grow, over a post office in memory: what they keep, and what is believed."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import torch
from post_office import PostOffice, Time

from chronofed import CoreSet, Elsewhere, Experiment, Linear, Method, Scaffold, Table, Train
from chronofed.errors import RunError, SpecError
from chronofed.experiments.spec import load_settings
from chronofed.flower import server, wire
from chronofed.flower.client import answered, station_of
from chronofed.flower.settings import Federation, Node
from chronofed.flower.wire import Desk, fingerprint, read_reply, read_result, write_hello
from chronofed.protocol import Order
from chronofed.records.checkpoint import load_latest
from chronofed.scenarios import Schedule
from chronofed.vault import inspect
from chronofed.weights import Merged

ROWS = 6  # of a client in a round
METHOD = Method(Scaffold(), CoreSet(size=4))
SOURCE = """
[source]
kind = "table"
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
        f"c{client}-{k},{day:%Y-%m-%d},{client + k % 5}.25,{k % 3},{('calm', 'storm')[k % 2]}\n"
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
            str(folder / "test.csv"), "weather", "client", "when", holdout=0.5, standardise=False
        )
        start = Experiment(
            rounds=rounds,
            data=table,
            model=Linear(),
            scenario=Elsewhere(clients),
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

    def station(self, client, **more):
        return station_of(self.node(client, **more), {}, self.app)

    def office(self, tamper=None, **more):
        """Rows arrive when the first order of a round does."""

        def tampered(question, answer, again):
            return (answer, 0.0) if tamper is None else tamper(question, answer)

        clients = range(self.experiment.scenario.clients)
        office = PostOffice(Time(), {10 + i: self.station(i, **more) for i in clients}, tampered)
        send = office.send

        def growing(letters, seconds):
            rounds = [wire.read_question(letter).round for _, letter in letters if letter.body]
            while rounds and self.grown <= max(rounds):
                self.grow()
            return send(letters, seconds)

        office.send = growing
        return office

    def conduct(self, run="run", tamper=None, more=None, **settings):
        settings = Federation(**{"poll": 0.001, "patience": 0.3, **settings})
        office = self.office(tamper, **(more or {}))
        return server.conduct(self.experiment, self.folder / run, office, settings)

    def events(self, kind, run="run"):
        found = (self.folder / run / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, found) if event["event"] == kind]

    def vault(self, client):
        (path,) = (self.folder / "state").glob(f"client-{client}-*.sqlite")
        return inspect(path)


@pytest.fixture
def coast(tmp_path):
    return Coast(tmp_path)


def test_they_learn_from_rows_that_arrive_during_the_run(coast):
    summary = coast.conduct()
    assert summary["rounds"] == 3
    for client in (0, 1):
        seen = coast.vault(client)
        assert [(d.round, d.size, d.samples) for d in seen.data_sets] == [
            (0, 6, 4),
            (1, 6, 4),
            (2, 6, 4),
        ]
        assert f"{seen.data_sets[2].oldest:%Y-%m-%d}" >= "2020-01-13"
    history = server.RunDirectory(coast.folder / "run").history()
    assert len(history) == 3
    assert not any("seen" in key or "forgetting" in key for line in history for key in line)
    about = server.RunDirectory(coast.folder / "run").scenario()
    assert (about["elsewhere"], about["clients"]) == (True, 2)


def test_the_server_s_directory_has_none_of_their_rows(coast):
    """The distinctive 0.25 of every wind, as text and as a number of any width, and the names of rows."""
    coast.conduct()
    secret = [b"c0-1", torch.tensor([3.25, 0.0]).numpy().tobytes(), b"3.25"]
    kept = b"".join(p.read_bytes() for p in (coast.folder / "state").glob("*.sqlite"))
    assert torch.tensor([3.25]).numpy().tobytes() in kept  # so the search could find it
    for path in (coast.folder / "run").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [each for each in secret if each in content], path


def test_a_client_without_a_source_says_so_in_one_line(coast, capsys):
    node = {"client": 0, "state": str(coast.folder / "state")}
    reply = read_reply(answered(first_order(coast), node, {}, coast.app))
    assert "client 0 has no source" in reply.error
    assert "--node-config 'client=0 source=" in reply.error
    assert capsys.readouterr().err == f"chronofed: {reply.error}\n"


def first_order(coast, size=6, round_=0):
    state, none = {"params": torch.zeros(size), "control": torch.zeros(size)}, torch.zeros(0)
    order = Order(round_, 0, state, none, Merged(), None, Train(steps=1), 0)
    return Desk("00c0ffee", fingerprint(coast.experiment)).write(order, "train")[1]


def test_the_server_s_table_need_not_be_on_the_client(coast):
    coast.grow()
    (coast.folder / "test.csv").unlink()
    letter = coast.station(0).answer(first_order(coast))
    assert read_reply(letter).error == ""
    assert read_result(read_reply(letter), letter.body).size == ROWS
    assert load_settings(coast.app / "spec.toml") == coast.experiment


def test_features_that_were_not_agreed_on_are_one_line(coast):
    coast.grow()
    reply = read_reply(coast.station(0).answer(first_order(coast, size=10)))
    assert "make a model of 6 parameters, but the server's has 10" in reply.error


def test_what_is_wrong_with_a_row_is_told_to_its_owner_only(coast, capsys):
    (coast.folder / "rows-0.csv").write_text(
        "row,when,wind,rain,weather\nr,2020-01-01,1,2,plague\n"
    )
    letter = coast.station(0).answer(first_order(coast))
    reply = read_reply(letter)
    assert reply.error == "client 0 cannot read its own data in round 0: see its node's log"
    assert "plague" not in letter.header
    said = capsys.readouterr().err
    assert "'plague' is not a class that was agreed on" in said
    assert said.startswith(f"chronofed: {reply.error} (")
    assert len(said.splitlines()) == 1


def test_a_node_that_is_told_nonsense_says_what(coast, capsys):
    cases = {
        "node-config.max_aeg: unknown key; did you mean 'max_age'?": {"max_aeg": "3 days"},
        "Node.max_age: 'soon' is not a time such as '7 days'": {"max_age": "soon"},
        "node-config.budget: expected float": {"budget": 0},
        "cannot be read": {"source": "/none/such.toml"},
        "which client it is: start it with --node-config 'client=0'": {"client": -1},
    }
    for line, more in cases.items():
        reply = read_reply(
            answered(write_hello("00c0ffee"), {**coast.node(0), **more}, {}, coast.app)
        )
        assert line in reply.error
        assert "\n" not in reply.error
        assert (reply.client, capsys.readouterr().err) == (-1, f"chronofed: {reply.error}\n")
    flowers = {"partition-id": 1, "num-partitions": 3}
    assert read_reply(answered(write_hello("00c0ffee"), flowers, {}, coast.app)).client == 1


def test_a_node_s_budget_bounds_what_its_client_keeps(coast):
    coast.conduct(more={"budget": 0.0005})  # 524 bytes: one data set of the three
    seen = coast.vault(0)
    assert [d.round for d in seen.data_sets] == [2]
    assert 524 / 2 < seen.data_sets[0].bytes <= 524


def test_a_node_s_max_age_lets_old_rows_go(coast, monkeypatch):
    """At noon of the 20th January 2020 the rows of round 0 are older than ten days."""
    noon = datetime(2020, 1, 20, 12, tzinfo=UTC)
    monkeypatch.setattr("chronofed.vault.store.now", lambda: noon)
    coast.conduct(more={"max_age": "10 days"})
    seen = coast.vault(0)
    assert seen.samples > 0
    assert min(d.oldest for d in seen.data_sets) >= noon - timedelta(days=10)
    assert [d.round for d in seen.data_sets] == [1, 2]


def test_a_node_without_limits_has_none(tmp_path):
    vault = Node(0).vault(tmp_path / "v")
    assert (vault.budget, vault.max_age) == (None, None)
    vault = Node(0, budget=2.5, max_age="2 weeks").vault(tmp_path / "v")
    assert (vault.budget, vault.max_age) == (5 * 2**19, timedelta(days=14))


# A screen that remembers


def louder(question, answer, factor):
    reply = wire.read_reply(answer)
    result = wire.read_result(reply, answer.body)
    upload = {**result.upload, "delta": factor * result.upload["delta"]}
    result = type(result)(
        result.client, result.key, result.size, upload, result.buffers, result.kept
    )
    return wire.write_reply(question, result)


def one_left(tmp_path):
    """Client 1 leaves before round 2, so that client 0 is alone with the server's memory of usual lengths."""
    scenario = Elsewhere(2, membership=Schedule(((1, 0, 2),)))
    return Coast(tmp_path, scenario=scenario, method=Method())


class Stop(Exception):
    """The server's process dies."""


def stop_at_round_2(question, answer):
    if question.round == 2:
        raise Stop
    return answer, 0.0


def shout_at_round_2(question, answer):
    return louder(question, answer, 100.0) if question.round == 2 else answer, 0.0


def test_a_server_that_was_restarted_still_refuses_what_is_far_too_long(tmp_path):
    coast = one_left(tmp_path)
    with pytest.raises(Stop):
        coast.conduct(tamper=stop_at_round_2)
    with pytest.raises(RunError, match="round 2: only 0 of 1 clients"):
        coast.conduct(tamper=shout_at_round_2)
    (refused,) = coast.events("refused")
    assert "max_norm_factor" in refused["reason"]
    assert refused["round"] == 2
    coast.conduct()  # the honest answer, which the client sends again, is taken
    assert load_latest(coast.folder / "run/checkpoints")[0].round == 3


def test_it_is_the_checkpoint_that_remembers(tmp_path):
    coast = one_left(tmp_path)
    with pytest.raises(Stop):
        coast.conduct(tamper=stop_at_round_2)
    saved, _ = load_latest(coast.folder / "run/checkpoints")
    (lengths,) = [t for name, t in saved.engine.items() if "upload.delta" in name]
    assert len(lengths) == 4  # two clients in two rounds
    engine = server.FlowerEngine(None, None, "00c0ffee", "m", judge := Judge())
    engine.recall(saved.engine)
    assert judge.known is saved.engine
    assert engine.remembered() is saved.engine


class Judge:
    known = None

    def recall(self, remembered):
        self.known = remembered

    def remembered(self):
        return self.known


def test_the_screen_s_limits_can_be_set(tmp_path):
    coast = one_left(tmp_path)
    with pytest.raises(RunError, match="round 0: only 0 of 2 clients"):
        coast.conduct("strict", max_norm=1e-9)
    assert {"max_norm" in e["reason"] for e in coast.events("refused", "strict")} == {True}
    coast.conduct("lax", tamper=shout_at_round_2, max_norm_factor=1e5)
    assert coast.events("refused", "lax") == []


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
        server.federation({"spec": "spec.toml", **table})
    assert server.federation({"max_norm": 5, "quorum": 2}) == Federation(max_norm=5.0, quorum=2)

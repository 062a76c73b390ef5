"""The folder of a hub, its certificates and its proxy; nothing is started."""

import itertools
import json
import os
import ssl
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chronofed.cli.main import main
from chronofed.core.errors import RunError, SpecError
from chronofed.flower import node_service, proxy
from chronofed.flower.connections import read_connections
from chronofed.flower.hub import (
    EXCLUDED,
    HUB_LOG,
    NODE_KEY,
    STARTS,
    Hub,
    HubSettings,
    KnownNode,
    read_node,
)
from chronofed.flower.hub_status import Follower, describe, duration, read_status
from chronofed.flower.keys import (
    CA,
    CA_KEY,
    CERTIFICATE,
    KEY,
    expires,
    key_header,
    make_keys,
    renew,
)
from chronofed.flower.messages import MessageError
from chronofed.flower.roster import HELLO_LOOKS, MAX_HELLOS, Roster
from chronofed.flower.server_app import read_roster

x509 = pytest.importorskip("cryptography.x509", reason="cryptography comes with chronofed[flower]")

RELAY = Path("/tmp/relay")


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path / "hub")
    hub.create(HubSettings(("hub.example.org", "10.0.0.1"), 9000))
    return hub


def test_a_new_hub_is_for_its_owner_alone(hub):
    assert stat.S_IMODE(hub.path.stat().st_mode) == 0o700
    for path in hub.path.rglob("*"):
        if path.is_file() and path.suffix not in (".crt", ".pem", ".pub"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with pytest.raises(RunError, match="is a hub already"):
        hub.create(HubSettings(("x",)))
    with pytest.raises(RunError, match=r"is not a hub; make one: chronofed hub start"):
        _ = Hub(hub.path / "none").settings


def test_a_node_gets_everything_it_needs(hub):
    first, second = hub.add_node("a"), hub.add_node("b")
    assert {path.name for path in first.iterdir()} == {CA, "node.json", NODE_KEY, f"{NODE_KEY}.pub"}
    about = read_node(second)
    assert (about.name, about.clients, about.hub) == ("b", (1,), "hub.example.org:9000")
    assert (first / CA).read_bytes() == (hub.keys / CA).read_bytes()
    assert stat.S_IMODE((first / NODE_KEY).stat().st_mode) == 0o600
    public = (first / f"{NODE_KEY}.pub").read_bytes()
    assert hub.headers()[key_header(public)] == "a"


def test_a_node_that_is_removed_leaves_its_number(hub):
    hub.add_node("a")
    hub.add_node("b")
    before = hub.headers()
    hub.remove_node("a")
    assert not (hub.path / "nodes" / "a").exists()
    assert list(hub.headers().values()) == ["b"]
    hub.add_node("a")
    assert {name: node.clients for name, node in hub.nodes.items()} == {"a": (0,), "b": (1,)}
    assert len(hub.headers().keys() & before.keys()) == 1


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a", "x" * 64, "a\n", 'a"'])
def test_names_of_nodes_are_plain(name, hub):
    with pytest.raises(SpecError, match="is not a name of a node"):
        hub.add_node(name)


def test_names_and_numbers_are_used_once(hub):
    hub.add_node("a", [4, 6])
    for name, client, what in (("a", 5, "a node a"), ("b", 6, "a node for client 6")):
        with pytest.raises(SpecError, match=f"has {what} already"):
            hub.add_node(name, [client])
    with pytest.raises(SpecError, match=r"no node 'c'; it has a"):
        hub.remove_node("c")


def test_a_folder_without_its_file_is_no_node(tmp_path):
    with pytest.raises(RunError, match="chronofed hub add-node"):
        read_node(tmp_path)


@pytest.mark.parametrize("host", ["a/b", "", "hub example", "-x", "hub:8443", "x" * 300])
def test_a_host_is_a_name_or_an_address(host, tmp_path):
    with pytest.raises(SpecError, match="is not a name or an address of a machine"):
        Hub(tmp_path / "hub").create(HubSettings((host,)))
    assert not Hub(tmp_path / "hub").exists
    assert not (tmp_path / "hub" / "keys").exists()


def load(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_certificates_name_the_key_of_their_authority(hub):
    root, leaf = load(hub.keys / CA), load(hub.keys / CERTIFICATE)
    own = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert issuer.key_identifier == own
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example.org"]
    assert leaf.not_valid_after_utc < root.not_valid_after_utc - timedelta(days=3000)


def test_a_strict_client_accepts_the_certificate(hub):
    """As Python 3.13 does by default: the authority key identifier is required."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(hub.keys / CERTIFICATE, hub.keys / KEY)
    client.load_verify_locations(hub.keys / CA)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    there = server.wrap_bio(pipes[0], pipes[1], server_side=True)
    here = client.wrap_bio(pipes[1], pipes[0], server_hostname="hub.example.org")
    for _ in range(4):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert here.getpeercert()["issuer"] == ((("commonName", "chronofed authority"),),)


def test_a_renewed_certificate_has_the_same_authority(hub):
    root, before = (hub.keys / CA).read_bytes(), load(hub.keys / CERTIFICATE)
    hub.renew(["new.example.org"])
    after = load(hub.keys / CERTIFICATE)
    assert (hub.keys / CA).read_bytes() == root
    assert after.issuer == before.issuer
    assert after.serial_number != before.serial_number
    assert after.public_key() != before.public_key()
    after.verify_directly_issued_by(load(hub.keys / CA))
    assert hub.settings.hosts == ("new.example.org",)
    (hub.keys / CA_KEY).unlink()
    with pytest.raises(RunError, match="cannot renew the certificate without"):
        hub.renew()


def test_a_certificate_ends_before_its_authority(tmp_path):
    make_keys(tmp_path / "keys", 1, ["x"], days=3)
    until = expires(tmp_path / "keys" / CERTIFICATE)
    assert timedelta(days=2) < until - datetime.now(UTC) < timedelta(days=3)
    renew(tmp_path / "keys", ["x"], days=99_999)
    assert expires(tmp_path / "keys" / CERTIFICATE) == expires(tmp_path / "keys" / CA)


def test_the_proxy_publishes_the_calls_of_known_nodes_only(hub):
    hub.add_node("a")
    text = proxy.configuration(hub.proxy, hub.keys, "0.0.0.0:9000", 5555, hub.headers(), RELAY)
    published = [line.split()[2] for line in text.splitlines() if "location = " in line]
    assert published == [f"/v1/fleet/{call}" for call in proxy.NODE_CALLS]
    assert not {"register-node", "unregister-node"} & set(proxy.NODE_CALLS)
    assert "location / { return 404; }" in text
    assert text.count("https://127.0.0.1:5555/v1/fleet/") == len(proxy.NODE_CALLS) - 1
    # Without the relay, nodes ask the SuperLink.
    assert f"proxy_pass http://unix:{RELAY}:/v1/fleet/pull-messages;" in text
    assert "location @direct { proxy_pass https://127.0.0.1:5555; }" in text
    assert f'"{next(iter(hub.headers()))}" "a";' in text


@pytest.mark.parametrize("bad", ["a b", "a;b", "a$b", 'a"b', "a{b"])
def test_a_path_that_nginx_would_read_otherwise_is_refused(bad, hub, tmp_path):
    with pytest.raises(RunError, match="needs a path without"):
        proxy.configuration(tmp_path / bad, hub.keys, "x:1", 1, {}, RELAY)


def test_without_nginx_one_line_says_what_to_install(monkeypatch, hub):
    monkeypatch.setattr(proxy.shutil, "which", lambda name, path: None)
    with pytest.raises(RunError, match="apt install nginx-light"):
        proxy.write_checked(hub.proxy, "")


def test_nginx_checks_the_configuration_before_it_is_used(hub):
    try:
        proxy.find_nginx()
    except RunError:
        pytest.skip("nginx is missing: apt install nginx-light")
    good = proxy.configuration(hub.proxy, hub.keys, "127.0.0.1:9000", 5555, hub.headers(), RELAY)
    command = proxy.write_checked(hub.proxy, good)
    assert command[-1] == str(hub.proxy / proxy.CONFIGURATION)
    with pytest.raises(RunError, match="nginx refuses"):
        proxy.write_checked(hub.proxy, good.replace("return 404", "retrun 404"))
    assert (hub.proxy / proxy.CONFIGURATION).read_text() == good
    with pytest.raises(RunError, match="nginx does not run"):
        proxy.reload(hub.proxy)


def test_a_node_is_the_client_that_its_key_says(tmp_path):
    path = tmp_path / "roster.json"
    path.write_text(json.dumps({"11": [0], "12": [1]}))
    roster = Roster(None, "00c0ffee", lambda *_, **__: None, lambda: read_roster(path))
    roster._assign(11, 0)
    assert roster.node_of(0) == 11
    for node, client, reason in (
        (12, 0, "its key is for client 1"),
        (13, 2, "its key is not known"),
    ):
        with pytest.raises(MessageError, match=reason):
            roster._assign(node, client)
    assert roster.node_of(0) == 11


class Deaf:
    """A transport whose messages get no reply."""

    def __init__(self):
        self.sent = []

    def nodes(self):
        return {7}

    def send(self, messages, ttl_s):
        self.sent += [node for node, _ in messages]
        return [str(len(self.sent))] * len(messages)


def test_a_node_whose_reply_was_lost_is_asked_again():
    """A SuperLink whose database is locked loses it, and the node never joined."""
    transport = Deaf()
    roster = Roster(transport, "00c0ffee", lambda *_, **__: None)
    for _ in range(HELLO_LOOKS):
        roster.refresh(10.0)
    assert transport.sent == [7]
    for _ in range(HELLO_LOOKS):
        roster.refresh(10.0)
    assert transport.sent == [7, 7]
    for _ in range(MAX_HELLOS * HELLO_LOOKS * 2):
        roster.refresh(10.0)
    assert transport.sent == [7] * MAX_HELLOS


def test_a_node_that_answers_late_joins_once(monkeypatch):
    """On a busy machine the answer to the first question comes after the second was asked."""
    told, transport = [], Deaf()
    roster = Roster(transport, "00c0ffee", lambda kind, **_: told.append(kind))
    monkeypatch.setattr("chronofed.flower.roster._clients", lambda answer: (3,))
    for _ in range(3 * HELLO_LOOKS):
        roster.refresh(10.0)
    assert len(transport.sent) == 3
    assert roster.receive("1", object())
    assert (roster.node_of(3), told) == (7, ["joined"])
    # What else it was asked no longer matters.
    assert roster.message_ids == []
    roster.refresh(10.0)
    assert len(transport.sent) == 3


class Stage:
    """Processes that never were, and a clock that only tests move."""

    def __init__(self):
        self.now, self.over, self.started = 1000.0, False, []

    def monotonic(self):
        return self.now

    def ended(self, name):
        return self.over

    def last_line(self, name):
        return "refused"

    def stop(self, name):
        pass

    def start(self, name, *command):
        self.started.append((self.now, name, command))


@pytest.fixture
def stage(monkeypatch):
    stage = Stage()
    monkeypatch.setattr(node_service, "time", stage)
    return stage


def watch(node, stage, seconds, said):
    for _ in range(seconds):
        stage.now += 1
        node.tend(said.append)


PROGRAM = "/launchers/flower-supernode"


def test_a_node_that_is_refused_is_started_again_and_again(hub, stage):
    folder, said = hub.add_node("a", [3, 5]), []
    config = {"source": "/data/{name}-{client}.toml", "limit_mb": 5.0}
    node = node_service.RunningNode(folder, config, stage, PROGRAM)
    node.check()
    node.start()
    (_, name, command), table = stage.started[0], stage.started[0][2][-1]
    assert command[0] == PROGRAM
    assert name == "node-a"
    assert "hub.example.org:9000" in command
    for text in ('client=3 others="5"', 'source="/data/a-{client}.toml"', "limit_mb=5.0"):
        assert text in table
    stage.over = True
    watch(node, stage, 150, said)
    times = [at for at, *_ in stage.started]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    # It is refused for up to a minute; after three minutes nobody is in a hurry any more.
    assert pauses[:4] == [2, 4, 8, 12]
    assert max(pauses) == 12
    assert said[0] == "the SuperNode of a has ended (refused); starting it again"
    watch(node, stage, 600, said)
    assert stage.started[-1][0] - stage.started[-2][0] == 60
    stage.over = False
    watch(node, stage, 60, said)
    stage.over, before = True, len(stage.started)
    watch(node, stage, 6, said)
    # At once, and after four seconds.
    assert len(stage.started) == before + 2


def test_a_node_needs_the_whole_folder(hub, stage):
    folder = hub.add_node("a")
    (folder / NODE_KEY).unlink()
    with pytest.raises(RunError, match=r"node\.key is missing; carry the whole folder"):
        node_service.RunningNode(folder, {}, stage, PROGRAM).check()


def write_lines(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


@pytest.fixture
def busy(hub):
    """A hub in the middle of a run, as files."""
    hub.add_node("a")
    hub.add_node("b")
    (hub.app).mkdir()
    (hub.app / "spec.toml").write_text("rounds = 10\n")
    (hub.run).mkdir()
    (hub.run / "spec.toml").write_text("rounds = 10\n")
    write_lines(hub.run / "metrics.jsonl", {"round": 2, "seconds": 1.0})
    beat = {"node": "a", "status": 200, "time": time.time() - 30}
    write_lines(hub.proxy / proxy.SEEN_LOG, beat, {"node": "", "status": 401, "time": 1.0})
    return hub


ANSWERS = {"exchange": "train", "asked": [0, 1], "answered": [0], "seconds": 4.0}
REFUSED = {"event": "refused", "round": 1, "client": 1, "reason": "not finite", "time": 2.0}


def test_the_status_says_who_was_seen_and_what_went_wrong(busy):
    write_lines(busy.run / "answers.jsonl", *({**ANSWERS, "round": t, "time": t} for t in (0, 1)))
    write_lines(busy.run / "events.jsonl", {"event": "joined", "client": 0, "time": 1.0}, REFUSED)
    with (busy.run / "events.jsonl").open("a") as file:
        file.write('{"event": "cut')
    status = read_status(busy)
    assert (status.round, status.rounds, status.round_s, status.remaining_s) == (2, 10, 4.0, 32.0)
    a, b = status.nodes
    assert (a.client, a.round, a.refused, a.problem) == (0, 1, 0, "")
    assert a.seen == pytest.approx(time.time() - 30, abs=30)
    assert (b.seen, b.round, b.refused) == (None, None, 1)
    assert b.problem == "round 1: refused client 1: not finite"
    assert status.strangers == 1
    text = "\n".join(status.lines())
    for piece in ("2 of 10 rounds done", "about 32 s left", "never", "strangers: 1"):
        assert piece in text


def test_an_excluded_node_misses_later_rounds_and_has_no_other_problem(busy):
    """Until the hub starts again, which lets it in."""
    log, run = busy.path / HUB_LOG, busy.run / "events.jsonl"
    write_lines(log, {"event": "hub", "message": STARTS, "time": 1.0})
    write_lines(log, {"event": EXCLUDED, "name": "b", "message": "too much", "time": 3.0})
    write_lines(run, REFUSED, {"event": "missing", "round": 2, "client": 1, "time": 4.0})
    assert read_status(busy).nodes[1].problem == "excluded node b: too much"
    write_lines(log, {"event": "hub", "message": STARTS, "time": 5.0})
    assert read_status(busy).nodes[1].problem == "round 2: missing client 1"


def line(node, at, call="send-node-heartbeat", status=200):
    return {"node": node, "status": status, "time": at, "request": f"POST /v1/fleet/{call}"}


def test_starts_silences_and_refusals_of_nodes_are_events(tmp_path):
    write_lines(
        tmp_path / "seen.old",
        line("a", 10.0, "activate-node"),
        line("b", 10.5, "activate-node"),
        *(line("a", 20.0 * k) for k in range(1, 5)),
    )
    write_lines(
        tmp_path / proxy.SEEN_LOG,
        line("a", 130.0),
        line("a", 140.0, "activate-node", 412),
        line("a", 150.0, "activate-node", 412),
        line("", 151.0, "pull-messages", 401),
        line("a", 152.0, "activate-node"),
        line("a", 1000.0, "activate-node", 401),
        line("b", 1001.0, "push-object", 413),
    )
    found = read_connections(tmp_path)
    assert found.strangers == 1
    assert found.seen == {"a": 152.0, "b": 10.5}
    said = [(e["time"], describe(e)) for e in found.events]
    taken = (
        "Flower takes it for connected: killed less than a minute ago, or two machines with one key"
    )
    assert said == [
        (130.0, "silent node a: no heartbeat for 50 s"),
        (140.0, f"not accepted node a: {taken} (2 times)"),
        (152.0, "restarted node a"),
        (1000.0, "not accepted node a: HTTP 401 (1 times)"),
    ]


def test_the_status_has_all_kinds_of_events_in_order_of_time(busy):
    behind = {"event": "behind", "round": 1, "client": 1, "reason": "old", "time": 5.0}
    started = [{"event": "started", "time": t} for t in (1.0, 4.0)]
    write_lines(busy.run / "events.jsonl", started[0], REFUSED, started[1], behind)
    write_lines(busy.path / "hub.jsonl", {"event": "hub", "message": "proxy", "time": 3.0})
    status = read_status(busy)
    assert status.counts == {"refused": 1, "hub": 1, "resumed": 1, "behind": 1}
    words = [text[20:].split(":")[0] for text in status.events]
    assert words == ["round 1", "hub", "resumed", "round 1"]
    assert [node.restored for node in status.nodes] == ["", "behind in round 1"]
    text = "\n".join(status.lines())
    assert "events: 1 behind, 1 hub, 1 refused, 1 resumed" in text
    assert len(read_status(busy, 2).events) == 2


def test_the_operator_hears_of_every_round_and_event_once(busy):
    follower = Follower(busy)
    assert follower.news() == []
    write_lines(busy.run / "answers.jsonl", {**ANSWERS, "round": 1, "time": 3.0})
    write_lines(busy.run / "events.jsonl", REFUSED)
    assert follower.news() == [
        "round 1: refused client 1: not finite",
        "round 1: 1 of 2 clients, without 1, 4.0 s, about 32 s left",
    ]
    assert follower.news() == []


def test_words_for_events_and_times():
    assert describe({"event": "started"}) == "started"
    assert [duration(s) for s in (3, 300, 7300, 200_000)] == ["3 s", "5 min", "2 h", "2 d"]


def test_the_commands(tmp_path, capsys, monkeypatch):
    hub = str(tmp_path / "hub")
    assert main(["hub", "start", hub]) == SpecError.exit_code
    assert "give SPEC.toml and --host" in capsys.readouterr().err
    assert main(["hub", "add-node", hub, "a"]) == RunError.exit_code
    Hub(tmp_path / "hub").create(HubSettings(("localhost",)))
    assert main(["hub", "add-node", hub, "a", "b"]) == 0
    assert "chronofed node start a" in capsys.readouterr().err
    assert main(["hub", "add-node", hub, "c", "d", "--client", "7"]) == SpecError.exit_code
    assert main(["hub", "renew", hub]) == 0
    assert main(["hub", "remove-node", hub, "b"]) == 0
    capsys.readouterr()
    assert main(["hub", "status", hub, "--json"]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["a"]
    assert main(["hub", "status", hub, "--events", "0"]) == SpecError.exit_code
    capsys.readouterr()
    node = str(tmp_path / "hub" / "nodes" / "a")
    assert main(["node", "start", node, "--unit", "--limit-mb", "5"]) == 0
    unit = capsys.readouterr().out
    assert "--unit" not in unit.split("ExecStart=")[1].splitlines()[0]
    assert "Restart=always" in unit
    assert main(["node", "start", node, "--max-age", "soon"]) == SpecError.exit_code
    assert main(["node", "start", str(tmp_path)]) == RunError.exit_code
    assert os.listdir(node).count("state") == 0


def test_settings_of_a_known_node():
    for clients in ((-1,), ()):
        with pytest.raises(ValueError, match=r"KnownNode\.clients"):
            KnownNode(clients, "x")

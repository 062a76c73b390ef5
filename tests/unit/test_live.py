"""The live page: follows files that grow, and shows runs, nothing else, to this machine only."""

import http.client
import json
import os
import select
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from chronofed import Experiment
from chronofed.core.errors import StorageError
from chronofed.reports import run_index
from chronofed.reports.jsonl_follow import JsonlFollower, last_lines
from chronofed.reports.run_index import RunIndex
from chronofed.reports.web.live import LiveServer
from chronofed.runs import RunDirectory


def make(path, rounds=3, finish=True, **settings):
    run = RunDirectory.create(path, Experiment(**{"rounds": 10, **settings}).resolved(), {})
    for t in range(1, rounds + 1):
        run.append({"round": t, "test_accuracy": t / 10, "test_loss": 1.0}, {"total": 2.0})
    if finish:
        run.finish({"rounds": rounds, "best5": 0.2, "last": 0.3, "anytime": 0.2})
    return run


def read(follower: JsonlFollower):
    again, lines = follower.read()
    return again, [line["round"] for line in lines]


def test_a_follower_reads_only_what_is_new(tmp_path):
    path = tmp_path / "lines"
    follower = JsonlFollower(path)
    assert read(follower) == (False, [])
    path.write_bytes(b'{"round": 1}\n{"round": 2}\n{"rou')
    assert read(follower) == (False, [1, 2])
    with path.open("ab") as file:
        file.write(b'nd": 3}\n\xff\xff damaged\n[4]\n{"round": 5}\n')
    assert read(follower) == (False, [3, 5])
    assert read(follower) == (False, [])


def test_a_follower_starts_over_when_the_file_is_replaced_or_cut(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"round": 1}\n{"round": 2}\n')
    follower = JsonlFollower(path)
    read(follower)
    (tmp_path / "new").write_bytes(b'{"round": 1}\n{"round": 7}\n{"round": 8}\n')
    os.replace(tmp_path / "new", path)  # as rewinding does
    assert read(follower) == (True, [1, 7, 8])
    with path.open("r+b") as file:
        file.truncate(13)
    assert read(follower) == (True, [1])
    with path.open("r+b") as file:  # the same file and a longer one, but with another past
        file.write(b'{"round": 9}\n{"round": 4}\n')
    assert read(follower) == (True, [9, 4])
    path.unlink()
    assert read(follower) == (True, [])


def test_last_lines_do_not_read_the_whole_file(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(f'{{"round": {t}}}\n' for t in range(1000)) + '{"rou')
    assert [line["round"] for line in last_lines(path, 40)] == [998, 999]
    assert last_lines(tmp_path / "none") == []


def test_the_list_says_how_runs_are(tmp_path):
    make(tmp_path / "done", name="Done", seed=3)
    make(tmp_path / "deep" / "half", finish=False)
    make(tmp_path / "bad", rounds=0, finish=False).fail("it broke")
    working = make(tmp_path / "now", rounds=4, finish=False)
    with working.lock():
        rows = {row["id"]: row for row in RunIndex(tmp_path).rows()}
    assert {k: row["state"] for k, row in rows.items()} == {
        "done": "finished",
        "deep/half": "stopped",
        "bad": "failed",
        "now": "running",
    }
    assert next(iter(rows)) == "now"  # what runs comes first
    assert rows["now"]["eta"] == 12.0  # six rounds of two seconds
    assert rows["done"]["eta"] is None
    assert (rows["done"]["name"], rows["done"]["seed"], rows["done"]["headline"]) == (
        "Done",
        3,
        "30.0%",
    )
    assert rows["bad"]["note"] == "it broke"


def test_what_did_not_change_is_not_read_again(tmp_path, monkeypatch):
    runs = [make(tmp_path / f"{k}", seed=k, finish=bool(k)) for k in range(4)]
    index = RunIndex(tmp_path)
    index.rows()
    read_again = []
    row = run_index._row
    monkeypatch.setattr(
        run_index, "_row", lambda name, path: read_again.append(name) or row(name, path)
    )
    index.rows()
    assert read_again == []
    runs[0].append({"round": 4, "test_accuracy": 0.9, "test_loss": 1.0}, {"total": 2.0})
    rows = {r["id"]: r for r in index.rows()}
    assert read_again == ["0"]
    assert rows["0"]["headline"] == "90.0%"
    with runs[0].lock():  # no file changes, but the state does
        assert {r["id"]: r["state"] for r in index.rows()}["0"] == "running"
    assert {r["id"]: r["state"] for r in index.rows()}["0"] == "stopped"


def curve(content):
    return content["measures"][0]["curves"][0]["x"]


def test_a_payload_grows_with_its_run(tmp_path):
    run = make(tmp_path / "run", finish=False)
    index = RunIndex(tmp_path)
    assert curve(index.payload(["run", "unknown"])) == [1, 2, 3]
    same = index.payload(["run"])
    assert index.payload(["run"]) is same  # nothing is computed again
    run.append(
        {"round": 4, "test_accuracy": 0.9, "test_loss": 1.0},
        {"total": 2.0},
        {
            "period_accuracy": {
                "round": 4,
                "basis": "rows",
                "pairs": 1,
                "accuracy": [[0, 0, 1.0]],
                "held": [],
                "tested": [],
            }
        },
    )
    content = index.payload(["run"])
    assert curve(content) == [1, 2, 3, 4]
    assert len(content["periods"]) == 1
    run.rewind("metrics.jsonl", 2)
    run.rewind("period_accuracy.jsonl", 2)
    content = index.payload(["run"])
    assert curve(content) == [1, 2]
    assert content["periods"] == []
    assert index.payload([])["groups"] == []


def test_memory_is_for_what_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "MOST_CHOSEN", 2)
    for k in range(4):
        make(tmp_path / f"{k}", seed=k)
    index = RunIndex(tmp_path)
    for k in range(4):
        index.payload([f"{k}"])
    assert [path.name for path in index._followed] == ["2", "3"]
    assert len(index.payload(["0", "1", "2"])["groups"][0]["runs"]) == 2  # the most on a page


def test_runs_that_cannot_be_read_do_no_harm(tmp_path):
    make(tmp_path / "good")
    make(tmp_path / "broken")
    (tmp_path / "broken" / "spec.toml").write_text("name = ")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "spec.toml").write_text("rounds = 3\n")
    index = RunIndex(tmp_path)
    rows = {row["id"]: row for row in index.rows()}
    assert rows["broken"]["state"] == "failed"
    assert "is damaged" in rows["broken"]["note"]
    names = [group["name"] for group in index.payload(["good", "broken", "odd"])["groups"]]
    assert "run" in names


def test_one_run_can_be_watched(tmp_path):
    make(tmp_path / "run")
    index = RunIndex(tmp_path / "run")
    assert [row["id"] for row in index.rows()] == ["run"]
    assert curve(index.payload(["run"])) == [1, 2, 3]


@pytest.fixture
def server(tmp_path):
    (tmp_path / "secret").mkdir()
    make(tmp_path / "secret" / "run", name="secret")
    make(tmp_path / "root" / "run", name="<script>alert(1)</script>")
    with LiveServer(tmp_path / "root", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_pages_and_answers(server):
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
    ):
        answer, body = ask(server, path)
        assert (answer.status, answer.headers.get_content_type()) == (200, kind)
        assert body
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    answer, body = ask(server, "/api/runs")
    assert json.loads(body)["runs"][0]["name"] == "<script>alert(1)</script>"
    assert answer.headers.get_content_type() == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    answer, body = ask(server, "/api/payload?run=run")
    assert len(json.loads(body)["groups"]) == 1


def test_only_this_machine_is_served(server):
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    for host, status in (
        (f"127.0.0.1:{port}", 200),
        (f"localhost:{port}", 200),
        # A forwarded port, as by ssh -L 9000:127.0.0.1:8765.
        ("localhost:9000", 200),
        ("127.0.0.1", 200),
        ("[::1]:9000", 200),
        ("evil.example", 403),
        (f"evil.example:{port}", 403),
        (f"127.0.0.1:{port}.evil.example", 403),
        ("localhost.evil.example:9000", 403),
        (f"localhost@evil.example:{port}", 403),
        ("localhost, evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ):
        answer, body = ask(server, "/api/runs", Host=host)
        assert answer.status == status, host
        assert (b"alert" in body) == (status == 200)


def test_an_unknown_host_is_told_what_to_do_and_can_be_allowed(server):
    _, body = ask(server, "/", Host="Box.Example:8765")
    assert json.loads(body)["error"] == (
        "unknown host 'box.example'; if it is yours, start chronofed watch with --allow-host and this name"
    )
    with LiveServer(Path("."), 0, ["BOX.example"]) as other:
        server.hosts = other.hosts
    assert ask(server, "/", Host="Box.Example:8765")[0].status == 200
    assert ask(server, "/", Host="other.box.example")[0].status == 403


@pytest.mark.parametrize(
    ("address", "status", "reason"),
    [
        ("/api/payload?" + "run=run&" * 1001, 400, "more than 1000 fields in the query"),
        ("http://[::1", 400, "not an address: Invalid IPv6 URL"),
        ("/none", 404, "no such page"),
    ],
)
def test_addresses_that_make_no_sense_get_one_line(server, capfd, address, status, reason):
    answer, body = ask(server, address, Host="localhost")
    assert (answer.status, json.loads(body)) == (status, {"error": reason})
    assert capfd.readouterr().err == ""


def test_names_that_are_no_runs_do_no_harm(server, capfd):
    answer, body = ask(server, "/api/payload?run=%00&run=%ff&run=..%2f..&run=" + "a" * 5000)
    assert (answer.status, json.loads(body)["groups"]) == (200, [])
    assert capfd.readouterr().err == ""


def test_many_browsers_may_come_at_once(tmp_path):
    """All connect before the first is accepted; one beyond the backlog would never get through."""
    with LiveServer(tmp_path, 0) as waiting, ExitStack() as stack:
        for _ in range(60):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(waiting.server_address)
            assert select.select([], [one], [], 10)[1] == [one]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, "/api/runs", method)[0].status == 501


def test_head_has_no_body(server):
    answer, body = ask(server, "/api/runs", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    "path",
    [
        "/../secret/run/spec.toml",
        "/..%2fsecret/run/spec.toml",
        "/run/spec.toml",
        "//etc/passwd",
        "/page.js/../../live.py",
        "/LICENSE.uplot",
    ],
)
def test_no_file_is_served_by_its_path(server, path):
    answer, body = ask(server, path)
    assert answer.status == 404
    assert json.loads(body) == {"error": "no such page"}


@pytest.mark.parametrize(
    "name",
    [
        "../secret/run",
        "..%2Fsecret%2Frun",
        "run/../../secret/run",
        "/etc",
        ".",
        "",
        "run%00",
        "run/",
    ],
)
def test_no_run_outside_is_served(server, tmp_path, name):
    for given in (name, str(tmp_path / "secret" / "run")):
        answer, body = ask(server, f"/api/payload?run={given}")
        assert answer.status == 200
        assert json.loads(body)["groups"] == []
        assert b"secret" not in body


def test_links_that_lead_out_are_refused(server, tmp_path):
    root = tmp_path / "root"
    os.symlink(tmp_path / "secret", root / "folder")
    os.symlink(tmp_path / "secret" / "run", root / "linked")
    make(root / "sly", rounds=0, finish=False)
    os.symlink(tmp_path / "secret" / "run" / "metrics.jsonl", root / "sly" / "metrics.jsonl")
    (root / "slier").mkdir()
    os.symlink(tmp_path / "secret" / "run" / "spec.toml", root / "slier" / "spec.toml")
    rows = json.loads(ask(server, "/api/runs")[1])["runs"]
    assert [row["id"] for row in rows] == ["run"]
    query = "&".join(f"run={n}" for n in ("folder/run", "linked", "sly", "slier", "run"))
    (group,) = json.loads(ask(server, f"/api/payload?{query}")[1])["groups"]
    assert group["name"] == "<script>alert(1)</script>"


def test_what_the_browser_has_is_not_sent_again(server, tmp_path):
    tag = ask(server, "/api/runs")[0].headers["ETag"]
    answer, body = ask(server, "/api/runs", **{"If-None-Match": tag})
    assert (answer.status, body) == (304, b"")
    make(tmp_path / "root" / "new", seed=1)
    answer, body = ask(server, "/api/runs", **{"If-None-Match": tag})
    assert answer.status == 200
    assert len(json.loads(body)["runs"]) == 2


def test_a_port_that_is_taken(server):
    with pytest.raises(StorageError, match="choose another --port"):
        LiveServer(Path("."), server.server_address[1])
    with pytest.raises(StorageError, match="choose another --port"):
        LiveServer(Path("."), 70_000)


def test_nothing_of_the_page_is_made_from_html():
    """Names of runs become text nodes, never HTML."""
    folder = Path(run_index.__file__).parent / "web"
    for path in folder.glob("*.js"):
        if path.name != "uplot.js":
            text = path.read_text(encoding="utf-8")
            for door in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert door not in text, path.name

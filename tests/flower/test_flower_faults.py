"""Faults with real processes: nothing is lost or counted twice."""

import os
import re
import signal
from pathlib import Path

import pytest

from chronofed.flower.keys import make_keys
from chronofed.flower.local import LocalFederation
from chronofed.runs import RunDirectory
from chronofed.runs.checkpoint import load_latest
from tests.helpers.trial import (
    NEEDS_FLOWER,
    Trial,
    differences,
    kinds,
    rounds_done,
    small,
    undisturbed,
    wait,
)

pytestmark = NEEDS_FLOWER

# A client app with code before and after the answer; ``place`` is (client, round).
CLIENT = """
import time
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from chronofed.flower.client_app import make_node
from chronofed.flower.codec import read_result, write_result
from chronofed.flower.messages import read_reply, read_request
from chronofed.flower.transport import from_content, to_content

app = ClientApp()


def first(name):
    mark = MARKS / name
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def changed(request, reply, **changes):
    header = read_reply(reply)
    result = read_result(header, reply.body)
    return write_result(request, replace(result, **changes))


def answer(message, context):
    client_node = make_node(context.node_config, context.run_config, Path(__file__).parent)
    order = from_content(message.content)
    request = read_request(order)
    place = (client_node.client, request.round) if request.kind == "train" else None
    BEFORE
    reply = client_node.answer(order)
    AFTER
    return Message(to_content(reply), reply_to=message)


app.query()(answer)
app.train()(answer)
"""


def client(before: str = "pass", after: str = "pass") -> str:
    def indented(code):
        return code.strip().replace("\n", "\n    ")

    return CLIENT.replace("BEFORE", indented(before)).replace("AFTER", indented(after))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three nodes that serve several tests, one run after the other."""
    with LocalFederation(tmp_path_factory.mktemp("federation") / "flower") as federation:
        for number in range(3):
            federation.start_node(number)
        yield federation


WATCHED = """
import os
import sys
from pathlib import Path

from chronofed.flower import client_app as own

hand_over = own.hand_over


def watched(*given):
    reply = hand_over(*given)
    (MARKS / str(os.getpid())).write_text(" ".join(sys.modules))
    return reply


own.hand_over = watched
app = own.client_app(__file__)
"""


def test_the_process_of_a_message_does_not_import_torch(federation, tmp_path):
    trial = Trial(tmp_path, federation, small(rounds=2))
    trial.program("client", WATCHED)
    trial.submit()
    trial.finish()
    assert differences(trial.run, undisturbed(small(rounds=2))) == []
    seen = [mark.read_text().split() for mark in trial.marks.iterdir()]
    # Every client is asked who it is, and trains twice, each time in a process of its own.
    assert len(seen) == 9
    for modules in seen:
        assert "flwr.clientapp" in modules
        assert not {"torch", "chronofed.flower.node"} & set(modules)


def test_a_client_that_raises_after_training_is_asked_again_and_does_not_train_twice(
    federation, tmp_path
):
    trial = Trial(tmp_path, federation, small())
    trial.program(
        "client",
        client(
            after="""
if place and place[0] == 1 and first(f"raised-{place[1]}"):
    raise ZeroDivisionError("on purpose")
"""
        ),
    )
    trial.submit()
    trial.finish()
    assert differences(trial.run, undisturbed(small())) == []
    failed = trial.events("failed")
    assert [(e["client"], e["round"]) for e in failed] == [(1, t) for t in range(4)]
    assert all("on purpose" in e["reason"] for e in failed)
    assert set(kinds(trial.run)) == {"started", "joined", "failed", "finished"}


def test_hostile_answers_are_refused_or_clipped(federation, tmp_path):
    """What is refused is never aggregated; what is only large is scaled down to the limit first."""
    trial = Trial(tmp_path, federation, small())
    trial.program(
        "client",
        client(
            after="""
if place and place[0] == 1:
    upload = dict(read_result(read_reply(reply), reply.body).upload)
    delta = upload["delta"]
    if place[1] == 0:
        upload["delta"] = torch.full_like(delta, float("nan"))
    elif place[1] == 1:
        upload["delta"] = delta[:-1].clone()
    elif place[1] == 2:
        upload["delta"] = 100 * delta
    elif place[1] == 3:
        upload["delta"] = 2e6 * delta / delta.norm()
    reply = changed(request, reply, upload=upload)
"""
        ),
    )
    trial.submit()
    trial.finish()
    refused = trial.events("refused")
    assert [(e["client"], e["round"]) for e in refused] == [(1, 0), (1, 1), (1, 3)]
    for event, reason in zip(refused, ("not finite", "shape", "(max_norm)"), strict=True):
        assert reason in event["reason"]
    (clipped,) = trial.events("clipped")
    assert (clipped["client"], clipped["round"]) == (1, 2)
    norm, usual = (
        float(re.search(rf"{words} ([\d.e+-]+)", clipped["reason"])[1])
        for words in ("upload.delta: norm", "others is")
    )
    assert norm > 10 * usual
    last, complaints = load_latest(trial.run / "checkpoints")
    assert not complaints
    assert dict(last.engine["accepted"].tolist()) == {0: 3, 1: 2, 2: 3}
    # The largest norm that was aggregated from the hostile client is the limit itself.
    peaks = dict(last.engine["train upload.delta"].tolist())
    assert peaks[1] == pytest.approx(10 * usual, rel=0.01)
    assert all(t.isfinite().all() for t in last.server.values())
    assert rounds_done(trial.run) == 4
    assert set(kinds(trial.run)) == {"started", "joined", "refused", "clipped", "finished"}


def test_a_client_slower_than_the_round_timeout_is_missing_and_its_late_answer_dropped(
    federation, tmp_path
):
    trial = Trial(tmp_path, federation, small(), round_timeout_s=30.0, quorum=2)
    trial.program(
        "client",
        client(
            before="""
if place and place[0] == 2 and place[1] == 1 and first("slept"):
    time.sleep(45)
"""
        ),
    )
    trial.submit()
    trial.finish()
    missing = trial.events("missing")
    assert {e["client"] for e in missing} == {2}
    assert 1 in {e["round"] for e in missing}
    late = trial.events("late")
    assert [e["order"].split("/")[1:] for e in late][:1] == [["1", "train", "2"]]
    assert rounds_done(trial.run) == 4


def test_a_node_killed_in_training_and_restarted_goes_on_where_it_was(federation, tmp_path):
    trial = Trial(tmp_path, federation, small())
    trial.program(
        "client",
        client(
            before="""
if place and place == (1, 2) and first("training"):
    time.sleep(600)
"""
        ),
    )
    trial.submit()
    wait((trial.marks / "training").exists, what="training in round 2")
    federation.processes.kill("node-1")
    federation.start_node(1)
    trial.finish()
    assert differences(trial.run, undisturbed(small())) == []
    assert [e["client"] for e in trial.events("moved")] == [1]


SERVER = """
import os
from pathlib import Path

from chronofed.flower.server_app import server_app

(MARKS / f"server-{len(list(MARKS.iterdir()))}").write_text(str(os.getpid()))
app = server_app(__file__)
"""


def test_a_server_app_killed_and_started_again_ends_with_the_same_bits(federation, tmp_path):
    trial = Trial(tmp_path, federation, small())
    trial.program("server", SERVER)
    trial.submit()
    wait(lambda: rounds_done(trial.run) >= 2, what="round 2")
    os.kill(int((trial.marks / "server-0").read_text()), signal.SIGKILL)
    wait(lambda: RunDirectory(trial.run).state == "stopped", what="the server's end")
    trial.submit()
    trial.finish()
    assert differences(trial.run, undisturbed(small())) == []
    assert kinds(trial.run).count("started") == 2
    same = (trial.run / "metrics.jsonl").read_bytes()
    assert same == (undisturbed(small()) / "metrics.jsonl").read_bytes()


def test_a_client_joins_in_mid_run(tmp_path):
    with LocalFederation(tmp_path / "flower") as federation:
        trial = Trial(tmp_path, federation, small(rounds=8), join_timeout_s=1.0, quorum=2)
        for number in range(2):
            federation.start_node(number)
        trial.submit()
        wait(lambda: rounds_done(trial.run) >= 1, what="the first round")
        federation.start_node(2)
        trial.finish()
        joined = {e["client"]: e["round"] for e in trial.events("joined")}
        assert joined[2] >= 1
        assert list((federation.folder / "clients").glob("client-2-*.sqlite"))
        assert {e["client"] for e in trial.events("missing")} == {2}
        assert len(trial.events("missing")) < 8


def test_a_superlink_killed_and_restarted_loses_nothing(tmp_path):
    with LocalFederation(tmp_path / "flower", database=True) as federation:
        trial = Trial(tmp_path, federation, small())
        for number in range(3):
            federation.start_node(number)
        trial.submit()
        wait(lambda: rounds_done(trial.run) >= 1, what="the first round")
        federation.processes.kill("superlink")
        federation.processes.kill("run")
        wait(lambda: RunDirectory(trial.run).state == "stopped", what="the server's end")
        federation.start_link()
        trial.submit()
        trial.finish()
        assert differences(trial.run, undisturbed(small())) == []


def test_a_node_without_a_known_key_is_refused(tmp_path):
    """Also: a run over TLS with keys ends with the same bits."""
    keys, stranger = tmp_path / "keys", tmp_path / "stranger"
    make_keys(keys, 3, ["localhost", "127.0.0.1"])
    make_keys(stranger, 1, ["localhost"])
    with LocalFederation(tmp_path / "flower", keys=keys) as federation:
        for number in range(2):
            federation.register(keys / f"client-{number}.pub")
            federation.start_node(number, key=keys / f"client-{number}")
        federation.start_node(2, key=stranger / "client-0")
        trial = Trial(tmp_path, federation, small(rounds=2), join_timeout_s=20.0, quorum=2)
        trial.submit()
        trial.finish()
        assert {e["client"] for e in trial.events("joined")} == {0, 1}
        assert not list((federation.folder / "clients").glob("client-2-*.sqlite"))
        log = (federation.processes.logs / "node-2.log").read_text()
        assert "SuperNode ID" not in log


def test_nothing_is_left_running(tmp_path):
    with LocalFederation(tmp_path / "flower") as federation:
        federation.start_node(0)
        wait(lambda: "SuperNode ID" in (federation.processes.logs / "node-0.log").read_text())
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(federation.port) in _text(p)]
    assert left == []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

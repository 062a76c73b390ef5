"""A federation over TLS in which a node with a key attacks in every round, each time in another way."""

import os
import re
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chronofed import CoreSet, Method, Scaffold, Subsets
from chronofed import run as run_here
from chronofed.engines import SerialEngine
from chronofed.flower.hub import Hub, HubSettings
from chronofed.flower.hub_service import HubService, prepare_app
from chronofed.flower.hub_status import read_status
from chronofed.flower.processes import Processes, environment, free_port
from chronofed.runs import RunDirectory
from chronofed.runs.built import build
from chronofed.runs.checkpoint import encode, files, load
from tests.helpers.trial import NEEDS_FLOWER, events, rounds_done, small, wait

NEEDS_NGINX = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ.get('PATH')}:/usr/sbin") is None,
    reason="nginx is missing: apt install nginx-light",
)
pytestmark = [NEEDS_FLOWER, NEEDS_NGINX]

NAMES = "abcd"
ATTACKER = 3
REASONS = {
    "nan": "upload.delta: contains numbers that are not finite",
    "inf": "upload.delta: contains numbers that are not finite",
    "1e30": r"upload.delta: norm 1e\+30 is above 1e\+06",
    "shape": r"upload.delta: expected .* of shape \(7850\), got .* of shape \(2, 3925\)",
    "dtype": "upload.delta: expected float32 .*, got float64",
    "500 MB": "body too large: 500.* bytes, at most .* are accepted|does not fit into the memory",
    "header bomb": "malformed body",
    "JSON bomb": "a header of [0-9]+ characters",
    "other round": "the reply is for .*, expected",
    "replay": "the reply is for .*/0/train/3', expected",
    "other client": "the reply is for 2, expected 3",
    "malformed": "malformed body",
    "unfolds": "does not fit into the memory",
    "not a message": "cannot be put together",
    "other records": "not a message of chronofed: no header",
    "claims another": "the reply is for another message",
}
"""Why each reply is refused; a reply that never comes is missing."""


LARGE = ("500 MB", "JSON bomb", "unfolds")
"""Attacks that take so long on a busy machine that the round may be over before."""
KINDS = ("honest", *REASONS, "slow drip", "loud")
"""What the attacker does in each round."""


class Peaks:
    """Peak memory in megabytes of a hub's processes, by program; a process is forgotten when it ends."""

    def __init__(self, hub: Hub) -> None:
        self.mark, self.found, self.over = f"FLWR_HOME={hub.path / 'home'}", {}, threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while not self.over.wait(0.1):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if self.mark in (path / "environ").read_text().split("\0"):
                        self.look(path)
                except OSError:
                    continue

    def look(self, path: Path) -> None:
        program = (path / "cmdline").read_text().replace("\0", " ")
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", (path / "status").read_text()) or ["0"]
        for name in ("flower-superlink", "flwr-serverapp"):
            if name in program:
                self.found[name] = max(self.found.get(name, 0), int(peak) // 1024)


def experiment():
    method = Method(Scaffold(), CoreSet(size=10), average="clients")
    return small(method, rounds=len(KINDS), scenario=Subsets(clients=4, subsets=4))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A hub, three honest nodes and the attacker; each a process of its own, after the run's end."""
    folder = tmp_path_factory.mktemp("attacked")
    hub = Hub(folder / "hub")
    hub.create(HubSettings(("127.0.0.1", "localhost"), free_port()))
    spec = experiment().resolved()
    timeouts = {"round_timeout_s": 60.0, "join_timeout_s": 240.0}
    prepare_app(hub, spec, quorum=3, **timeouts)
    for name in NAMES:
        hub.add_node(name)
        shutil.move(hub.path / "nodes" / name, folder / name)
    variables = environment(folder / "home")
    with HubService(hub) as service, Processes(folder / "logs", variables) as processes:
        start = "from chronofed.cli.main import main; raise SystemExit(main())"
        for name in NAMES[:ATTACKER]:
            processes.start(name, sys.executable, "-c", start, "node", "start", str(folder / name))
        module = (sys.executable, "-m", "tests.helpers.hostile_node")
        processes.start("attacker", *module, str(folder / NAMES[ATTACKER]), str(hub.app), *KINDS)
        peaks = Peaks(hub)

        def done(rounds: int) -> bool:
            service.tend()
            processes.check()
            return rounds_done(hub.run) >= rounds

        # From here on, replies are large.
        wait(lambda: done(KINDS.index("500 MB")), 400.0, "the small attacks")
        before = dict(peaks.found)
        wait(lambda: done(len(KINDS)), 600.0, "the end of the run")
        peaks.over.set()
        yield hub, before, peaks.found, folder


def test_every_attack_is_refused_with_its_reason(attacked):
    hub, *_ = attacked
    assert RunDirectory(hub.run).summary() is not None
    by_round: dict[int, list[dict]] = {}
    for event in events(hub.run):
        if event.get("client") is not None and event["event"] != "joined":
            assert event["client"] == ATTACKER, event
            by_round.setdefault(event["round"], []).append(event)
    for round_, kind in enumerate(KINDS):
        found = {event["event"]: event["reason"] for event in by_round.get(round_, [])}
        if kind == "honest":
            assert not found
        elif kind == "loud":
            assert found.keys() == {"clipped"}
        elif kind == "slow drip" or (kind in LARGE and "missing" in found):
            assert found.keys() == {"missing"}
        else:
            assert found.keys() == {"refused"}, (kind, found)
            assert re.search(REASONS[kind], found["refused"]), (kind, found)


def test_the_operator_sees_who_it_was(attacked):
    hub, *_ = attacked
    status = read_status(hub)
    *honest, attacker = (node.refused for node in status.nodes)
    assert honest == [0, 0, 0]
    assert len(REASONS) - len(LARGE) <= attacker <= len(REASONS)
    assert "clipped" in status.nodes[ATTACKER].problem
    assert [node.round for node in status.nodes] == [len(KINDS) - 1] * 4


class Without(SerialEngine):
    """The serial engine; the attacker is away except in some rounds."""

    there: tuple[int, ...] = ()

    def map(self, method, orders, plan):
        kept = [o for o in orders if o.client != ATTACKER or o.round in self.there]
        return super().map(method, kept, plan)


def without_the_attacker(there):
    """Return the snapshots of all rounds in this process."""
    spec = experiment()
    built = build(spec)
    engine = Without(built.task)
    engine.there = there
    others = {"rounds": len(KINDS), "train": spec.train, "engine": engine}
    return list(run_here(spec.method, built.scenario, built.task, **others))


def test_nothing_of_it_is_in_the_model_but_what_the_clip_allows(attacked):
    """All replies that were refused: the same bits. The last one, far too loud: at most the clip."""
    hub, *_ = attacked
    before, last = (load(path) for path in sorted(files(hub.run / "checkpoints"))[-2:])
    right = without_the_attacker(there=(0,))
    assert last.round == len(right) == len(KINDS)
    one, other = (encode(replace(s, client_states={}, engine={})) for s in (before, right[-2]))
    assert one == other
    peaks = dict(last.engine["train upload.delta"].tolist())
    honest = max(norm for client, norm in peaks.items() if client != ATTACKER)
    moved = float((last.server["params"] - right[-1].server["params"]).norm())
    assert 0 < moved <= (peaks[ATTACKER] + honest) / 4 * 1.001
    assert peaks[ATTACKER] <= 10 * honest * 1.001
    assert torch.isfinite(last.server["params"]).all()


def test_the_memory_of_the_server_is_bounded(attacked):
    """Three of the attacks want 500 MB, 1 TB and 100 GB; what a reply may take is half a gigabyte."""
    _, before, after, _ = attacked
    assert before.keys() == after.keys() == {"flower-superlink", "flwr-serverapp"}
    grown = {name: after[name] - before[name] for name in after}
    assert grown["flwr-serverapp"] < 700, (before, after)
    assert grown["flower-superlink"] < 700, (before, after)

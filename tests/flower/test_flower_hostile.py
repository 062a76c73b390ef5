"""A federation over TLS in which a node with a key attacks in every round, each time in another way."""

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
from chronofed.flower import hub_service
from chronofed.flower.allowance import SPARE_BYTES, stored_bytes
from chronofed.flower.hub import Hub, HubSettings
from chronofed.flower.hub_service import HubService, prepare_app
from chronofed.flower.hub_status import read_status
from chronofed.flower.processes import Processes, environment, free_port
from chronofed.runs import RunDirectory
from chronofed.runs.built import build
from chronofed.runs.checkpoint import encode, files, load
from tests.helpers.trial import NEEDS_FLOWER, NEEDS_NGINX, events, rounds_done, small, wait

pytestmark = [NEEDS_FLOWER, NEEDS_NGINX]

NAMES = "abcd"
STORE_BYTES = 40 * 2**20
"""What a SuperLink may store before the run starts anew, in the run with far too much."""
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


LARGE = ("JSON bomb", "unfolds", "slow drip", "500 MB")
"""Attacks that take so long, at least on a busy machine, that the round may be over before.

After the last one the hub has seen enough of the attacker, and refuses it.
"""
QUICK_KINDS = ("honest", *(kind for kind in REASONS if kind not in LARGE), "loud")
"""What the attacker does in each round of a run whose rounds wait for it."""
LARGE_KINDS = ("honest", *LARGE, "honest")
"""What it does in a run whose rounds do not."""


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
        # A fork of the prefork server has given itself the name of its program, of at most 15 characters.
        program = (path / "cmdline").read_text() + (path / "comm").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", (path / "status").read_text()) or ["0"]
        for name in ("flower-superlink", "flwr-serverapp"):
            if name in program:
                self.found[name] = max(self.found.get(name, 0), int(peak) // 1024)


def experiment(kinds):
    method = Method(Scaffold(), CoreSet(size=10), average="clients")
    return small(method, rounds=len(kinds), scenario=Subsets(clients=4, subsets=4))


def attack(folder, kinds, round_timeout_s):
    """Run a hub, three honest nodes and the attacker, each a process of its own; return peaks of memory.

    Returns:
        The hub, and the peaks when all have answered once and at the end of the run.
    """
    hub = Hub(folder / "hub")
    hub.create(HubSettings(("127.0.0.1", "localhost"), free_port()))
    timeouts = {"round_timeout_s": round_timeout_s, "join_timeout_s": 300.0}
    prepare_app(hub, experiment(kinds).resolved(), quorum=3, **timeouts)
    for name in NAMES:
        hub.add_node(name)
        shutil.move(hub.path / "nodes" / name, folder / name)
    variables = environment(folder / "home")
    with HubService(hub) as service, Processes(folder / "logs", variables) as processes:
        start = "from chronofed.cli.main import main; raise SystemExit(main())"
        for name in NAMES[:ATTACKER]:
            processes.start(name, sys.executable, "-c", start, "node", "start", str(folder / name))
        module = (sys.executable, "-m", "tests.helpers.hostile_node")
        node = str(folder / NAMES[ATTACKER])
        processes.start("attacker", *module, node, str(hub.app), *kinds)
        peaks = Peaks(hub)

        def done(rounds: int) -> bool:
            service.tend()
            processes.check()
            return rounds_done(hub.run) >= rounds

        wait(lambda: done(1), 1500.0, "the first round")
        before = dict(peaks.found)
        wait(lambda: done(len(kinds)), 1500.0, "the end of the run")
        peaks.over.set()
    return hub, before, peaks.found


def about_clients(hub) -> dict[int, dict[str, str]]:
    """Return what was reported about the attacker, by round; nothing may be reported about others."""
    by_round: dict[int, dict[str, str]] = {}
    for event in events(hub.run):
        if event.get("client") is not None and event["event"] != "joined":
            assert event["client"] == ATTACKER, event
            by_round.setdefault(event["round"], {})[event["event"]] = event.get("reason", "")
    return by_round


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A hub after a run with attacks of ordinary size; every round waits for the attacker."""
    return attack(tmp_path_factory.mktemp("attacked"), QUICK_KINDS, 900.0)[0]


@pytest.fixture(scope="module")
def flooded(tmp_path_factory):
    """A hub after a run in which the attacker sends far too much, or far too slowly."""
    with pytest.MonkeyPatch.context() as change:
        # What it leaves behind is enough for the run to start anew.
        change.setattr(hub_service, "STORE_BYTES", STORE_BYTES)
        change.setattr(hub_service, "STORE_LOOK_S", 2.0)
        return attack(tmp_path_factory.mktemp("flooded"), LARGE_KINDS, 45.0)


def test_every_attack_is_refused_with_its_reason(attacked):
    assert RunDirectory(attacked.run).summary() is not None
    by_round = about_clients(attacked)
    for round_, kind in enumerate(QUICK_KINDS):
        found = by_round.get(round_, {})
        if kind == "honest":
            assert not found
        elif kind == "loud":
            assert found.keys() == {"clipped"}
        else:
            assert found.keys() == {"refused"}, (kind, found)
            assert re.search(REASONS[kind], found["refused"]), (kind, found)


def test_what_is_too_large_or_too_slow_holds_up_nobody(flooded):
    hub, *_ = flooded
    assert RunDirectory(hub.run).summary() is not None
    by_round = about_clients(hub)
    for round_, kind in enumerate(LARGE_KINDS[:-1]):
        found = by_round.get(round_, {})
        if kind == "honest":
            assert not found
        elif "refused" in found:
            assert re.search(REASONS[kind], found["refused"]), (kind, found)
        else:
            assert "missing" in found, (kind, found)


def test_who_sends_far_more_than_its_orders_allow_is_refused_before_the_disk_is_full(flooded):
    hub, *_ = flooded
    status = read_status(hub, 1000)
    name = NAMES[ATTACKER]
    (line,) = [line for line in status.events if "far more than its orders allow" in line]
    sent = int(re.search(rf"node {name} has sent (\d+) MB", line)[1])
    assert SPARE_BYTES / 2**20 < sent < 300
    assert sum(path.stat().st_size for path in hub.path.glob("superlink.db*")) < 300 * 2**20
    header = next(h for h, known in hub.headers().items() if known == name)
    configuration = (hub.proxy / "nginx.conf").read_text()
    assert header not in configuration.partition("map $http_flwr_public_key $number")[0]
    assert "far more than its orders allow" in status.nodes[ATTACKER].problem
    assert [n.refused for n in status.nodes[:ATTACKER]] == [0] * ATTACKER


def test_what_nobody_fetches_goes_with_the_run_which_starts_anew(flooded):
    hub, *_ = flooded
    status = read_status(hub, 1000)
    said = [line for line in status.events if "that nobody fetches; the run starts anew" in line]
    assert said
    assert status.counts["resumed"] >= len(said)
    assert stored_bytes(hub.path / "superlink.db") < STORE_BYTES
    assert status.state == "finished"


def test_the_operator_sees_who_it_was(attacked):
    status = read_status(attacked)
    assert [node.refused for node in status.nodes] == [0, 0, 0, len(QUICK_KINDS) - 2]
    assert "clipped" in status.nodes[ATTACKER].problem
    assert [node.round for node in status.nodes] == [len(QUICK_KINDS) - 1] * 4


class Without(SerialEngine):
    """The serial engine; the attacker is away except in some rounds."""

    there: tuple[int, ...] = ()

    def map(self, method, orders, plan):
        kept = [o for o in orders if o.client != ATTACKER or o.round in self.there]
        return super().map(method, kept, plan)


def without_the_attacker(kinds, there):
    """Return the snapshots of all rounds in this process."""
    spec = experiment(kinds)
    built = build(spec)
    engine = Without(built.task)
    engine.there = there
    others = {"rounds": len(kinds), "train": spec.train, "engine": engine}
    return list(run_here(spec.method, built.scenario, built.task, **others))


def plain(snapshot):
    return encode(replace(snapshot, client_states={}, engine={}))


def test_nothing_of_it_is_in_the_model_but_what_the_clip_allows(attacked):
    """All replies that were refused: the same bits. The last one, far too loud: at most the clip."""
    before, last = (load(path) for path in sorted(files(attacked.run / "checkpoints"))[-2:])
    right = without_the_attacker(QUICK_KINDS, there=(0,))
    assert last.round == len(right) == len(QUICK_KINDS)
    assert plain(before) == plain(right[-2])
    peaks = dict(last.engine["train upload.delta"].tolist())
    honest = max(norm for client, norm in peaks.items() if client != ATTACKER)
    moved = float((last.server["params"] - right[-1].server["params"]).norm())
    assert 0 < moved <= (peaks[ATTACKER] + honest) / 4 * 1.001
    assert peaks[ATTACKER] <= 10 * honest * 1.001
    assert torch.isfinite(last.server["params"]).all()


def test_nothing_that_was_too_large_is_in_the_model(flooded):
    before, _ = (load(path) for path in sorted(files(flooded[0].run / "checkpoints"))[-2:])
    assert plain(before) == plain(without_the_attacker(LARGE_KINDS, there=(0,))[-2])


def test_the_memory_of_the_server_is_bounded(flooded):
    """Two of the attacks want 500 MB and 100 GB; what replies may take is half a gigabyte."""
    _, before, after = flooded
    assert before.keys() == after.keys() == {"flower-superlink", "flwr-serverapp"}
    grown = {name: after[name] - before[name] for name in after}
    assert grown["flwr-serverapp"] < 700, (before, after)
    assert grown["flower-superlink"] < 450, (before, after)
    print(f"peaks in MB: {before} when all had answered once, {after} at the end")

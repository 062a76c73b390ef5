"""Faults of machines in one run: full disks, a broken file, an old state, two machines with one key."""

import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from chronofed import run
from chronofed.clients.store.phases import ACCEPTED, WAITING, PhaseTable
from chronofed.flower.messages import method_fingerprint
from chronofed.runs.built import build
from chronofed.runs.checkpoint import encode, load_latest
from chronofed.runs.load_spec import load
from tests.helpers.fleet import Fleet, kill
from tests.helpers.in_process import InProcess
from tests.helpers.trial import NEEDS_FLOWER, NEEDS_NGINX, events, wait

pytestmark = [NEEDS_FLOWER, NEEDS_NGINX]

ROUNDS, COUNT, NODES = 20, 6, 3
NODE_MB, HUB_MB = 2, 120
STOP_S = 30.0
HEAD = "row,when,wind,rain,weather\n"
COLUMNS = """
classes = ["calm", "storm"]
target = "weather"
time = "when"
features = [{ name = "wind" }, { name = "rain" }]
"""
SOURCE = f"""
[source]
kind = "table-file"
path = "rows.csv"
id = "row"
current = {{ kind = "each-round", count = {COUNT} }}
{COLUMNS}
"""
SPEC = """
name = "coast"
rounds = {rounds}
[data]
kind = "source-rows"
[data.source]
kind = "table-file"
path = "{folder}/test.csv"
{columns}
[scenario]
kind = "remote"
clients = {nodes}
[method]
backbone = {{ kind = "scaffold" }}
memory = {{ kind = "core-set", size = 5 }}
[train]
steps = 4
batch_size = 4
"""


def rows(client: int, count: int) -> str:
    days = [date(2024, 1, 1) + timedelta(days=k) for k in range(count)]
    return "".join(
        f"{client}-{k},{day},{client + k % 5},{k % 3},{('calm', 'storm')[k % 2]}\n"
        for k, day in enumerate(days)
    )


def mount(folder: Path, size_mb: int) -> bool:
    """Mount a small file system; return ``False`` if this user may not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "chronofed-test", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """Small disks for node ``a`` and for the hub."""
    folder = tmp_path_factory.mktemp("disks")
    sizes = {folder / "node": NODE_MB, folder / "hub": HUB_MB}
    try:
        if not all(mount(path, size) for path, size in sizes.items()):
            pytest.skip("a small disk cannot be mounted: run this test as root")
        yield folder
    finally:
        for path in sizes:
            subprocess.run(["umount", "--lazy", str(path)], capture_output=True)


@dataclass
class Past:
    """What happened to the federation."""

    fleet: Fleet
    folder: Path
    copied: dict[int, int] = field(default_factory=dict)
    """Rounds of the phases of the copy of a client store."""

    def node(self, client: int, state: Path) -> dict:
        source = self.folder / "abc"[client] / "source.toml"
        return {"client": client, "source": str(source), "state": str(state)}

    def seen(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.fleet.status().events)

    def wait(self, *words: str) -> None:
        self.fleet.wait(lambda: self.seen(*words), f"the event {words}")

    # Each step begins when a round is done, and ends when the operator has seen what happened. Meanwhile the
    # run waits for a client, so that it cannot end before, however fast it is.

    def fill_the_disk_of_a_node(self, disk: Path) -> None:
        fill(disk / "filler")
        self.wait("client 0", "free some space")
        (disk / "filler").unlink()

    def break_a_file(self) -> None:
        path = self.folder / "b" / "rows.csv"
        whole = path.read_text()
        path.write_text(whole.replace(",calm", ",cal").replace(",storm", ",sto"))
        self.wait("client 1", "cannot read its own data")
        path.write_text(whole)

    def start_a_second_machine_with_one_key(self) -> None:
        shutil.copytree(self.folder / "c", self.folder / "copy")
        shutil.rmtree(self.folder / "copy" / "work")
        self.fleet.add("copy", self.folder / "copy")
        self.wait("not accepted node c")
        self.fleet.remove("copy")

    def stop_a_node_for_a_while(self) -> None:
        """Meanwhile somebody starts a second machine with the key of another one."""
        pids = [self.fleet.pid("b"), *self.fleet.of("b", "flower", "chronofed")]
        assert len(pids) >= 5
        kill(*pids, number=signal.SIGSTOP)
        end = time.monotonic() + STOP_S
        self.start_a_second_machine_with_one_key()
        self.fleet.wait(lambda: time.monotonic() > end, "the end of the stop")
        kill(*pids, number=signal.SIGCONT)

    def fill_the_disk_of_the_hub(self, disk: Path) -> None:
        done = self.fleet.rounds
        fill(disk / "filler")
        self.fleet.wait(lambda: "no space left" in self.log("hub"), "a hub that cannot write")
        (disk / "filler").unlink()
        self.fleet.wait(lambda: self.fleet.rounds > done, "a round with a free disk")

    def copy_a_store(self) -> None:
        with (
            closing(sqlite3.connect(self.store)) as here,
            closing(sqlite3.connect(self.folder / "old.sqlite")) as there,
        ):
            here.backup(there)
            self.copied = PhaseTable(there).rounds()

    def restore_a_store(self) -> None:
        self.fleet.stop("b")
        for path in self.store.parent.glob(f"{self.store.name}-*"):
            path.unlink()
        shutil.copy(self.folder / "old.sqlite", self.store)
        self.wait("behind client 1")

    @property
    def store(self) -> Path:
        (path,) = (self.folder / "b" / "state").glob("*.sqlite")
        return path

    def log(self, name: str) -> str:
        return (self.fleet.processes.logs / f"{name}.log").read_text()


def fill(path: Path) -> None:
    """Write until there is no space left."""
    try:
        with path.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                continue
    except OSError:
        return


@pytest.fixture(scope="module")
def past(tmp_path_factory, disks):
    """A finished run, in which something goes wrong after most rounds; nobody repairs anything."""
    folder = tmp_path_factory.mktemp("calm")
    (folder / "test.csv").write_text(HEAD + rows(9, 20))
    spec = SPEC.format(folder=folder, columns=COLUMNS, nodes=NODES, rounds=ROUNDS)
    (folder / "spec.toml").write_text(spec)
    resolved = load(folder / "spec.toml").resolved()
    with Fleet(folder, resolved, NODES, NODES, hub=disks / "hub" / "hub") as fleet:
        for client, name in enumerate(fleet.names):
            (folder / name / "source.toml").write_text(SOURCE)
            (folder / name / "rows.csv").write_text(HEAD + rows(client, COUNT * ROUNDS))
            fleet.configure(name, "--source", str(folder / name / "source.toml"))
        fleet.configure("a", "--state", str(disks / "node"))
        past = Past(fleet, folder)
        steps = {
            1: lambda: past.fill_the_disk_of_a_node(disks / "node"),
            2: past.copy_a_store,
            3: past.break_a_file,
            4: past.stop_a_node_for_a_while,
            5: lambda: past.fill_the_disk_of_the_hub(disks / "hub"),
            6: past.restore_a_store,
        }
        for round_, step in steps.items():
            fleet.wait_for_round(round_)
            step()
        fleet.wait(lambda: fleet.finished, "the end of the run")
        yield past


def test_the_bits_are_those_of_the_same_rounds_in_this_process(past, disks, tmp_path):
    """The restored client store is restored there, too, before the same order."""
    experiment = load(past.folder / "spec.toml")
    built = build(experiment)
    nodes = [past.node(client, tmp_path / str(client)) for client in range(NODES)]
    here = InProcess(past.fleet.hub.app, nodes, method_fingerprint(experiment))
    (behind,) = [e for e in events(past.fleet.run) if e["event"] == "behind"]
    here.restored = {(behind["round"], 1)}
    old = tmp_path / "old.sqlite"

    def before(order):
        found = list((tmp_path / "1").glob("*.sqlite"))
        if order.client != 1 or not found:
            return
        if (order.round, 1) in here.restored:
            shutil.copy(old, found[0])
        with closing(sqlite3.connect(found[0])) as database:
            if PhaseTable(database).rounds() == past.copied and not old.exists():
                with closing(sqlite3.connect(old)) as copy:
                    database.backup(copy)

    here.before = before
    *_, right = run(
        experiment.method,
        built.scenario,
        built.task,
        rounds=ROUNDS,
        train=experiment.train,
        engine=here,
    )
    assert past.copied.keys() == {ACCEPTED, WAITING}
    last, complaints = load_latest(past.fleet.run / "checkpoints")
    assert not complaints
    assert last.round == ROUNDS
    assert encode(replace(last, engine={})) == encode(right)


def test_the_operator_sees_every_fault(past):
    seen = past.fleet.json()
    assert (seen["state"], seen["round"]) == ("finished", ROUNDS)
    said = "\n".join(seen["events"])
    for words in (
        "failed client 0: cannot write client-0-",
        "client 1 cannot read its own data",
        "not accepted node c",
        "silent node b: no heartbeat for",
        "no space left on device",
        "behind client 1: it worked from its state of round",
    ):
        assert words in said, said
    assert not {"refused", "ahead", "unknown", "no_quorum"} & seen["counts"].keys()
    assert [node["restored"][:6] for node in seen["nodes"]] == ["", "behind", ""]


def test_every_round_was_answered_once_by_everybody(past):
    answers = past.fleet.answers()
    trained = {line["round"]: line["answered"] for line in answers if line["exchange"] == "train"}
    assert trained == {round_: [0, 1, 2] for round_ in range(ROUNDS)}


def test_a_node_that_is_killed_leaves_no_process_behind(past):
    """Neither its prefork server and worker, nor what was forked: SuperNode, SuperExec and apps."""
    fleet = past.fleet
    name, words = fleet.names[0], ("flower", "flwr", "chronofed")
    fleet.wait(lambda: fleet.of(name, "flower-superexec"), "a whole node")
    called = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in fleet.of(name, *words)}
    assert {"flower-supernod", "flower-superexe"} <= called
    assert len(fleet.of(name, *words)) >= 6
    kill(fleet.pid(name))
    wait(lambda: not fleet.of(name, *words), 120.0, "the end of all its processes")

"""Forty SIGKILLs at random instants: of nodes, their app processes, the server app and the hub, ten each.

The last node has two clients.
"""

import random
import time
from dataclasses import dataclass

import pytest

from chronofed import Subsets
from chronofed.clients.store import inspect
from tests.helpers.fleet import Fleet, kill
from tests.helpers.trial import NEEDS_FLOWER, NEEDS_NGINX, differences, small, undisturbed

pytestmark = [NEEDS_FLOWER, NEEDS_NGINX]

# Six rounds ended before the last kill on a fast machine; forty last several times as long as the kills.
NODES, CLIENTS, ROUNDS, KILLS, BATCHES, SEED = 4, 5, 40, 10, 2, 19
EXPERIMENT = small(rounds=ROUNDS, scenario=Subsets(clients=CLIENTS, subsets=4))


@dataclass
class Kill:
    """A process that was killed."""

    kind: str
    name: str
    what: str
    time: float


class Killer:
    """Kills processes of a fleet; every kind comes equally often in every batch, in random order."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.random = fleet, random.Random(SEED)
        self.done: list[Kill] = []

    def batch(self) -> None:
        """Kill, whether the last victim has recovered or not."""
        kinds = ["node", "app", "server", "hub"] * (KILLS // BATCHES)
        self.random.shuffle(kinds)
        for kind in kinds:
            self._next(kind)

    def _next(self, kind: str) -> None:
        """Wait for a random time, then until there is something to kill, and kill it."""
        pause = self.random.uniform(0.0, 6.0)
        end = time.monotonic() + pause
        self.fleet.wait(lambda: time.monotonic() > end, "the next instant")

        def hit() -> bool:
            assert not self.fleet.finished, f"the run ended after {len(self.done)} kills"
            return getattr(self, f"_{kind}")()

        self.fleet.wait(hit, f"something to kill: {kind}")

    def _hit(self, kind: str, name: str, what: str, pids: list[int | None]) -> bool:
        present = time.time()
        if not kill(*pids):
            return False
        self.done.append(Kill(kind, name, what, present))
        return True

    def _node(self) -> bool:
        """A SuperNode, what starts its app processes, or the program that watches it and ends with all."""
        name = self.random.choice(self.fleet.names)
        what = self.random.choice(("flower-supernode", "flower-superexec", "node start"))
        own = [self.fleet.pid(name)] if what == "node start" else self.fleet.of(name, what)
        return self._hit("node", name, what, own)

    def _app(self) -> bool:
        """The process of a message, or the worker that it has handed the message to."""
        for name in self.random.sample(self.fleet.names, NODES):
            apps = self.fleet.apps(name)
            if apps and self.random.random() < 0.5:
                return self._hit("app", name, "app", apps[:1])
            if apps:
                return self._hit("app", name, "worker", self.fleet.of(name, "flower.worker"))
        return False

    def _server(self) -> bool:
        return self._hit("server", "hub", "server app", self.fleet.of("hub", "flwr-serverapp"))

    def _hub(self) -> bool:
        """The SuperLink, what starts its server apps, the proxy, or the program that watches all."""
        parts = ("flower-superlink", "flower-superexec", "nginx: master", "hub start")
        what = self.random.choice(parts)
        own = [self.fleet.pid("hub")] if what == "hub start" else self.fleet.of("hub", what)
        return self._hit("hub", "hub", what, own)


@pytest.fixture(scope="module")
def storm(tmp_path_factory):
    """A finished run, and what was killed meanwhile."""
    folder = tmp_path_factory.mktemp("storm")
    with Fleet(folder, EXPERIMENT.resolved(), NODES, CLIENTS, round_timeout_s=900.0) as fleet:
        killer = Killer(fleet)
        for _ in range(BATCHES):
            fleet.wait_for_round(fleet.rounds + 1)
            assert not fleet.finished
            killer.batch()
        fleet.wait(lambda: fleet.finished, "the end of the run", 900.0)
        yield fleet, killer.done


def test_the_run_has_the_bits_of_an_undisturbed_one(storm):
    fleet, kills = storm
    assert [sum(k.kind == kind for k in kills) for kind in ("node", "app", "server", "hub")] == [
        KILLS
    ] * 4
    assert differences(fleet.run, undisturbed(EXPERIMENT)) == []
    same = (fleet.run / "metrics.jsonl").read_bytes()
    assert same == (undisturbed(EXPERIMENT) / "metrics.jsonl").read_bytes()


def test_nothing_is_lost_or_doubled(storm):
    """Every client has the data sets of every round, once, and the server one line for every round."""
    fleet, _ = storm
    for name in fleet.names:
        stores = list((fleet.folder / name / "state").glob("*.sqlite"))
        assert len(stores) == (CLIENTS - NODES + 1 if name == fleet.names[-1] else 1)
        for store in stores:
            rounds = [found.round for found in inspect(store).data_sets]
            assert len(rounds) == len(set(rounds)) > 0
    events = fleet.status().counts
    assert not {"refused", "behind", "ahead", "missing", "no_quorum"} & events.keys()


# Words of the status about what a kill of each part makes the hub or the node do.
WORDS = {
    "flower-superlink": ("the SuperLink has ended", "the hub starts"),
    "nginx: master": ("the proxy has ended", "the hub starts"),
    "hub start": ("the hub starts",),
    "server app": ("resumed",),
    "flower-superexec": (
        "SuperExec",
        "the hub starts",
        "the SuperLink has ended",
        "restarted node {name}",
    ),
    "flower-supernode": ("restarted node {name}", "not accepted node {name}"),
    "node start": ("restarted node {name}",),
}


def test_the_operator_sees_what_happened(storm):
    """After every kill the status says what was started again.

    A kill of something that was just being started again may share its line with the kill before. A message
    whose process is killed after its work was done has no event.
    """
    fleet, kills = storm
    seen = fleet.json()
    assert seen["state"] == "finished"
    assert [node["round"] for node in seen["nodes"]] == [ROUNDS - 1] * CLIENTS
    for killed in kills:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(killed.time))
        after = [line for line in seen["events"] if line[:19] >= since]
        words = [word.format(name=killed.name) for word in WORDS.get(killed.what, ())]
        assert not words or any(word in line for word in words for line in after), killed
    restarts = ("the SuperLink has ended", "the proxy has ended", "the hub starts")
    hub = [line for line in seen["events"] if any(word in line for word in restarts)]
    assert len(hub) > KILLS / 2
    assert seen["counts"]["resumed"] >= KILLS / 2
    assert seen["counts"]["failed"] > 0

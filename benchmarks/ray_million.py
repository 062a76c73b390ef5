"""A million clients on a Ray cluster of three nodes on this machine: memory, traffic and seconds of every round.

    python benchmarks/ray_million.py [--clients 1000000] [--cohort 2000] [--rounds 10] [--parts 0 16] [--json FILE]

The head and two more raylets are processes of their own with one core each. An MLP with 784 inputs and 200 hidden
units (0.64 MB) trains with a core set of 5 samples a data set; every client has 20 of 60,000 synthetic samples.
For every number of parts (0: no partial sums), a run prints a line a round: bytes between driver and workers, and memory
in MB: of the driver and of each worker (private pages, without what nodes share) after the round and at its most, of all
other processes of the cluster together, and the pages of the nodes' object stores. At the end it prints how much memory
grows in a round, over the second half of them. Needs Ray: run it with the interpreter that ``make test-ray`` made.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from chronofed import Classification, Cluster, CoreSet, Dataset, FedAvg, Method, Mlp, Train, run
from chronofed.clients.cache import StateCache
from chronofed.core.seeds import numpy_generator
from chronofed.core.types import Samples
from chronofed.engines.ray.engine import RayEngine
from chronofed.scenarios.base import Scenario, Visit
from chronofed.scenarios.membership import Everyone
from tests.helpers.ray_cluster import LocalCluster, title

SAMPLES, EACH, KEPT = 60_000, 20, 5
MB = 2**20
# Small enough to be full within the rounds that are measured.
CACHE_MB = 16


@dataclass(frozen=True)
class Pool:
    """Every client holds 20 samples of one pool, others in every round."""

    clients: int
    rounds: None = None
    persistent: bool = True

    def candidates(self, round_: int) -> np.ndarray:
        return np.arange(self.clients)

    def visit(self, client: int, round_: int) -> Visit:
        return Visit((np.arange(EACH) + 7 * client + 31 * round_) % SAMPLES, key=round_)


def dataset() -> Dataset:
    rng = numpy_generator(0, "million")
    x = torch.from_numpy(rng.integers(0, 256, (SAMPLES, 1, 28, 28), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, SAMPLES))
    return Dataset("million", Samples(x, y), Samples(x[:100], y[:100]), tuple(map(str, range(10))))


def private_mb(pid: int | str) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def shared_mb(pid: int) -> float:
    """Return the pages of the object store that a process has touched."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssShmem")) / 1024


class Peaks(Thread):
    """The most memory of the driver, and of any worker, looked at ten times a second."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self._cluster, self._over = cluster, Event()
        self.driver = self.worker = 0.0

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.driver = max(self.driver, private_mb("self"))
            self.worker = max([self.worker, *map(private_mb, self._cluster.workers())])

    def drain(self) -> tuple[int, int]:
        """Return the peaks since the last call."""
        found = round(self.driver), round(self.worker)
        self.driver = self.worker = 0.0
        return found

    def stop(self) -> None:
        self._over.set()
        self.join()


def growth(found: list[dict]) -> dict:
    """Return the slopes of memory over the second half of rounds, in MB a round."""
    rows = found[len(found) // 2 :]
    rounds = [row["round"] for row in rows]
    columns = {
        "driver": [row["driver_mb"] for row in rows],
        "driver_peak": [row["driver_peak_mb"] for row in rows],
        "worker": [max(row["workers_mb"]) for row in rows],
        "others": [row["others_mb"] for row in rows],
        "stores": [sum(row["stores_mb"]) for row in rows],
    }
    return {k: round(float(np.polyfit(rounds, v, 1)[0]), 2) for k, v in columns.items()}


def measure(options, cluster: LocalCluster, parts: int) -> list[dict]:
    task, found = Classification(dataset(), Mlp()), []
    scenario = Scenario(Pool(options.clients), Everyone(), options.cohort)
    method, train = Method(FedAvg(), CoreSet(size=KEPT)), Train(lr=0.05, batch_size=20, epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        states = StateCache(CACHE_MB * MB, Path(folder))
        settings = Cluster(cluster.address, cache_mb=CACHE_MB)
        engine = RayEngine(task, 3, states, cluster=settings)
        peaks = Peaks(cluster)
        peaks.start()
        with closing(engine):
            begin = time.perf_counter()
            rounds = run(
                method,
                scenario,
                task,
                rounds=options.rounds,
                train=train,
                engine=engine,
                partial_sums=parts or None,
            )
            for snapshot in rounds:
                now = time.perf_counter()
                driver, worker = peaks.drain()
                workers = cluster.workers()
                others = cluster.processes() - set(workers)
                stores = [pid for pid in others if title(pid).partition(" ")[0].endswith("/raylet")]
                found.append(
                    {
                        "parts": parts,
                        "round": snapshot.round,
                        "seconds": round(now - begin, 2),
                        "down_mb": round(engine.traffic.down_bytes / MB, 2),
                        "up_mb": round(engine.traffic.up_bytes / MB, 2),
                        "batches": engine.traffic.batches,
                        "driver_mb": round(private_mb("self")),
                        "driver_peak_mb": driver,
                        "workers_mb": sorted(round(private_mb(pid)) for pid in workers),
                        "worker_peak_mb": worker,
                        "others_mb": round(sum(map(private_mb, others))),
                        "stores_mb": [round(shared_mb(pid)) for pid in stores],
                        "spilled_files": sum(1 for _ in Path(folder).rglob("*.safetensors")),
                        "clients_seen": len(states),
                    }
                )
                print(json.dumps(found[-1]), flush=True)
                begin = time.perf_counter()
        peaks.stop()
    print(json.dumps({"parts": parts, "growth_mb_a_round": growth(found)}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--parts", type=int, nargs="+", default=[0, 16])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with closing(LocalCluster(3, store_bytes=1024 * MB)) as cluster:
        found = [row for parts in options.parts for row in measure(options, cluster, parts)]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

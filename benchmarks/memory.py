"""Peak memory against the number of clients, and within a budget for what clients keep.

    python benchmarks/memory.py

Every case is a process of its own: a small MLP on the embedded images, one torch thread. Peaks are the
kernel's (``ru_maxrss``), with Python and torch; an idle process, with the data but without a run, shows their
share.

Stateless clients: 100 active ones a round, drawn from 100 or from 1,000,000 that are registered and may come
again, or new ones every round, as ``kind = "stateless"`` of a specification has them. Stateful clients: core
sets of 20 images on 10,000 clients, 100 of them a round, with one checkpoint at the end.

Exits with 1 if a million registered clients take more than 1.05 of the memory of a hundred, or if the budget
changes a result.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chronofed import (
    Classification,
    CoreSet,
    Method,
    Mlp,
    Scenario,
    Stateless,
    Train,
    load_data,
    run,
)
from chronofed.clients.cache import StateCache
from chronofed.core.seeds import numpy_generator
from chronofed.engines import SerialEngine
from chronofed.runs import checkpoint
from chronofed.scenarios import Everyone, SubsetStream, Visit
from chronofed.scenarios.base import ResidentStream

Found = dict[str, Any]

LIMIT = 1.05
MEGABYTE = 1 << 20
ACTIVE, SIZE, SUBSETS = 100, 20, 4


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--case", help="one case in this process; for the program itself")
    options.add_argument("--rounds", type=int, default=20, help="of stateless clients")
    options.add_argument("--clients", type=int, default=10_000, help="that keep something")
    options.add_argument("--visits", type=float, default=2.0, help="of each of these, on average")
    options.add_argument("--budget", type=int, default=64, help="in megabytes")
    chosen = options.parse_args()
    if chosen.case:
        print(json.dumps(measure(chosen)))
        return 0
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread\n")
    print(f"{'case':34} {'peak':>8} {'over':>8} {'seconds':>8} {'files':>8}")
    idle = show(child("idle"), None)
    few, many, fresh = (show(child(f"registered-{n}"), idle) for n in (100, 10**6, 0))
    unlimited, limited = (show(child(f"stateful-{kind}"), idle) for kind in ("all", "budget"))
    compare("registered, 1,000,000 to 100", many, few, idle)
    compare("new ones every round to 100", fresh, few, idle)
    compare("budget to no limit", limited, unlimited, idle)
    same = unlimited["digest"] == limited["digest"]
    print("within the budget: " + ("the same bits" if same else "ANOTHER RESULT"))
    most = max(many["peak"], fresh["peak"])
    return int(most > LIMIT * few["peak"] or not same)


def compare(name: str, one: Found, other: Found, idle: Found) -> None:
    over = (one["peak"] - idle["peak"]) / (other["peak"] - idle["peak"])
    time = one["seconds"] / other["seconds"]
    whole = one["peak"] / other["peak"]
    print(f"{name}: peak {whole:.3f}, over idle {over:.3f}, time {time:.2f}")


def child(case: str) -> Found:
    """One case in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--case", case]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: Found = json.loads(done.stdout)
    return found


def show(found: Found, idle: Found | None) -> Found:
    """Print one row."""
    over = found["peak"] - (idle or found)["peak"]
    print(
        f"{found['name']:34} {found['peak']:5.0f} MB {over:5.0f} MB "
        f"{found['seconds']:8.1f} {found['files']:5.0f} MB"
    )
    return found


def measure(chosen: argparse.Namespace) -> Found:
    torch.set_num_threads(1)
    kind, _, which = chosen.case.partition("-")
    found: Found = {"name": chosen.case, "files": 0.0, "digest": ""}
    task = Classification(load_data("fashion-mnist-mini"), Mlp(hidden=(16,)))
    start = time.perf_counter()
    if kind == "registered":
        found |= registered(task, int(which), chosen.rounds)
    elif kind == "stateful":
        budget = chosen.budget * MEGABYTE if which == "budget" else None
        found |= stateful(task, chosen.clients, chosen.visits, budget)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {"peak": peak, "seconds": time.perf_counter() - start}


@dataclass(frozen=True, slots=True)
class Registry(ResidentStream):
    """Any number of clients, of which nothing is stored: what one holds is drawn when it is asked."""

    number: int
    samples: int

    @property
    def clients(self) -> int:
        return self.number

    def visit(self, client: int, round_: int) -> Visit:
        rng = numpy_generator(0, "registry", client, round_)
        return Visit(rng.choice(self.samples, 40, replace=False), round_)


def registered(task: Classification, clients: int, rounds: int) -> Found:
    """Rounds of clients that keep nothing: drawn from so many, or for 0 new ones every round."""
    world = Stateless(clients=ACTIVE, subsets=1, registered=10**6).on(task.data, 0)
    name = "new every round, of 1,000,000"
    if clients:
        world = Scenario(Registry(clients, len(task.data.train)), Everyone(), ACTIVE, 0)
        name = f"{ACTIVE} a round, of {clients:,}"
    for last in run(Method(), world, task, rounds=rounds, train=Train(steps=3, batch_size=16)):
        assert not last.client_states
    return {"name": name}


def stateful(task: Classification, clients: int, visits: float, budget: int | None) -> Found:
    """Core sets of clients that come back, with a checkpoint at the end."""
    method, rounds = Method(memory=CoreSet(SIZE)), round(visits * clients / ACTIVE)
    scenario = Scenario(drawn(task, clients), Everyone(), ACTIVE, 0)
    with tempfile.TemporaryDirectory() as folder:
        store = StateCache(budget, Path(folder))
        engine = SerialEngine(task, client_states=store)
        for last in run(
            method,
            scenario,
            task,
            rounds=rounds,
            train=Train(steps=3, batch_size=16),
            engine=engine,
        ):
            pass
        path = checkpoint.save(Path(folder), last, 1)
        files = sum(p.stat().st_size for p in Path(folder).rglob("*/*.safetensors"))
        name = "no limit" if budget is None else f"{budget // MEGABYTE} MB"
        return {
            "name": f"{len(store):,} of {clients:,} keep, {name}",
            "files": files / MEGABYTE,
            "digest": path.stem,
        }


def drawn(task: Classification, clients: int) -> SubsetStream:
    """Subsets that clients share: there are fewer images than they keep together."""
    rng = numpy_generator(0, "benchmark")
    pool = [np.sort(rng.choice(len(task.data.train), 40, replace=False)) for _ in range(500)]
    picks = rng.integers(len(pool), size=(clients, SUBSETS))
    return SubsetStream([[pool[p] for p in own] for own in picks.tolist()])


if __name__ == "__main__":
    sys.exit(main())

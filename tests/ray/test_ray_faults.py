"""Workers, nodes and drivers die by SIGKILL, and the end is the same, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from chronofed import CoreSet, Method, Scaffold
from chronofed.core.errors import ChronofedError
from chronofed.runs import RunDirectory
from tests.helpers.ray_cluster import descendants, title
from tests.helpers.trapped import Watched
from tests.helpers.waiting import LIMIT_S, wait_until
from tests.helpers.world import same

KILLS = 10
STATEFUL = Method(Scaffold(), CoreSet(5))
SPEC = """
name = "killed"
rounds = 120
[model]
kind = "mlp"
hidden = [16]
[scenario]
kind = "subsets"
clients = 5
subsets = 6
[method.backbone]
kind = "scaffold"
[method.memory]
kind = "core-set"
size = 10
[train]
steps = 10
lr = 0.1
[evaluate]
every = 20
seen = 50
[checkpoint]
every = 3
"""


@pytest.fixture
def watched(task, tmp_path):
    return Watched(task, tmp_path)


@pytest.fixture
def killed_in(watched, train_rounds):
    """Train and call a function in the middle of every round but the first; count the workers lost."""

    def killed_in(engine, rounds, strike, *, all_workers=True):
        lost, last, chance = 0, None, random.Random(0)
        snapshots = train_rounds(STATEFUL, rounds=rounds, engine=engine, task=watched)
        for last in snapshots:
            lost += engine.traffic.lost
            if last.round == rounds:
                break
            if all_workers or last.round == 1:
                wait_for_workers(engine)
            watched.hold()
            thread = threading.Thread(
                target=strike_when_busy, args=(watched, strike, last.round, chance)
            )
            thread.start()
            last = next(snapshots)
            thread.join()
            lost += engine.traffic.lost
            (watched.folder / "hold").unlink()
        return last, lost

    return killed_in


def wait_for_workers(engine):
    """Wait until every worker has started, also those in the places of others that died."""
    import ray

    starting = [member.starting for member in engine._pool._members if member.starting]
    if starting:
        ready, _ = ray.wait(starting, num_returns=len(starting), timeout=LIMIT_S)
        assert len(ready) == len(starting)


def strike_when_busy(watched, strike, round_, chance):
    wait_until(watched.busy, "a client trains")
    time.sleep(chance.uniform(0, 0.3))
    strike(round_)


def test_workers_die_in_mid_round(watched, killed_in, engines, train_for):
    engine, rounds = engines(2, task=watched), 2 * KILLS
    last, lost = killed_in(
        engine, rounds, lambda round_: os.kill(watched.busy()[-1], signal.SIGKILL)
    )
    assert lost == KILLS
    assert same(last, train_for(STATEFUL, rounds))


def test_nodes_die_in_mid_round(watched, killed_in, cluster, engines, train_for):
    engine, rounds = engines(3, task=watched), 2 * KILLS

    def strike(round_):
        node = 1 + round_ // 2 % 2
        cluster.kill(node)
        cluster.add(node)

    last, lost = killed_in(engine, rounds, strike)
    assert lost >= KILLS
    assert same(last, train_for(STATEFUL, rounds))


def test_a_node_that_does_not_come_back_is_not_needed(
    watched, killed_in, cluster, engines, train_for
):
    engine = engines(3, task=watched)

    def strike(round_):
        if round_ == 1:
            cluster.kill(1)

    last, lost = killed_in(engine, 4, strike, all_workers=False)
    cluster.add(1)
    assert lost
    assert same(last, train_for(STATEFUL, 4))


def test_a_client_that_brings_down_every_worker_ends_the_round(
    watched, engines, train_for, scenario
):
    engine, rows = engines(2, task=watched), scenario.at(0).visits[2].indices
    (watched.folder / f"poison-{rows[0]}").touch()
    with pytest.raises(ChronofedError, match=r"^round 0, client 2: 3 workers died on it"):
        train_for(STATEFUL, 2, engine=engine, task=watched)
    (watched.folder / f"poison-{rows[0]}").unlink()
    assert same(train_for(STATEFUL, 2, engine=engine, task=watched), train_for(STATEFUL, 2))


SCRIPT = """
import sys
from chronofed import Classification, Cluster, FedAvg, Method, RayEngine, Subsets, load_data, run
from chronofed.core.errors import ChronofedError

if __name__ == "__main__":
    {place}
    data = load_data("fashion-mnist-mini")
    scenario = Subsets(clients=2, subsets=2).on(data, seed=0)
    try:
        with RayEngine(Task(data), 1, cluster=Cluster(sys.argv[1])) as engine:
            for snapshot in run(Method(Mine()), scenario, Task(data), rounds=1, engine=engine):
                print(snapshot.round)
    except ChronofedError as error:
        print(error)
"""
PARTS = {"Task": "class Task(Classification): pass", "Mine": "class Mine(FedAvg, tag='mine'): pass"}
HEADER = "from chronofed import Classification, FedAvg\n"


@pytest.mark.parametrize("own", ["Task", "Mine", None])
def test_a_class_of_the_script_is_refused_and_one_of_a_module_is_not(
    own, workdir, cluster, engines
):
    engines(1).close()
    elsewhere = [code for name, code in PARTS.items() if name != own]
    (workdir / "parts.py").write_text(HEADER + "\n".join(elsewhere))
    lines = [
        f"from parts import {', '.join(name for name in PARTS if name != own)}",
        PARTS.get(own, ""),
    ]
    (workdir / "script.py").write_text(SCRIPT.replace("{place}", "\n    ".join(lines)))
    done = subprocess.run(
        [sys.executable, "script.py", cluster.address],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    label = {"Task": "task", "Mine": "method"}.get(own)
    refused = (
        f"{label}: {own} is defined in the script that is run, which workers on Ray cannot import; "
    )
    assert done.stderr == ""
    if own is None:
        assert done.stdout.split() == ["1"]
    else:
        assert done.stdout.splitlines()[-1].startswith(refused)


def chronofed(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "chronofed", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process) -> None:
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said


def result(directory: RunDirectory):
    latest = max(path.name for path in directory.checkpoints.iterdir())
    summary = {k: v for k, v in directory.summary().items() if "seconds" not in k}
    return latest, summary, (directory.path / "metrics.jsonl").read_bytes()


def test_drivers_die_and_resume(workdir, cluster, engines):
    # Makes room on the cluster.
    engines(1).close()
    (workdir / "spec.toml").write_text(SPEC)
    finish(chronofed("run", "spec.toml", "--engine", "serial", "-o", "straight", "-q"))
    on_ray = "--engine", "ray", "--address", cluster.address, "--workers", 2, "-q"
    chance, directory = random.Random(0), RunDirectory(workdir / "killed")
    process = chronofed("run", "spec.toml", "-o", "killed", *on_ray)
    for _ in range(KILLS):
        wait_until(partial(advanced, process, directory, rounds_done(directory)), "a checkpoint")
        time.sleep(chance.uniform(0, 0.2))
        assert process.poll() is None, process.stderr.read()
        process.kill()
        process.communicate()
        assert directory.state != "finished"
        process = chronofed("resume", "killed", *on_ray)
    finish(process)
    assert result(directory) == result(RunDirectory(workdir / "straight"))


def advanced(process, directory: RunDirectory, begun: int) -> bool:
    return process.poll() is not None or rounds_done(directory) > begun


def rounds_done(directory: RunDirectory) -> int:
    """Return the round of the latest checkpoint; their names begin with it."""
    found = [path.name.partition("-")[0] for path in directory.checkpoints.glob("*.safetensors")]
    return max((int("".join(filter(str.isdigit, name))) for name in found), default=-1)


def test_a_cluster_of_its_own_ends_with_its_driver(workdir):
    (workdir / "spec.toml").write_text(SPEC.replace("rounds = 120", "rounds = 30000"))
    process = chronofed("run", "spec.toml", "-o", "killed", "--engine", "ray", "--workers", 2, "-q")
    wait_until(partial(advanced, process, RunDirectory(workdir / "killed"), 0), "a checkpoint")
    assert process.poll() is None, process.stderr.read()
    started = [pid for pid in descendants(process.pid) if "ray" in title(pid)]
    assert any("raylet" in title(pid) for pid in started)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(title(pid) for pid in started), "Ray has ended")

"""Several runs at a time: the same records, whatever happens to one of them."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from chronofed import Experiment, Mlp, Train
from chronofed.errors import ChronofedError, DivergedError, StorageError
from chronofed.experiments import grid, runner
from chronofed.experiments.runner import Writer
from chronofed.experiments.spec import Checkpoint, on_engine
from chronofed.metrics.evaluation import Evaluate
from chronofed.records import RunDirectory

BASE = Experiment(
    rounds=3,
    model=Mlp((6,)),
    train=Train(steps=2),
    evaluate=Evaluate(seen=50),
    checkpoint=Checkpoint(every=2),
)


def start(folder, *experiments):
    return [runner.start(e, folder / f"{k}") for k, e in enumerate(experiments)]


def seeds(count):
    return [msgspec.structs.replace(BASE, seed=seed) for seed in range(count)]


def records(path):
    return [(path / name).read_bytes() for name in ("metrics.jsonl", "periods.jsonl")]


def test_side_by_side_equals_one_after_the_other(tmp_path):
    told = {}
    outcomes = {}
    for jobs in (1, 2):
        folder = tmp_path / f"{jobs}"
        told[jobs] = []
        directories = start(folder, *seeds(3))
        outcomes[jobs] = grid.proceed_all(
            directories, jobs, watch=lambda n, p, jobs=jobs: told[jobs].append((n, p.round))
        )
    for k in range(3):
        assert records(tmp_path / "1" / f"{k}") == records(tmp_path / "2" / f"{k}")
        assert outcomes[1][k]["best5"] == outcomes[2][k]["best5"]
    assert sorted(told[1]) == sorted(told[2]) == [(n, r) for n in range(3) for r in range(4)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_fails_does_not_stop_the_others(tmp_path, jobs):
    wild = msgspec.structs.replace(BASE, train=Train(lr=1e30, steps=5))
    good, bad, last = grid.proceed_all(start(tmp_path, BASE, wild, BASE), jobs)
    assert isinstance(bad, DivergedError)
    assert "smaller train.lr" in str(bad)
    assert good["rounds"] == last["rounds"] == 3


def test_one_that_is_killed_is_reported(tmp_path, monkeypatch):
    endless = msgspec.structs.replace(BASE, rounds=100_000)

    def kill(number, progress):
        if number == 0 and progress.round == 1:
            children = [cell for cell in started if cell.number == 0]
            os.kill(children[0].process.pid, signal.SIGKILL)

    started = []
    begin = grid._start
    monkeypatch.setattr(grid, "_start", lambda *a: started.append(begin(*a)) or started[-1])
    bad, good = grid.proceed_all(start(tmp_path, endless, BASE), 2, watch=kill)
    assert isinstance(bad, ChronofedError)
    assert "resume it" in str(bad)
    assert good["rounds"] == 3


SCRIPT = """
import sys
from pathlib import Path
from chronofed.experiments import grid
from chronofed.records import RunDirectory
if __name__ == "__main__":
    runs = [RunDirectory.open(Path(p)) for p in sys.argv[1:]]
    grid.proceed_all(runs, 2, watch=lambda n, p: print(n, p.round, flush=True))
"""


def test_runs_end_with_the_grid(tmp_path):
    endless = msgspec.structs.replace(BASE, rounds=100_000)
    directories = start(tmp_path / "runs", endless, endless)
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = [str(d.path) for d in directories]
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), *paths], stdout=subprocess.PIPE, text=True
    ) as process:
        seen = set()
        while len(seen) < 2:
            number, round_ = process.stdout.readline().split()
            if int(round_) >= 1:
                seen.add(number)
        process.kill()
    for _ in range(200):
        if all(RunDirectory.open(d.path).state == "stopped" for d in directories):
            return
        time.sleep(0.1)
    raise AssertionError("a run outlived its grid")


# --- what a single run does on the way


def test_engine_is_on_record(tmp_path):
    (directory,) = start(tmp_path, msgspec.structs.replace(BASE, engine="threads", workers=3))
    runner.proceed(directory, change=lambda e: on_engine(e, "serial", None))
    (line,) = directory.engines()
    assert line == {"round": 0, "engine": "serial", "workers": 1, "why": "as asked for"}
    assert 'engine = "threads"' in directory.spec_path.read_text()


def test_budget_does_not_change_results(tmp_path):
    from chronofed import CoreSet, Method

    keeping = msgspec.structs.replace(BASE, method=Method(memory=CoreSet(size=5)), rounds=4)
    tight = msgspec.structs.replace(keeping, client_memory=0.001)
    one, other = start(tmp_path, keeping, tight)
    runner.proceed(one)
    runner.proceed(other)
    assert records(one.path) == records(other.path)
    assert keeping.fingerprint() == tight.fingerprint()
    assert not list(other.path.glob("lockers-*"))
    (a,), (b,) = (sorted(d.checkpoints.iterdir())[-1:] for d in (one, other))
    assert a.name == b.name  # the digest is in the name


def test_a_checkpoint_that_cannot_be_written_is_reported_soon(tmp_path, monkeypatch):
    (directory,) = start(tmp_path, BASE)

    def full(*_):
        raise StorageError("cannot write: no space left on device")

    monkeypatch.setattr(runner, "save", full)
    with pytest.raises(StorageError, match=r"no space.*chronofed resume"):
        runner.proceed(directory)
    assert directory.state == "stopped"


def test_writer_waits_for_the_checkpoint_before(tmp_path, monkeypatch):
    order = []

    def slow(folder, snapshot, keep):
        time.sleep(0.05)
        order.append(snapshot)

    monkeypatch.setattr(runner, "save", slow)
    (directory,) = start(tmp_path, BASE)
    with Writer(directory) as writer:
        for snapshot in (1, 2, 3):
            writer.save(snapshot, keep=1)
            assert len(order) >= snapshot - 1
    assert order == [1, 2, 3]


def test_workers_must_be_positive():
    with pytest.raises(ChronofedError, match="--workers: expected a number >= 1, not 0"):
        on_engine(BASE, None, 0)
    assert on_engine(BASE, None, None) == BASE

"""Several runs at a time: the same records, whatever happens to one of them."""

import copy
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from chronofed import CoreSet, Experiment, Method, Mlp, Stateless, Train
from chronofed.core.errors import (
    ChronofedError,
    DivergedError,
    IncompatibleError,
    MissingExtraError,
    StorageError,
)
from chronofed.runs import RunDirectory, checkpoint_writer, runner
from chronofed.runs.built import build
from chronofed.runs.checkpoint import RunPoint
from chronofed.runs.checkpoint_writer import CheckpointWriter
from chronofed.runs.spec import Checkpoint, on_engine
from chronofed.studies import grid
from chronofed.studies.one_run import GridRun
from chronofed.training.evaluate import Evaluate
from tests.helpers.waiting import wait_until

BASE = Experiment(
    rounds=3,
    model=Mlp((6,)),
    train=Train(steps=2),
    evaluate=Evaluate(seen=50),
    checkpoint=Checkpoint(every=2),
)


def runs(folder, *experiments):
    return [GridRun(e, folder / f"{k}") for k, e in enumerate(experiments)]


def create(folder, *experiments):
    return [runner.create(build(run.experiment), run.path) for run in runs(folder, *experiments)]


def seeds(count):
    return [msgspec.structs.replace(BASE, seed=seed) for seed in range(count)]


def records(path):
    return [(path / name).read_bytes() for name in ("metrics.jsonl", "period_accuracy.jsonl")]


def test_side_by_side_equals_one_after_the_other(tmp_path):
    told = {}
    outcomes = {}
    for jobs in (1, 2):
        folder = tmp_path / f"{jobs}"
        told[jobs] = []
        outcomes[jobs] = grid.run_all(
            runs(folder, *seeds(3)),
            jobs,
            on_round=lambda n, p, jobs=jobs: told[jobs].append((n, p.round)),
        )
    for k in range(3):
        assert records(tmp_path / "1" / f"{k}") == records(tmp_path / "2" / f"{k}")
        assert outcomes[1][k]["best5"] == outcomes[2][k]["best5"]
    assert sorted(told[1]) == sorted(told[2]) == [(n, r) for n in range(3) for r in range(4)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_fails_does_not_stop_the_others(tmp_path, jobs):
    wild = msgspec.structs.replace(BASE, train=Train(lr=1e30, steps=5))
    good, bad, last = grid.run_all(runs(tmp_path, BASE, wild, BASE), jobs)
    assert isinstance(bad, DivergedError)
    assert "smaller train.lr" in str(bad)
    assert good["rounds"] == last["rounds"] == 3


def test_one_that_is_killed_is_reported(tmp_path, monkeypatch):
    endless = msgspec.structs.replace(BASE, rounds=100_000)

    def kill(number, progress):
        if number == 0 and progress.round == 1:
            children = [worker for worker in started if worker.number == 0]
            os.kill(children[0].process.pid, signal.SIGKILL)

    started = []
    begin = grid._start
    monkeypatch.setattr(grid, "_start", lambda *a: started.append(begin(*a)) or started[-1])
    bad, good = grid.run_all(runs(tmp_path, endless, BASE), 2, on_round=kill)
    assert isinstance(bad, ChronofedError)
    assert "resume it" in str(bad)
    assert good["rounds"] == 3


SCRIPT = """
import sys
from pathlib import Path
from chronofed import Experiment
from chronofed.studies import grid
if __name__ == "__main__":
    runs = [grid.GridRun(Experiment(), Path(p)) for p in sys.argv[1:]]
    grid.run_all(runs, 2, on_round=lambda n, p: print(n, p.round, flush=True))
"""


@pytest.mark.slow
def test_runs_end_with_the_grid(tmp_path):
    endless = msgspec.structs.replace(BASE, rounds=100_000)
    directories = create(tmp_path / "runs", endless, endless)
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
    wait_until(
        lambda: all(RunDirectory.open(d.path).state == "stopped" for d in directories),
        "the runs have ended with their grid",
    )


# --- what a single run does on the way


def test_engine_is_on_record(tmp_path):
    asked = msgspec.structs.replace(BASE, engine="threads", workers=3)
    (directory,) = create(tmp_path, asked)
    runner.resume(directory, experiment=on_engine(asked, "serial", None))
    (line,) = directory.engines()
    assert line == {"round": 0, "engine": "serial", "workers": 1, "reason": "as requested"}
    assert 'engine = "threads"' in directory.spec_path.read_text()


def test_the_state_cache_does_not_change_results(tmp_path):
    keeping = msgspec.structs.replace(BASE, method=Method(memory=CoreSet(size=5)), rounds=4)
    tight = msgspec.structs.replace(keeping, state_cache_mb=0.001)
    one, other = create(tmp_path, keeping, tight)
    runner.resume(one)
    runner.resume(other)
    assert records(one.path) == records(other.path)
    assert keeping.fingerprint() == tight.fingerprint()
    assert not list(other.path.glob("client-states-*"))
    (a,), (b,) = (sorted(d.checkpoints.iterdir())[-1:] for d in (one, other))
    assert a.name == b.name  # the digest is in the name


def test_a_checkpoint_that_cannot_be_written_is_reported_soon(tmp_path, monkeypatch):
    (directory,) = create(tmp_path, BASE)

    def full(*_):
        raise StorageError("cannot write: no space left on device")

    monkeypatch.setattr(checkpoint_writer, "save", full)
    with pytest.raises(StorageError, match=r"no space.*chronofed resume"):
        runner.resume(directory)
    assert directory.state == "stopped"


def test_writer_waits_for_the_previous_checkpoint(tmp_path, monkeypatch):
    order = []

    def slow(folder, snapshot, *_):
        time.sleep(0.05)
        order.append(snapshot)

    monkeypatch.setattr(checkpoint_writer, "save", slow)
    (directory,) = create(tmp_path, BASE)
    with CheckpointWriter(directory) as writer:
        for snapshot in (1, 2, 3):
            writer.save(snapshot, 1, RunPoint())
            assert len(order) >= snapshot - 1
    assert order == [1, 2, 3]


def test_workers_must_be_positive():
    with pytest.raises(ChronofedError, match="--workers: expected a number >= 1, not 0"):
        on_engine(BASE, None, 0)
    assert on_engine(BASE, None, None) == BASE


@pytest.mark.parametrize("jobs", [1, 2])
def test_workers_forward_what_they_log(tmp_path, caplog, jobs):
    directories = create(tmp_path, *seeds(2))
    for directory in directories:
        (directory.checkpoints / "00000002-0.safetensors").write_bytes(b"")
    outcomes = grid.run_all(runs(tmp_path, *seeds(2)), jobs)
    assert [outcome["rounds"] for outcome in outcomes] == [3, 3]
    assert len(caplog.records) == 2
    assert {record.name for record in caplog.records} == {"chronofed.runs.restore"}
    assert all(line.endswith("resuming from round 0") for line in caplog.messages)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_refused_run_leaves_no_directory(tmp_path, jobs):
    refused = msgspec.structs.replace(
        BASE, scenario=Stateless(), method=Method(memory=CoreSet(size=5))
    )
    ends = []
    bad, good = grid.run_all(
        runs(tmp_path, refused, BASE), jobs, on_end=lambda n, outcome: ends.append((n, outcome))
    )
    assert isinstance(bad, IncompatibleError)
    assert not (tmp_path / "0").exists()
    assert sorted(number for number, _ in ends) == [0, 1]
    assert good["rounds"] == 3


def test_an_error_about_a_missing_extra_crosses_processes():
    error = MissingExtraError("torchvision", "vision", "data")
    assert str(copy.copy(error)) == str(error)


def test_no_more_workers_than_asked_for_and_none_on_record(tmp_path):
    threads = msgspec.structs.replace(BASE, engine="threads")
    runner.run(threads, tmp_path / "run", workers=1)
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.engines()[0]["workers"] == 1
    assert "workers" not in directory.spec_path.read_text()

"""What may happen to a run's files: a full disk, a damaged checkpoint, a second process."""

import json
import resource
import subprocess
import sys

import pytest

from chronofed import CoreSet, Experiment, Method, Mlp, Train
from chronofed.errors import RunError
from chronofed.experiments import runner
from chronofed.experiments.spec import Checkpoint
from chronofed.metrics.evaluation import Evaluate
from chronofed.records import RunDirectory
from chronofed.records.checkpoint import load_latest

EXPERIMENT = Experiment(
    rounds=9,
    model=Mlp(hidden=(8,)),
    method=Method(memory=CoreSet(10)),
    train=Train(steps=2),
    evaluate=Evaluate(seen=100),
    checkpoint=Checkpoint(every=2),
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = runner.start(EXPERIMENT, tmp_path_factory.mktemp("straight") / "run")
    runner.proceed(directory)
    return outcome(directory)


@pytest.fixture
def directory(tmp_path):
    return runner.start(EXPERIMENT, tmp_path / "run")


def outcome(directory):
    return (directory.path / "metrics.jsonl").read_bytes(), sorted(
        path.name for path in directory.checkpoints.iterdir()
    )


def resume_with_file_limit(path, limit: int):
    """Continue the run where the kernel lets no file grow beyond ``limit`` bytes, as a full disk would."""
    return subprocess.run(
        [sys.executable, "-m", "chronofed", "resume", str(path), "--quiet"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("limit", [300, 60_000])  # the metrics, or a checkpoint, does not fit
def test_a_disk_that_fills_up(directory, straight, limit):
    done = resume_with_file_limit(directory.path, limit)
    assert done.returncode == 5
    assert done.stderr.startswith("chronofed: cannot write ")
    assert done.stderr.count("\n") == 1
    assert "chronofed resume" in done.stderr
    assert not list(directory.path.rglob("*.tmp"))
    for records in directory.path.glob("*.jsonl"):
        assert records.read_bytes()[-1:] in (b"", b"\n")  # whole lines only
    runner.proceed(directory)  # space again
    assert outcome(directory) == straight


def test_a_damaged_checkpoint_is_said_and_the_one_before_serves(directory, straight):
    stop_after(directory, 5)
    newest = max(directory.checkpoints.iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    said = []
    runner.proceed(directory, say=said.append)
    assert said == [
        f"checkpoint {newest.name} is damaged (its content does not match its digest); "
        "going on from round 2"
    ]
    assert outcome(directory) == straight


def test_all_checkpoints_damaged_means_from_the_start(directory, straight):
    stop_after(directory, 5)
    for path in directory.checkpoints.iterdir():
        path.write_bytes(b"")
    said = []
    runner.proceed(directory, say=said.append)
    assert len(said) == 2
    assert said[0].endswith("going on from round 0")
    assert outcome(directory) == straight


def test_going_on_repeats_no_finished_rounds(directory):
    stop_after(directory, 5)
    watched = []
    runner.proceed(directory, watch=watched.append)
    assert watched[0].round == 4  # the latest checkpoint
    assert [p.round for p in watched[1:]] == [5, 6, 7, 8, 9]
    assert watched[1].measures["round"] == 5


def test_a_second_process_is_refused(directory):
    with directory.lock(), pytest.raises(RunError, match="another process"):
        runner.proceed(RunDirectory.open(directory.path))


def test_a_finished_run_is_left_alone(directory):
    first = runner.proceed(directory)
    before = {path: path.stat().st_mtime_ns for path in directory.path.rglob("*") if path.is_file()}
    assert runner.proceed(directory) == first
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_the_record_is_complete(directory):
    runner.proceed(directory)
    rounds = [line["round"] for line in directory.history()]
    assert rounds == list(range(1, 10))
    times = [json.loads(t) for t in (directory.path / "times.jsonl").read_text().splitlines()]
    assert [line["round"] for line in times] == rounds
    assert directory.environment()["packages"]["torch"]
    latest, _ = load_latest(directory.checkpoints)
    assert latest.round == 9


class Stop(Exception):
    pass


def stop_after(directory, round_: int) -> None:
    """Abandon the run after a round, as an interrupt would."""

    def watch(progress):
        if progress.round == round_:
            raise Stop

    with pytest.raises(Stop):
        runner.proceed(directory, watch=watch)

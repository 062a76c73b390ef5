"""What may happen to a run's files: a full disk, a damaged checkpoint, a second process."""

import json
import resource
import subprocess
import sys

import pytest

from chronofed import CoreSet, Experiment, Method, Mlp, Train
from chronofed.cli.main import main
from chronofed.core.errors import RunError
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.spec import Checkpoint
from chronofed.training.evaluate import Evaluate

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
    directory = runner.create(build(EXPERIMENT), tmp_path_factory.mktemp("straight") / "run")
    runner.resume(directory)
    return outcome(directory)


@pytest.fixture
def directory(tmp_path):
    return runner.create(build(EXPERIMENT), tmp_path / "run")


def outcome(directory):
    return (directory.path / "metrics.jsonl").read_bytes(), sorted(
        path.name for path in directory.checkpoints.iterdir()
    )


def resume_with_file_limit(path, limit: int):
    """Continue the run where the kernel lets no file grow beyond ``limit`` bytes, as a full disk would.

    Python itself would leave half of a compiled module behind, which breaks every later start.
    """
    return subprocess.run(
        [sys.executable, "-B", "-m", "chronofed", "resume", str(path), "--quiet"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )


# A checkpoint, or the metrics, does not fit.
@pytest.mark.parametrize(
    "limit", [pytest.param(limit, marks=pytest.mark.slow) for limit in (60_000, 300)]
)
def test_a_disk_that_fills_up(directory, straight, limit):
    done = resume_with_file_limit(directory.path, limit)
    assert done.returncode == 5
    assert done.stderr.startswith("chronofed: cannot write ")
    assert done.stderr.count("\n") == 1
    assert "chronofed resume" in done.stderr
    assert not list(directory.path.rglob("*.tmp"))
    for records in directory.path.glob("*.jsonl"):
        assert records.read_bytes()[-1:] in (b"", b"\n")  # whole lines only
    runner.resume(directory)  # space again
    assert outcome(directory) == straight


@pytest.mark.slow
def test_a_damaged_checkpoint_is_logged_and_the_previous_one_used(directory, straight, caplog):
    stop_after(directory, 5)
    newest = max(directory.checkpoints.iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    runner.resume(directory)
    assert caplog.messages == [
        f"checkpoint {newest.name} is damaged (its content does not match its digest); "
        "resuming from round 2"
    ]
    assert outcome(directory) == straight


def test_all_checkpoints_damaged_means_from_the_start(directory, straight, caplog):
    stop_after(directory, 5)
    for path in directory.checkpoints.iterdir():
        path.write_bytes(b"")
    runner.resume(directory)
    assert len(caplog.messages) == 2
    assert caplog.messages[0].endswith("resuming from round 0")
    assert outcome(directory) == straight


def test_the_command_line_prints_what_is_logged_once(directory, capsys):
    for _ in range(2):
        stop_after(directory, 1)
    (directory.checkpoints / "00000003-0.safetensors").write_bytes(b"")
    capsys.readouterr()
    assert main(["resume", str(directory.path), "--json"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chronofed: checkpoint 00000003-0.safetensors is damaged")
    assert line.endswith("; resuming from round 0")


@pytest.mark.slow
def test_importing_the_library_configures_no_logging():
    code = "import logging, chronofed.studies.sweep as _, chronofed.cli.run\n"
    code += "assert not logging.getLogger('chronofed').handlers\nassert not logging.root.handlers"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_resuming_repeats_no_finished_rounds(directory):
    stop_after(directory, 5)
    watched = []
    runner.resume(directory, on_round=watched.append)
    assert watched[0].round == 4  # the latest checkpoint
    assert [p.round for p in watched[1:]] == [5, 6, 7, 8, 9]
    assert watched[1].measures["round"] == 5


def test_a_second_process_is_refused(directory):
    with directory.lock(), pytest.raises(RunError, match="another process"):
        runner.resume(RunDirectory.open(directory.path))


def test_a_finished_run_is_left_alone(directory):
    first = runner.resume(directory)
    before = {path: path.stat().st_mtime_ns for path in directory.path.rglob("*") if path.is_file()}
    assert runner.resume(directory) == first
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_the_record_is_complete(directory):
    runner.resume(directory)
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

    def on_round(progress):
        if progress.round == round_:
            raise Stop

    with pytest.raises(Stop):
        runner.resume(directory, on_round=on_round)

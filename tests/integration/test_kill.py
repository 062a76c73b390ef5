"""kill -9 at any instant, then resume: the end is the same, bit for bit."""

import multiprocessing
import os
import random
import signal

import pytest

from chronofed import CoreSet, Experiment, FedProx, Method, Mlp, Optimal, Train
from chronofed.core import atomic
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.runs.spec import Checkpoint
from chronofed.training.evaluate import Evaluate

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["chronofed.runs.runner"])

EXPERIMENT = Experiment(
    rounds=40,
    model=Mlp(hidden=(16,)),
    method=Method(FedProx(0.1), CoreSet(10), Optimal(time_drift_sq=1.0, information_loss_sq=0.5)),
    train=Train(steps=3, lr=0.1),
    evaluate=Evaluate(every=2, seen=500),
    checkpoint=Checkpoint(every=3, keep=2),
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run that nobody disturbs."""
    return finish(tmp_path_factory.mktemp("straight") / "run")


def finish(path):
    directory = runner.create(build(EXPERIMENT), path)
    runner.resume(directory)
    return result(directory)


def result(directory: RunDirectory):
    """All bytes that must not depend on interruptions; checkpoints are named by their digest."""
    latest = max(path.name for path in directory.checkpoints.iterdir())
    summary = directory.summary()
    lasting = {key: value for key, value in summary.items() if "seconds" not in key}
    records = [
        (directory.path / f"{name}.jsonl").read_bytes() for name in ("metrics", "period_accuracy")
    ]
    return records, latest, lasting


def work(path) -> None:
    runner.resume(RunDirectory.open(path))


def die_at_flush(path, number: int) -> None:
    """Work, and be killed at the n-th time that something is flushed to disk."""
    flush, calls = os.fsync, iter(range(number))

    def fatal(descriptor):
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(descriptor)

    atomic.os.fsync = fatal
    work(path)


@pytest.mark.parametrize("times", [3, 20])
@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, straight, times):
    chance, kills, runs = random.Random(1), 0, 0
    while kills < times:
        runs += 1
        directory = runner.create(build(EXPERIMENT), tmp_path / f"run{runs}")
        # On a busy machine a process gets nowhere in a second, so it is given longer each time.
        longest_s = 1.6
        while directory.state != "finished":
            process = CONTEXT.Process(target=work, args=(directory.path,))
            process.start()
            process.join(chance.uniform(0.1, longest_s))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                kills, longest_s = kills + 1, 1.2 * longest_s
            else:
                assert process.exitcode == 0
        assert result(directory) == straight
        assert not list(directory.path.rglob("*.tmp"))


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))]
)
@pytest.mark.slow
def test_killed_while_writing(tmp_path, straight, first):
    """Every place where something is written: before the rename, after it, before the folder is flushed."""
    directory = runner.create(build(EXPERIMENT), tmp_path / "run")
    for number in (first, first + 8):
        process = CONTEXT.Process(target=die_at_flush, args=(directory.path, number))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    runner.resume(directory)
    assert result(directory) == straight

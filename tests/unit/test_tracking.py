"""Trackers receive every evaluation and cannot disturb the run."""

import sys
import types

import pytest

from chronofed import Experiment, Linear, Train
from chronofed.core.errors import DivergedError, MissingExtraError, SpecError
from chronofed.runs import RunDirectory, runner, spec
from chronofed.runs.built import build
from chronofed.runs.tracking import Tracker, find_tracker
from chronofed.training.evaluate import Evaluate

EVALUATE = Evaluate(every=2, seen=0, periods="off")


class Notes:
    """A tracker that only takes notes."""

    heard: list = []

    def start(self, run):
        self.heard.append(("start", run.name, run.round, run.rounds, run.spec["train"]["steps"]))

    def log(self, round_, measures):
        self.heard.append(("log", round_, measures["test_accuracy"]))

    def finish(self, summary):
        self.heard.append(("finish", summary["last"]))


class Faulty(Notes):
    def log(self, round_, measures):
        raise OSError("the network is down")


class Half:
    def start(self, run):
        pass


@pytest.fixture
def module(monkeypatch):
    """The trackers as a user's module."""
    made = types.ModuleType("own_trackers")
    made.Notes, made.Faulty, made.Half = Notes, Faulty, Half
    monkeypatch.setitem(sys.modules, "own_trackers", made)
    Notes.heard = []


def experiment(track, rounds=4, **more):
    return Experiment(
        rounds=rounds, model=Linear(), train=Train(steps=1), evaluate=EVALUATE, track=track, **more
    )


def test_a_tracker_receives_everything(tmp_path, module):
    run = runner.create(build(experiment("own_trackers:Notes")), tmp_path / "run")
    summary = runner.resume(run)
    history = run.history()
    assert Notes.heard == [
        ("start", "run-s0", 0, 4, 1),
        ("log", 2, history[0]["test_accuracy"]),
        ("log", 4, history[1]["test_accuracy"]),
        ("finish", summary["last"]),
    ]
    assert isinstance(Notes(), Tracker)


def test_a_tracker_changes_neither_the_result_nor_the_fingerprint(tmp_path, module):
    records = []
    for name in (None, "own_trackers:Notes", "own_trackers:Faulty"):
        run = runner.create(build(experiment(name)), tmp_path / str(name))
        runner.resume(run)
        records.append((run.path / "metrics.jsonl").read_bytes())
    assert records[0] == records[1] == records[2]
    assert experiment(None).fingerprint() == experiment("own_trackers:Notes").fingerprint()


def test_a_failure_is_logged_once_and_the_run_continues(tmp_path, module, caplog):
    run = runner.create(build(experiment("own_trackers:Faulty")), tmp_path / "run")
    runner.resume(run)
    assert run.state == "finished"
    assert caplog.messages == [
        "track: Faulty failed (OSError('the network is down')); the run continues without it"
    ]
    assert [entry[0] for entry in Notes.heard] == ["start"]


def test_a_resumed_run_tells_the_tracker_its_round(tmp_path, module):
    run = runner.create(
        build(experiment("own_trackers:Notes", checkpoint=spec.Checkpoint(every=2))),
        tmp_path / "run",
    )

    def stop(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.resume(run, on_round=stop)
    Notes.heard.clear()
    runner.resume(RunDirectory.open(run.path))
    assert [entry[:1] + entry[2:3] for entry in Notes.heard[:1]] == [("start", 2)]
    assert [entry[1] for entry in Notes.heard if entry[0] == "log"] == [4]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorbord", "track: unknown value 'tensorbord'; use 'tensorboard' or"),
        ("no_such_module:Thing", "track: cannot make 'no_such_module:Thing': No module named"),
        ("own_trackers:Missing", "has no attribute 'Missing'"),
        ("own_trackers:Half", "makes a Half, which lacks start, log or finish"),
    ],
)
def test_what_cannot_track_is_refused_before_anything_is_written(tmp_path, module, name, words):
    with pytest.raises(SpecError, match=words):
        runner.create(build(experiment(name)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_tensorboard(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        MissingExtraError, match=r"needs tensorboard: pip install 'chronofed\[track\]'"
    ):
        find_tracker("tensorboard")


def test_tensorboard_gets_every_measure(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra 'track'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = runner.create(build(experiment("tensorboard")), tmp_path / "run")
    runner.resume(run)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    history = run.history()
    assert set(events.Tags()["scalars"]) == set(history[0]) - {"round"}
    for event, line in zip(events.Scalars("test_accuracy"), history, strict=True):
        assert (event.step, event.value) == (line["round"], pytest.approx(line["test_accuracy"]))


def test_a_failed_run_records_why_until_it_is_resumed(tmp_path):
    run = runner.create(build(Experiment(rounds=3, train=Train(lr=1e30))), tmp_path / "run")
    with pytest.raises(DivergedError):
        runner.resume(run)
    assert run.state == "failed"
    assert "no longer finite" in run.failure()
    with run.lock():
        assert run.state == "running"
    run.clear_failure()
    assert (run.state, run.failure()) == ("stopped", "")

"""Early stopping: decided on validation rows, recorded, and the same however often a run is resumed."""

import json

import pytest

from chronofed import Experiment, Stop, Train
from chronofed.core.errors import RunError, SpecError
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.runs.checkpoint import files, load_latest
from chronofed.runs.json_files import read_json
from chronofed.runs.load_spec import load
from chronofed.training.stopping import EarlyStopping
from tests.corpus.runs_helper import SPEC, call, finish, make_run, results, write_data


def history(*values, key="validation_loss"):
    return [{"round": r, key: value, "test_loss": 9.0 - r} for r, value in enumerate(values, 1)]


def stopped_at(settings, values, key="validation_loss", not_before=0):
    """The round after which a run stops; ``None`` if it does not."""
    stopping = EarlyStopping(settings, not_before)
    for line in history(*values, key=key):
        stopping.absorb([line])
        if stopping.reason:
            return line["round"]
    return None


@pytest.mark.parametrize(
    ("settings", "values", "expected"),
    [
        (Stop(patience=2), [3, 2, 2.5, 2.1, 1], 4),
        (Stop(patience=2), [3, 2, 2.5, 1.9, 2, 1.8], None),
        # Equal is not better.
        (Stop(patience=2), [2, 2, 2], 3),
        (Stop(patience=2, min_delta=0.5), [3, 2.6, 2.4, 2.0, 1.95], 5),
        (Stop(patience=2, min_delta=0.5), [3, 2.6, 2.55, 1], 3),
        (Stop(patience=1), [1, float("nan")], 2),
        (Stop(patience=1), [1], None),
        (None, [1, 2, 3, 4], None),
    ],
)
def test_patience(settings, values, expected):
    assert stopped_at(settings, values) == expected


def test_accuracy_is_better_when_it_is_higher():
    settings = Stop(patience=2, measure="validation_accuracy")
    assert stopped_at(settings, [0.1, 0.3, 0.2, 0.3], key="validation_accuracy") == 4
    assert stopped_at(settings, [0.3, 0.2, 0.1], key="validation_accuracy") == 3


def test_deletions_take_effect_first():
    assert stopped_at(Stop(patience=1), [1, 2, 3, 4, 5], not_before=4) == 4


def test_a_resumed_run_counts_the_evaluations_before():
    stopping = EarlyStopping(Stop(patience=3))
    stopping.absorb(history(1, 2, 3, 4))
    assert stopping.reason == (
        "stopped early after round 4: no better validation loss for 3 evaluations"
    )
    assert stopping.outcome(9) == {"rounds": 4, "stopped_early": stopping.reason}
    assert stopping.outcome(4) == {}


# --- whole runs --------------------------------------------------------------------------------------

# No loss falls by so much, so that the first evaluation stays the best.
OPTIONS = {"data.validation": 0.2, "stop.patience": 2, "stop.min_delta": 100.0}
END = 3


@pytest.fixture
def spec(workdir):
    return write_data(workdir)


def summary(run):
    return json.loads((run.path / "summary.json").read_bytes())


def test_a_run_stops_and_counts_as_finished(spec, workdir):
    run = make_run(spec, workdir / "run", **OPTIONS)
    words = f"stopped early after round {END}: no better validation loss for 2 evaluations"
    assert summary(run)["stopped_early"] == words
    assert (summary(run)["rounds"], run.state) == (END, "finished")
    # The model of the last round can be had.
    assert files(run.checkpoints)[0].name.startswith(f"{END:08d}")
    before = (run.path / "metrics.jsonl").read_bytes()
    assert call("resume", run.path, "-q")[0] == 0
    assert (run.path / "metrics.jsonl").read_bytes() == before
    assert words in " ".join(call("compare", run.path)[1].split())
    assert load(run.spec_path).stop == Stop(patience=2, min_delta=100.0)


@pytest.mark.parametrize("damage", [{"stopped_early": 3}, {"last": "words"}])
def test_a_summary_of_another_form_is_damaged(tmp_path, damage):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"rounds": 3, "stopped_early": "words"}))
    assert read_json(path)["stopped_early"] == "words"
    path.write_text(json.dumps({"rounds": 3, **damage}))
    with pytest.raises(RunError, match="is damaged"):
        read_json(path)


@pytest.mark.parametrize("after", [1, 2])
def test_a_killed_run_stops_at_the_same_round(spec, workdir, after):
    straight = make_run(spec, workdir / "straight", **OPTIONS)
    killed = make_run(spec, workdir / "killed", stop_after=after, **OPTIONS)
    finish(killed)
    assert results(killed.path) == results(straight.path)


def test_killed_between_the_last_checkpoint_and_the_summary(spec, workdir):
    straight = make_run(spec, workdir / "straight", **OPTIONS)
    killed = make_run(spec, workdir / "killed", stop_after=END, **OPTIONS)
    assert not (killed.path / "summary.json").exists()
    finish(killed)
    assert results(killed.path) == results(straight.path)
    names = [[path.name for path in files(run.checkpoints)] for run in (killed, straight)]
    assert names[0] == names[1]


def test_kept_optimiser_state_survives_a_kill(spec, workdir):
    options = {"train.optimizer": "adamw", "train.optimizer_state": "keep", "train.lr": 0.01}
    straight = make_run(spec, workdir / "straight", **options)
    killed = make_run(spec, workdir / "killed", stop_after=5, **options, state_cache_mb=1e-6)
    finish(killed)
    assert results(killed.path) == results(straight.path)
    names = [[path.name for path in files(run.checkpoints)] for run in (killed, straight)]
    assert names[0] == names[1]


def test_the_decision_does_not_see_test_rows(spec, workdir):
    """With ``evaluate.on`` = validation there are no test rows at all, and it stops at the same round."""
    run = make_run(spec, workdir / "run", **OPTIONS)
    blind = make_run(spec, workdir / "blind", **{"evaluate.on": "validation"}, **OPTIONS)
    assert summary(blind)["stopped_early"] == summary(run)["stopped_early"]
    for line in blind.history():
        assert line["validation_loss"] == line["test_loss"]
        assert line["validation_accuracy"] == line["test_accuracy"]
    assert any(line["validation_loss"] != line["test_loss"] for line in run.history())


def test_data_are_deleted_before_it_stops(spec, workdir):
    changes = {**OPTIONS, "deletions": "[{ round = 4, clients = [1] }]"}
    run = make_run(spec, workdir / "run", **changes)
    assert summary(run)["rounds"] == 5
    assert 1 not in load_latest(run.checkpoints)[0].client_states


def test_progress_ends_where_the_run_does(spec, workdir):
    run = runner.create(
        build(load(spec, [f"{key}={value}" for key, value in OPTIONS.items()])), workdir / "run"
    )
    seen = []
    runner.resume(run, on_round=seen.append)
    assert [(p.round, p.rounds) for p in seen] == [(0, 6), (1, 6), (2, 6), (3, 3)]


def test_without_validation_rows_it_is_refused(spec):
    with pytest.raises(SpecError, match=r"^stop: needs validation rows; hold some out: data\.val"):
        build(load(spec, ["stop.patience=2"]))
    assert "stop" not in SPEC


def test_runs_without_it_evaluate_no_validation_rows(spec, workdir):
    run = make_run(spec, workdir / "run", **{"data.validation": 0.2, "rounds": 1})
    assert not any(key.startswith("validation") for key in run.history()[0])


# --- fingerprints ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        Experiment(stop=Stop(patience=2)),
        Experiment(train=Train(clip_norm=1.0)),
        Experiment(train=Train(optimizer="adamw")),
    ],
)
def test_a_new_setting_that_is_set_changes_it(changed):
    assert changed.fingerprint() != Experiment().fingerprint()

"""A fixed part of the test rows between, and all of them after the last round."""

import numpy as np
import pytest
import torch

from chronofed import CoreSet, Ditto, Method
from chronofed.core.errors import SpecError
from chronofed.runs.built import build
from chronofed.runs.extend import Request, extend
from chronofed.runs.load_spec import load
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluated_part import EvaluatedPart
from chronofed.training.evaluation import Evaluator
from tests.corpus.runs_helper import make_run, results
from tests.integration.test_extend import SUBSETS

SIZE = 12
PART = SUBSETS.replace("every = 3", f"every = 3\nsample = {SIZE}\nseen = 0")


@pytest.fixture(scope="module")
def snapshots(train_for):
    return {rounds: train_for(Method(memory=CoreSet(5)), rounds) for rounds in (2, 4, 6)}


@pytest.fixture
def evaluator(task, scenario):
    def evaluator(method=None, seed=0, last=6, **settings) -> Evaluator:
        parts = (task, scenario, method or Method(memory=CoreSet(5)), Evaluate(**settings), seed)
        return Evaluator(*parts, last=last)

    return evaluator


def accuracy(task, params, rows):
    logits = torch.nn.functional.linear(task.data.test.x, params[:15].view(3, 5), params[15:])
    right = (logits.argmax(1) == task.data.test.y).double()
    return float(right[torch.from_numpy(rows)].mean())


def test_the_same_rows_between_and_all_at_the_end(task, evaluator, snapshots):
    rows = EvaluatedPart.of(task, SIZE, 0).rows
    assert len(set(rows)) == SIZE < len(task.data.test)
    one = evaluator(sample=SIZE)
    for round_, basis in ((2, rows), (4, rows), (6, np.arange(len(task.data.test)))):
        found = one(snapshots[round_]).measures
        assert found["test_samples"] == len(basis)
        expected = accuracy(task, snapshots[round_].params, basis)
        assert found["test_accuracy"] == pytest.approx(expected)


def test_the_end_is_what_it_is_without_a_part(evaluator, snapshots):
    part, whole = evaluator(sample=SIZE, periods="off"), evaluator(periods="off")
    found = part(snapshots[6]).measures
    assert found.pop("test_samples") == len(part.task.data.test)
    assert found == whole(snapshots[6]).measures


def test_another_seed_draws_other_rows_and_another_method_the_same(task, evaluator):
    first, other = (EvaluatedPart.of(task, SIZE, seed).rows for seed in (0, 1))
    assert first.tolist() != other.tolist()
    assert first.tolist() == evaluator(Method(), sample=SIZE)._part.rows.tolist()


@pytest.mark.parametrize("size", [0, 10**6])
def test_all_rows_are_no_part(task, evaluator, snapshots, size):
    assert EvaluatedPart.of(task, size, 0) is None
    found = evaluator(sample=size)(snapshots[4]).measures
    assert found.get("test_samples") == (len(task.data.test) if size else None)


def test_accuracies_by_data_set_stay_on_the_part(task, evaluator, snapshots):
    """Forgetting would otherwise compare an accuracy on some rows with one on others."""
    one = evaluator(sample=SIZE)
    last = [one(snapshots[r]) for r in (2, 4, 6)][-1].records["period_accuracy"]
    rows = EvaluatedPart.of(task, SIZE, 0).rows
    logits = torch.nn.functional.linear(
        task.data.test.x, snapshots[6].params[:15].view(3, 5), snapshots[6].params[15:]
    )
    right, y = (logits.argmax(1) == task.data.test.y).numpy()[rows], task.data.test.y.numpy()[rows]
    recall = [right[y == c].mean() if (y == c).any() else 0.0 for c in range(3)]
    for client, key, value in last["accuracy"]:
        (held,) = [h for h in one._period_accuracy._classes if h == (client, key)]
        shares = one._period_accuracy._classes[held]
        assert value == pytest.approx(float(shares @ recall), abs=1e-5)


def test_personal_models_are_compared_on_the_same_rows(evaluator, train_for):
    snapshot = train_for(Method(Ditto()), 6)
    found = evaluator(Method(Ditto()), sample=SIZE)(snapshot).measures
    between = evaluator(Method(Ditto()), sample=SIZE, last=9)(snapshot).measures
    for key in ("personal_accuracy", "client_accuracy"):
        assert found[key] == between[key]


def test_drift_can_wait_for_the_end(evaluator, snapshots):
    always, late = evaluator(past=2), evaluator(past=2, past_at="last")
    assert "information_loss" in always(snapshots[4]).measures
    assert not {"information_loss", "time_drift_sq"} & set(late(snapshots[4]).measures)
    assert late(snapshots[6]) == always(snapshots[6])


@pytest.mark.slow
def test_more_rounds_equal_a_run_with_more_rounds(tmp_path):
    """What was the end is measured again, on the part."""
    (tmp_path / "spec.toml").write_text(PART)
    run = make_run(tmp_path / "spec.toml", tmp_path / "run", rounds=6)
    before = [line["test_samples"] for line in run.history()]
    assert before[-1] > before[0] == SIZE
    extend(run, Request(rounds=3))
    straight = make_run(tmp_path / "spec.toml", tmp_path / "straight", rounds=9)
    assert results(run.path) == results(straight.path)
    assert [line["test_samples"] for line in run.history()] == [SIZE, SIZE, before[-1]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([f"evaluate.sample={SIZE}", "rounds='forever'"], r"^evaluate.sample measures more after"),
        (["evaluate.past=2", "evaluate.past_at='last'", "rounds='forever'"], "past_at = 'last'"),
        (
            [f"evaluate.sample={SIZE}", "stop={patience=2}", "data.validation=0.2"],
            "set rounds without stop$",
        ),
    ],
)
def test_what_needs_a_last_round_is_refused_without_one(tmp_path, settings, message):
    (tmp_path / "spec.toml").write_text(PART.replace(f"sample = {SIZE}\n", ""))
    with pytest.raises(SpecError, match=message):
        build(load(tmp_path / "spec.toml", settings))


def test_all_rows_of_a_next_period_are_evaluated(scenario):
    with pytest.raises(SpecError, match=r"for test rows; protocol 'next' uses all of a period"):
        Evaluate(protocol="next", sample=SIZE).check(scenario)

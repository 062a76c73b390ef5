"""Evaluation against a straightforward computation of the same thing."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from chronofed import Method
from chronofed.metrics.evaluation import Evaluate, Evaluator
from chronofed.metrics.summary import summarise


@pytest.fixture(scope="module")
def snapshots(train_for):
    return {rounds: train_for(Method(), rounds) for rounds in (1, 3, 6)}


def by_hand(task, params, x, y):
    logits = functional.linear(x, params[:15].view(3, 5), params[15:])
    return float(functional.cross_entropy(logits, y)), float(
        (logits.argmax(1) == y).double().mean()
    )


def test_test_set(task, scenario, snapshots):
    measures = Evaluator(task, scenario, Evaluate(), seed=0)(snapshots[3])
    loss, accuracy = by_hand(task, snapshots[3].params, task.data.test.x, task.data.test.y)
    assert measures["round"] == 3
    assert measures["test_loss"] == pytest.approx(loss, rel=1e-5)
    assert measures["test_accuracy"] == pytest.approx(accuracy)


def test_all_training_data_seen_so_far(task, scenario, snapshots):
    measures = Evaluator(task, scenario, Evaluate(seen=10**6), seed=0)(snapshots[3])
    visits = [v.indices for t in range(3) for v in scenario.at(t).visits.values()]
    seen = torch.from_numpy(np.unique(np.concatenate(visits)))
    loss, accuracy = by_hand(
        task, snapshots[3].params, task.data.train.x[seen], task.data.train.y[seen]
    )
    assert measures["seen_samples"] == len(seen) < len(task.data.train)
    assert measures["seen_loss"] == pytest.approx(loss, rel=1e-5)
    assert measures["seen_accuracy"] == pytest.approx(accuracy)


def test_a_cap_is_said_and_kept(task, scenario, snapshots):
    measures = Evaluator(task, scenario, Evaluate(seen=50), seed=0)(snapshots[6])
    assert measures["seen_samples"] == 50
    none = Evaluator(task, scenario, Evaluate(seen=0), seed=0)(snapshots[6])
    assert "seen_loss" not in none


def test_depends_on_the_snapshot_alone(task, scenario, snapshots):
    """Whatever was evaluated before, in whatever order: resuming changes nothing."""
    settings = Evaluate(seen=100)
    fresh = {r: Evaluator(task, scenario, settings, seed=0)(s) for r, s in snapshots.items()}
    used = Evaluator(task, scenario, settings, seed=0)
    for round_ in (6, 1, 3, 6):
        assert used(snapshots[round_]) == fresh[round_]


def test_when_it_is_due():
    assert [r for r in range(1, 8) if Evaluate(every=3).due(r, last=7)] == [3, 6, 7]


def test_summary():
    accuracies = [0.1, 0.9, 0.3, 0.8, 0.7, 0.6, 0.5]
    history = [
        {"round": r + 1, "test_accuracy": a, "test_loss": 2.0, "seen_loss": 3.0}
        for r, a in enumerate(accuracies)
    ]
    summary = summarise(history)
    assert summary["best5"] == pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.5) / 5)
    assert summary["last"] == 0.5
    assert summary["anytime"] == pytest.approx(sum(accuracies) / 7)
    assert summary["rounds"] == 7
    assert (summary["last_loss"], summary["last_seen_loss"]) == (2.0, 3.0)

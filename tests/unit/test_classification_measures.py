"""Measures of classification against their definitions, written as plain loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed import Evaluate, Method
from chronofed.training.classification_measures import (
    CLASSIFICATION,
    DEFAULT,
    Outcome,
    auc,
    average_precision,
    balanced_accuracy,
    brier,
    calibration_error,
    client_accuracy_deviation,
    log_loss,
    macro_f1,
    worst_client_accuracy,
)
from chronofed.training.evaluation import Evaluator


def outcome(chances, labels, client=None) -> Outcome:
    logits = torch.tensor(chances, dtype=torch.float64).log()
    found = Outcome.of(logits, torch.tensor(labels), None if client is None else np.array(client))
    assert found is not None
    return found


# Few different numbers, so that there are many ties.
levels = st.sampled_from([0.1, 0.2, 0.3, 0.5])


@st.composite
def outcomes(draw, kinds=None):
    kinds = kinds or draw(st.integers(2, 4))
    rows = draw(st.integers(1, 12))
    weights = np.array(draw(st.lists(levels, min_size=rows * kinds, max_size=rows * kinds)))
    chances = weights.reshape(rows, kinds) / weights.reshape(rows, kinds).sum(1, keepdims=True)
    # The same numbers in another order may differ in the last digit, and would not be ties.
    labels = draw(st.lists(st.integers(0, kinds - 1), min_size=rows, max_size=rows))
    clients = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    return outcome(chances.round(6).tolist(), labels, clients)


def counted(found: Outcome, label: int) -> tuple[int, int, int]:
    """True positives, false positives and false negatives."""
    pairs = list(zip(found.predicted, found.labels, strict=True))
    hits = sum(p == label == y for p, y in pairs)
    return hits, sum(p == label != y for p, y in pairs), sum(p != label == y for p, y in pairs)


@given(outcomes())
def test_f1_and_recall_by_counting(found):
    present = set(found.labels) | set(found.predicted)
    f1 = [2 * t / (2 * t + p + n) for t, p, n in (counted(found, c) for c in present)]
    assert macro_f1(found) == pytest.approx(sum(f1) / len(f1))
    recalls = [t / (t + n) for t, _, n in (counted(found, c) for c in set(found.labels))]
    assert balanced_accuracy(found) == pytest.approx(sum(recalls) / len(recalls))
    for label, (precision, recall, _, support) in enumerate(found.by_class):
        hits, wrong, lost = counted(found, label)
        assert precision == pytest.approx(hits / (hits + wrong) if hits + wrong else 0)
        assert recall == pytest.approx(hits / (hits + lost) if hits + lost else 0)
        assert support == hits + lost


def against_the_rest(found: Outcome, measure) -> float | None:
    """The mean of a measure of scores and truths over the classes; of two classes, of the second."""
    kinds = found.chances.shape[1]
    values = [
        measure(found._score(c).tolist(), (found.labels == c).tolist())
        for c in ([1] if kinds == 2 else range(kinds))
        if 0 < (found.labels == c).sum() < len(found.labels)
    ]
    return sum(values) / len(values) if values else None


@given(outcomes())
def test_auc_by_comparing_all_pairs(found):
    def area(scores, truths):
        rows = list(zip(scores, truths, strict=True))
        pairs = [(a, b) for (a, t), (b, u) in itertools.product(rows, rows) if t and not u]
        return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)

    want = against_the_rest(found, area)
    assert auc(found) == (None if want is None else pytest.approx(want))


@given(outcomes())
def test_average_precision_by_its_sum(found):
    def area(scores, truths):
        total, before = 0.0, 0.0
        for limit in sorted(set(scores), reverse=True):
            chosen = [t for s, t in zip(scores, truths, strict=True) if s >= limit]
            recall = sum(chosen) / sum(truths)
            total += (recall - before) * sum(chosen) / len(chosen)
            before = recall
        return total

    want = against_the_rest(found, area)
    assert average_precision(found) == (None if want is None else pytest.approx(want))


@given(outcomes())
def test_chances_against_the_truth(found):
    own = [found.chances[k, y] for k, y in enumerate(found.labels)]
    assert log_loss(found) == pytest.approx(-sum(map(math.log, own)) / len(own))
    kinds = found.chances.shape[1]
    squares = [
        sum((row[c] - (y == c)) ** 2 for c in range(kinds))
        for row, y in zip(found.chances, found.labels, strict=True)
    ]
    want = sum(squares) / len(squares)
    assert brier(found) == pytest.approx(want / 2 if kinds == 2 else want)


def test_brier_of_two_classes_is_that_of_one_of_them():
    found = outcome([[0.3, 0.7], [0.9, 0.1]], [1, 1])
    assert brier(found) == pytest.approx((0.3**2 + 0.9**2) / 2)


def test_calibration_error_by_hand():
    # Bins of 1/15: .70 and .72 share (.667, .733], one of two is right; .95 is alone and right.
    found = outcome([[0.7, 0.3], [0.72, 0.28], [0.05, 0.95]], [0, 1, 1])
    assert calibration_error(found) == pytest.approx((2 * abs(0.5 - 0.71) + 0.05) / 3)
    certain = Outcome(np.array([[0.0, -800.0]]), np.array([0]))
    assert calibration_error(certain) == 0.0


def test_clients():
    found = outcome([[0.9, 0.1]] * 5, [0, 0, 1, 0, 1], [0, 0, 0, 2, 2])
    assert found.by_client.tolist() == [[0, 3, pytest.approx(2 / 3)], [2, 2, 0.5]]
    assert worst_client_accuracy(found) == 0.5
    assert client_accuracy_deviation(found) == pytest.approx((1 / 6) / math.sqrt(2))
    alone = outcome([[0.9, 0.1]], [0], [3])
    assert (worst_client_accuracy(alone), client_accuracy_deviation(alone)) == (1.0, None)
    nobody = outcome([[0.9, 0.1]], [0])
    assert (worst_client_accuracy(nobody), client_accuracy_deviation(nobody)) == (None, None)


def test_one_class_only():
    found = outcome([[0.9, 0.1], [0.2, 0.8]], [0, 0])
    assert (auc(found), average_precision(found)) == (None, None)
    assert balanced_accuracy(found) == 0.5
    # Class 0 has F1 2/3; the answer 1 was never right.
    assert macro_f1(found) == pytest.approx(1 / 3)


def test_a_score_that_saturates_still_ranks():
    """In floats both chances are 1, but the logits differ."""
    logits = torch.tensor([[0.0, 60.0], [0.0, 80.0]])
    found = Outcome.of(logits, torch.tensor([0, 1]), None)
    assert auc(found) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_have_no_measures(bad):
    assert Outcome.of(torch.tensor([[bad, 0.0]]), torch.tensor([0]), None) is None
    assert Outcome.of(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), None) is None


def test_named_measures_are_computed_and_others_are_not(task, scenario, train_for):
    snapshot = train_for(Method(), 3)
    every = tuple(measure.key for measure in CLASSIFICATION)
    found = Evaluator(task, scenario, Method(), Evaluate(measures=every), seed=0)(snapshot)
    # The samples of this test set name no clients.
    assert {k for k in every if k not in found.measures} == {
        "worst_client_accuracy",
        "client_accuracy_deviation",
    }
    assert found.measures["log_loss"] == pytest.approx(found.measures["test_loss"], rel=1e-5)
    assert len(found.records["breakdown"]["classes"]) == 3
    plain = Evaluator(task, scenario, Method(), Evaluate(), seed=0)(snapshot)
    assert not set(plain.measures) & set(every)
    assert "breakdown" not in plain.records
    assert set(DEFAULT) <= set(every)
    assert all(measure.description for measure in CLASSIFICATION)

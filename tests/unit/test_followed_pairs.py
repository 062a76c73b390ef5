"""Forgetting of many pairs is followed on a random sample; nothing is written where nothing was measured."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from chronofed import Method, Periods
from chronofed.data.dataset import Origin
from chronofed.training import evaluation
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.followed_pairs import FollowedPairs
from chronofed.training.period_accuracy import PeriodAccuracy
from chronofed.training.summary import summarise

PAIRS = [(client, key) for client in range(10) for key in range(6)]


def followed(pairs, seed=0, most=12):
    found = FollowedPairs(seed, most)
    for pair in pairs:
        found.add(pair)
    return found


def test_the_sample_depends_on_the_seed_and_not_on_the_order():
    assert set(followed(PAIRS).pairs) == set(followed(PAIRS[::-1]).pairs)
    assert set(followed(PAIRS).pairs) != set(followed(PAIRS, seed=1).pairs)
    assert len(followed(PAIRS).pairs) == 12
    assert list(followed(PAIRS, most=None).pairs) == PAIRS
    assert followed(PAIRS).seen == 60


def test_every_pair_is_as_likely_as_any_other():
    counts = Counter(pair for seed in range(500) for pair in followed(PAIRS, seed).pairs)
    # 500 draws with a chance of one in five: 100 ± 9
    assert min(counts[pair] for pair in PAIRS) > 65
    assert max(counts.values()) < 135
    first, last = (sum(counts[p] for p in half) for half in (PAIRS[:30], PAIRS[30:]))
    assert abs(first - last) < 300


def test_a_pair_is_followed_from_its_arrival_or_never():
    found, before = FollowedPairs(0, 12), set()
    for pair in PAIRS:
        found.add(pair)
        assert set(found.pairs) <= before | {pair}
        before = set(found.pairs)


@pytest.fixture
def evaluate(task, scenario, train_for, monkeypatch):
    """Evaluate some rounds with room for five pairs."""
    monkeypatch.setattr(evaluation, "MOST_PAIRS", 5)

    def evaluate(rounds, evaluator=None, **settings):
        made = evaluator or Evaluator(task, scenario, Method(), Evaluate(**settings), seed=0)
        return [made(train_for(Method(), r)) for r in rounds]

    return evaluate


def test_forgetting_goes_on_when_there_are_too_many_pairs(evaluate):
    """It used to stop, and its last value was written again at every evaluation."""
    whole, sample = (evaluate((1, 3, 6, 9), periods=p) for p in ("on", "auto"))
    best = {}
    for full, some in zip(whole, sample, strict=True):
        line = some.records["period_accuracy"]
        assert line["pairs"] == some.measures["seen_pairs"] == full.measures["followed_pairs"]
        assert len(line["accuracy"]) == some.measures["followed_pairs"] == min(5, line["pairs"])
        every = {(c, k): a for c, k, a in full.records["period_accuracy"]["accuracy"]}
        best = {pair: max(best.get(pair, 0.0), a) for pair, a in every.items()}
        lost = [best[c, k] - a for c, k, a in line["accuracy"]]
        assert all(every[c, k] == a for c, k, a in line["accuracy"])
        # the mean over what is followed now, and not over what was followed once
        assert some.measures["forgetting"] == pytest.approx(np.mean(lost), abs=2e-5)
    assert sample[-1].measures["seen_pairs"] > 5


def test_a_sample_goes_on_after_a_stop(evaluate, task, scenario):
    straight = evaluate((1, 3, 6))
    resumed = Evaluator(task, scenario, Method(), Evaluate(), seed=0)
    resumed.absorb(found.records["period_accuracy"] for found in straight[:2])
    assert evaluate((6,), resumed) == straight[2:]


def test_nothing_is_written_where_nothing_was_measured(task, train_for):
    """The test rows belong to clients that never take part."""
    data = task.data
    codes = [np.zeros(len(part), dtype=np.int64) for part in (data.train, data.train)]
    elsewhere = np.full(len(data.test), 99)
    task = replace(
        task, data=replace(data, origin=Origin(("a",), ("p",), *codes, elsewhere, elsewhere))
    )
    scenario = Periods(rounds_per_period=3).on(task.data, seed=0)
    evaluator = Evaluator(task, scenario, Method(), Evaluate(), seed=0)
    found = evaluator(train_for(Method(), 3))
    assert "period_accuracy" not in found.records
    assert not found.measures.keys() & {"forgetting", "backward_transfer", "followed_pairs"}
    assert "last_forgetting" not in summarise([found.measures])


def test_an_old_value_is_not_the_last_one():
    history = [{"round": 1, "test_accuracy": 0.5, "test_loss": 1.0, "forgetting": 0.2}]
    history.append({"round": 2, "test_accuracy": 0.5, "test_loss": 1.0})
    assert "last_forgetting" not in summarise(history)


def test_a_cell_says_how_many_test_samples_it_rests_on(task, scenario):
    data = task.data
    table = PeriodAccuracy(data)
    visit = scenario.at(0).visits[0]
    assert table.visit(0, visit)
    assert not table.visit(0, visit)  # not a new one
    held = np.unique(data.labels[visit.indices])
    assert table.basis == "classes"
    assert table.tested((0, visit.key)) == np.isin(data.test.y.numpy(), held).sum() > 0

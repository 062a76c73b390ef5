"""Evaluation against a straightforward computation of the same thing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    Ditto,
    Linear,
    Method,
    Periods,
    Samples,
    Stateless,
)
from chronofed.clients.cache import StateCache
from chronofed.clients.state import ClientState
from chronofed.data.dataset import Origin
from chronofed.models.zoo import Custom
from chronofed.scenarios import Visit
from chronofed.training.drift import _drifts, _latest_visits
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.period_accuracy import AccuracyHistory, PeriodAccuracy
from chronofed.training.summary import recovery, summarise


@pytest.fixture(scope="module")
def snapshots(train_for):
    return {rounds: train_for(Method(), rounds) for rounds in (1, 3, 6)}


def by_hand(task, params, x, y):
    logits = functional.linear(x, params[:15].view(3, 5), params[15:])
    return float(functional.cross_entropy(logits, y)), float(
        (logits.argmax(1) == y).double().mean()
    )


@pytest.fixture
def evaluator(task, scenario):
    def evaluator(**settings) -> Evaluator:
        return Evaluator(task, scenario, Method(), Evaluate(**settings), seed=0)

    return evaluator


def test_test_set(task, evaluator, snapshots):
    measures = evaluator()(snapshots[3]).measures
    loss, accuracy = by_hand(task, snapshots[3].params, task.data.test.x, task.data.test.y)
    assert measures["round"] == 3
    assert measures["test_loss"] == pytest.approx(loss, rel=1e-5)
    assert measures["test_accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize("workers", [2, 3, 50])
def test_numbers_do_not_depend_on_workers(task, scenario, snapshots, workers, monkeypatch):
    monkeypatch.setattr("chronofed.models.supervised.EVALUATION_BATCH", 7)  # many batches
    alone, many = (
        Evaluator(task, scenario, Method(), Evaluate(), seed=0, workers=n)(snapshots[3]).measures
        for n in (1, workers)
    )
    assert alone == many


def test_all_training_data_seen_so_far(task, scenario, evaluator, snapshots):
    measures = evaluator(seen=10**6)(snapshots[3]).measures
    visits = [v.indices for t in range(3) for v in scenario.at(t).visits.values()]
    seen = torch.from_numpy(np.unique(np.concatenate(visits)))
    loss, accuracy = by_hand(
        task, snapshots[3].params, task.data.train.x[seen], task.data.train.y[seen]
    )
    assert measures["seen_samples"] == len(seen) < len(task.data.train)
    assert measures["seen_loss"] == pytest.approx(loss, rel=1e-5)
    assert measures["seen_accuracy"] == pytest.approx(accuracy)


def test_a_cap_is_said_and_kept(evaluator, snapshots):
    assert evaluator(seen=50)(snapshots[6]).measures["seen_samples"] == 50
    assert "seen_loss" not in evaluator(seen=0)(snapshots[6]).measures


def test_going_on_equals_the_straight_evaluation(evaluator, snapshots):
    """Records from before a stop are taken over: resuming changes nothing."""
    straight = evaluator(seen=100)
    lines = [straight(snapshots[r]) for r in (1, 3, 6)]
    resumed = evaluator(seen=100)
    resumed.absorb(line.records["period_accuracy"] for line in lines[:2])
    assert resumed(snapshots[6]) == lines[2]


def test_asked_for_an_earlier_round_it_begins_again(evaluator, snapshots):
    used = evaluator(seen=100)
    used(snapshots[6])
    assert used(snapshots[1]) == evaluator(seen=100)(snapshots[1])


def test_traffic(task, evaluator, snapshots):
    measures = evaluator()(snapshots[3]).measures
    assert measures["bytes_up"] == 3 * 4 * 18 * 4  # rounds, clients, parameters, bytes
    assert measures["bytes_down"] == measures["bytes_up"]


def test_accuracy_by_client_and_data_set_is_that_of_its_classes(
    task, scenario, evaluator, snapshots
):
    lines = evaluator()(snapshots[3]).records["period_accuracy"]["accuracy"]
    params, test, train = snapshots[3].params, task.data.test, task.data.train
    logits = functional.linear(test.x, params[:15].view(3, 5), params[15:])
    right = (logits.argmax(1) == test.y).double()
    recall = torch.stack([right[test.y == c].mean() for c in range(3)])
    visits = {(i, v.key): v for t in range(3) for i, v in scenario.at(t).visits.items()}
    assert {(int(i), int(k)) for i, k, _ in lines} == set(visits)
    for client, key, accuracy in lines:
        labels = train.y[torch.from_numpy(visits[client, key].indices)]
        want = float(recall[labels].mean())
        assert accuracy == pytest.approx(want, abs=1e-5)


def test_periods_can_be_switched_off(evaluator, snapshots):
    result = evaluator(periods="off")(snapshots[3])
    assert "period_accuracy" not in result.records
    assert "forgetting" not in result.measures


def test_table_rows_are_measured_where_they_belong():
    """Test samples that say whose and when they are count for that pair alone."""
    y = torch.tensor([0, 1, 0, 1])
    codes = [np.array(c) for c in ([0, 0, 1], [0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1])]
    origin = Origin(("a", "b"), ("p", "q"), *codes)
    samples = Samples(torch.zeros(3, 1), torch.tensor([0, 1, 1]))
    table = PeriodAccuracy(Dataset("t", samples, Samples(torch.zeros(4, 1), y), ("x", "y"), origin))
    table.visit(0, Visit(np.array([0]), 0))
    table.visit(0, Visit(np.array([1]), 1))
    table.visit(1, Visit(np.array([2]), 0))  # has no test rows
    table.visit(1, Visit(np.array([2]), 1))
    correct = np.array([True, False, True, False])
    assert table.accuracies(correct) == [[0, 0, 1.0], [0, 1, 0.0], [1, 1, 0.5]]
    assert table.client_accuracy(0, correct) == 0.5
    assert table.client_accuracy(2, correct) is None
    table.visit(2, Visit(np.array([0]), 0))  # has no test rows at all
    assert table.client_accuracy(2, correct) is None


def test_forgetting_is_measured_against_the_best_ever():
    history = AccuracyHistory()
    for round_, accuracy in enumerate([0.9, 0.5, 0.6], 1):
        history.add({"round": round_, "accuracy": [[0, 0, accuracy]]})
    assert history.measures()["forgetting"] == pytest.approx(0.3)


def test_forgetting_and_backward_transfer_by_hand():
    history = AccuracyHistory()
    assert history.measures() == {}
    history.add({"round": 1, "accuracy": [[0, 0, 0.5]]})
    assert history.measures() == {"forgetting": 0.0}
    history.add({"round": 2, "accuracy": [[0, 0, 0.9], [0, 1, 0.6]]})
    assert history.measures() == {"forgetting": 0.0, "backward_transfer": 0.4}
    history.add({"round": 3, "accuracy": [[0, 0, 0.7], [0, 1, 0.5], [1, 0, 0.2]]})
    # forgetting is the mean of 0.2, 0.1 and 0; transfer that of +0.2 and -0.1
    assert history.measures() == {"forgetting": 0.1, "backward_transfer": 0.05}


def test_personal_models_are_measured_beside_the_global_one(task, scenario, evaluator, snapshots):
    lost = torch.zeros(18)  # always answers class 0
    client_states = {i: ClientState({"personal": lost}) for i in range(4)}
    measures = evaluator()(replace(snapshots[6], client_states=client_states)).measures
    visits = [(i, v) for t in range(6) for i, v in scenario.at(t).visits.items()]
    first = {(i, v.key): v for i, v in visits}
    share = {i: [] for i in range(4)}
    for (i, _), visit in first.items():
        share[i].append((task.data.labels[visit.indices] == 0).mean())
    want = np.mean([np.mean(s) for s in share.values()])
    assert measures["personal_accuracy"] == pytest.approx(want)
    assert measures["client_accuracy"] > 0.5


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def test_personal_models_are_scored_with_their_own_statistics(data, scenario, train_for):
    """The clients' statistics are moved far from the server's, so that answers differ."""
    task = Classification(data, Custom(f"{__name__}:normed"))
    method = Method(Ditto())
    snapshot = train_for(method, 4, task=task)
    moved = {
        i: replace(
            client_state,
            backbone_state={
                **client_state.backbone_state,
                "buffers": client_state.backbone_state["buffers"] * (1 + i),
            },
        )
        for i, client_state in snapshot.client_states.items()
    }
    measures = Evaluator(task, scenario, method, Evaluate(), seed=0)(
        replace(snapshot, client_states=moved)
    ).measures

    def accuracy(buffers_of) -> float:
        table = PeriodAccuracy(data)
        for t in range(4):
            for i, visit in scenario.at(t).visits.items():
                table.visit(i, visit)
        objective, found = task.objective(), []
        for i, client_state in sorted(moved.items()):
            state = client_state.backbone_state
            score = task.score(objective, state["personal"], buffers_of(state), data.test)
            found.append(table.client_accuracy(i, score.correct))
        return float(np.mean(found))

    assert measures["personal_accuracy"] == pytest.approx(accuracy(lambda s: s["buffers"]))
    assert measures["personal_accuracy"] != pytest.approx(
        accuracy(lambda _: snapshot.buffers), abs=1e-3
    )
    zero = torch.zeros_like(snapshot.buffers)
    assert measures["personal_accuracy"] != pytest.approx(accuracy(lambda _: zero), abs=1e-3)


@pytest.mark.parametrize("measured", [True, False])
def test_a_client_without_test_samples_is_left_out_of_the_mean(measured, task, snapshots):
    """Not a number is not an accuracy of anybody else."""
    rows = len(task.data.test)
    whose = np.arange(rows) % 3 if measured else np.full(rows, 9)  # of 4 clients
    zeros = np.zeros(len(task.data.train), dtype=np.int64)
    holds = np.arange(len(zeros)) % 4
    origin = Origin(tuple("abcd"), ("p",), holds, zeros, whose, np.zeros(rows, dtype=np.int64))
    table = Classification(replace(task.data, origin=origin), Linear())
    scenario = Periods(rounds_per_period=3).on(table.data, seed=0)
    lost = torch.zeros(18)  # always answers class 0
    states = {i: ClientState({"personal": lost}) for i in range(4)}
    evaluator = Evaluator(table, scenario, Method(Ditto()), Evaluate(), seed=0)
    measures = evaluator(replace(snapshots[3], client_states=states)).measures
    assert ("personal_accuracy" in measures, "client_accuracy" in measures) == (measured,) * 2
    if measured:
        labels = table.data.test.y.numpy()
        want = np.mean([(labels[whose == i] == 0).mean() for i in range(3)])
        assert measures["personal_accuracy"] == pytest.approx(want)


def test_drifts_are_measured_on_the_latest_data_sets_and_no_more(scenario):
    found = _latest_visits(scenario, 8, 2)
    for client in range(4):
        keys = [scenario.at(t).visits[client].key for t in reversed(range(8))]
        latest = list(dict.fromkeys(keys))[:2]
        assert {key for i, key in found if i == client} == set(latest)


def test_drifts_and_information_loss_against_their_definitions(task, scenario, train_for):
    method = Method(memory=CoreSet(5))
    snapshot = train_for(method, 6)
    evaluator = Evaluator(task, scenario, method, Evaluate(past=3), seed=0)
    measures = evaluator(snapshot).measures

    def gradient(x, y):
        w = snapshot.params.clone().requires_grad_()
        functional.cross_entropy(functional.linear(x, w[:15].view(3, 5), w[15:]), y).backward()
        return w.grad.double()

    def truth(round_, client):
        samples = task.samples(scenario.at(round_).visits[client].indices)
        return gradient(samples.x, samples.y)

    lost = []
    for client_state in snapshot.client_states.values():
        for kept in sorted(client_state.items, key=lambda k: -k.round)[:3]:
            approximation = gradient(kept.record["x"], kept.record["y"])
            lost.append(float((truth(kept.round, kept.client) - approximation).norm()))
    assert measures["information_loss"] == pytest.approx(np.mean(lost), rel=1e-4)
    assert measures["time_drift_sq"] > 0
    assert measures["client_drift_sq"] >= 0


@pytest.mark.parametrize("method", [Method(memory=CoreSet(5)), Method(Ditto())])
def test_client_states_on_disk_measure_the_same(method, task, scenario, train_for, tmp_path):
    plain = train_for(method, 6)
    store = StateCache(0, tmp_path)
    store.update(plain.client_states)
    spilled = replace(plain, client_states=store.snapshot())
    settings = Evaluate(past=3)
    one, other = (Evaluator(task, scenario, method, settings, seed=0)(s) for s in (plain, spilled))
    assert one == other
    assert {"information_loss", "personal_accuracy"} & set(one.measures)


@pytest.mark.parametrize(("periods", "followed"), [("auto", 0), ("off", 0), ("on", 18)])
def test_clients_that_never_return_are_followed_only_if_asked_for(
    periods, followed, task, data, snapshots
):
    stateless = Stateless(clients=3, subsets=4, client_alpha=1.0).on(data, seed=0)
    evaluator = Evaluator(task, stateless, Method(), Evaluate(periods=periods), seed=0)
    result = evaluator(snapshots[6])
    assert (
        len(evaluator._period_accuracy)
        == len(result.records.get("period_accuracy", {}).get("accuracy", ()))
        == followed
    )


def test_drifts_of_gradients_that_were_made_with_known_ones():
    generator = torch.Generator().manual_seed(0)

    def noise(square):
        return torch.randn(200, generator=generator) * (square / 200) ** 0.5

    gradients = {}
    for client in range(40):
        fixed = noise(3.0)
        gradients |= {(client, key): 5 + fixed + noise(2.0) for key in range(4)}
    found = _drifts(gradients)
    assert found["client_drift_sq"] == pytest.approx(3.0, rel=0.15)
    assert found["time_drift_sq"] == pytest.approx(2.0, rel=0.1)
    assert _drifts({(0, 0): torch.ones(2)}) == {}


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
    assert (summary["last_test_loss"], summary["last_seen_loss"]) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("curve", "want"),
    [
        ([0.1, 0.2, 0.3], {"falls": 0}),
        ([0.5, 0.49, 0.5], {"falls": 0}),  # too small to count
        ([0.5, 0.3, 0.4, 0.5], {"falls": 1, "recovery_rounds": 2}),
        ([0.5, 0.3, 0.5, 0.2, 0.1], {"falls": 2, "recovery_rounds": 1}),  # the second is not over
    ],
)
def test_recovery(curve, want):
    assert recovery(list(enumerate(curve))) == want

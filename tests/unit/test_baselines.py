"""Baselines against plain loops, and the words about them."""

import itertools
import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from chronofed import (
    Classification,
    Dataset,
    Deletion,
    Evaluate,
    Experiment,
    Linear,
    Periods,
    Samples,
    Table,
    Train,
)
from chronofed.data.dataset import Origin
from chronofed.reports.groups import groups
from chronofed.reports.references import references
from chronofed.reports.runs import RunView
from chronofed.reports.terminal.comparison import comparison
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.runs.comparison import choose_baselines
from chronofed.training import baselines
from chronofed.training.baselines import (
    SIMPLE,
    TRAINED,
    BaselineScores,
    Surroundings,
    samples_trained,
    score_baselines,
)
from chronofed.training.next_period import next_period
from chronofed.training.references import compare, headline
from tests.helpers.tables import write_table

CLIENT = np.array([0, 1, 0, 1, 0, 0, 2, 1, 2, 0])
PERIOD = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
TARGET = np.array([1, 0, 1, 2, 1, 0, 2, 2, 2, 0])
FULL = Train(lr=0.1, batch_size="full", epochs=2)


def around(train=FULL, deletions=(), numbers=False, **scenario) -> Surroundings:
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(3))
    y = torch.from_numpy(TARGET)
    none = np.zeros(0, dtype=np.int64)
    origin = Origin(("a", "b", "c"), ("p", "q", "r"), CLIENT, PERIOD, none, none)
    data = Dataset("ten", Samples(x, y), Samples(x[:0], y[:0]), ("0", "1", "2"), origin)
    stream = Periods(**scenario).on(data, 0)
    task = Classification(data, Linear())
    found = Surroundings(task, stream, next_period(data, stream, deletions=deletions), train, 7)
    if numbers:
        object.__setattr__(task, "data", replace(data, classes=()))
    return found


def scores(world: Surroundings, *names, rounds=(1, 2)) -> list[tuple]:
    return [found.scores for found in score_baselines(world, names, rounds).values()]


def test_majority_and_persistence_by_hand():
    # Period 0 has 1, 0, 1, 2: the majority is 1. Periods 0 and 1 have 0 twice, 1 thrice, 2 twice.
    # The last target of client 0 is 1, then 0; of client 1, 2; of client 2, at first none, then 2.
    majority, persistence = scores(around(), *SIMPLE)
    assert majority == (1 / 3, 0.0)
    # Period 1: 1, 1 and the majority 1 against 1, 0, 2; period 2: 2, 2, 0 against 2, 2, 0.
    assert persistence == (1 / 3, 1.0)


def test_of_several_most_frequent_classes_the_first_counts():
    world = around(deletions=(Deletion(0, rows=(0,)),))
    # One each of 0, 1, 2 is left: the first is right in one of three rows.
    assert scores(world, "majority", rounds=(1,)) == [(1 / 3,)]
    assert baselines.Majority(world, [np.array([1, 2, 3])]).value == 0


def test_numbers_have_means_and_roots_of_mean_squares():
    majority, persistence = scores(around(numbers=True), *SIMPLE)
    # Period 0 has mean 1; the errors on 1, 0, 2 are 0, 1, 1. Periods 0 and 1 have mean 1; 2, 2, 0 come.
    assert majority == (pytest.approx(np.sqrt(2 / 3)), pytest.approx(1.0))
    assert persistence == (pytest.approx(np.sqrt(2 / 3)), 0.0)


def descended(x, y, params, steps):
    """Gradient descent on a linear model with all rows in every step."""
    w = params.double().clone().requires_grad_()
    for _ in range(steps):
        logits = x.double() @ w[:6].view(3, 2).T + w[6:]
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y), w)
        w = (w - 0.1 * gradient).detach().requires_grad_()
    return w.detach()


def accuracy(world, w, rows):
    x, y = world.task.data.train.x[rows].double(), TARGET[rows]
    return float(((x @ w[:6].view(3, 2).T + w[6:]).argmax(1).numpy() == y).mean())


def test_trained_baselines_by_plain_gradient_descent():
    world = around(rounds_per_period=2)
    x, y = world.task.data.train.x, world.task.data.train.y
    first, _ = world.task.initial(7)
    last, local, pooled = scores(world, *TRAINED, rounds=(2, 4))
    parts = [np.flatnonzero(k == PERIOD) for k in range(3)]
    # Two epochs of one step each, in two rounds, of the last period alone.
    want = [
        accuracy(world, descended(x[p], y[p], first, 4), q) for p, q in itertools.pairwise(parts)
    ]
    assert last == pytest.approx(want)
    models = {}
    for k in range(2):
        for client in range(3):
            rows = np.flatnonzero((k == PERIOD) & (client == CLIENT))
            if len(rows):
                start = models.get(client, first)
                models[client] = descended(x[rows], y[rows], start, 4)
        right = [
            accuracy(world, models.get(int(CLIENT[row]), first.double()), [row])
            for row in parts[k + 1]
        ]
        assert local[k] == pytest.approx(np.mean(right))
    # In the first period all rows so far are those of the period.
    assert pooled[0] == pytest.approx(want[0])


def test_pooled_trains_on_all_rows_so_far(monkeypatch):
    world, seen = around(window=2), []
    monkeypatch.setattr(
        Surroundings,
        "fit",
        lambda self, model, rows, *place: seen.append(rows.tolist()) or model,
    )
    scores(world, "pooled", rounds=(1, 2))
    # All four; then as many as clients hold with a window of two: seven of seven.
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]]
    seen.clear()
    scores(around(), "pooled", rounds=(1, 2))
    assert [len(rows) for rows in seen] == [4, 3]
    assert set(seen[1]) <= set(range(7))


def test_baselines_follow_the_periods_that_are_not_evaluated():
    world = around()
    both = scores(world, *SIMPLE, *TRAINED)
    assert scores(world, *SIMPLE, *TRAINED, rounds=(2,)) == [found[1:] for found in both]


def test_a_model_that_diverges_has_no_score():
    broken = around(Train(lr=1e30, weight_decay=1e30, batch_size="full"))
    assert scores(broken, "last_period", "local", "pooled") == [(None, None)] * 3


def test_work_is_estimated_by_rows_or_by_steps():
    assert samples_trained(around(rounds_per_period=3), 9) == 10 * 3 * 2
    assert samples_trained(around(Train(steps=5, batch_size=4)), 3) == 3 * 3 * 5 * 4


def history(*values):
    return [{"round": k + 1, "test_accuracy": value} for k, value in enumerate(values)]


def found(**values):
    return {k: BaselineScores(tuple(range(1, len(v) + 1)), tuple(v)) for k, v in values.items()}


def test_words_name_the_side_of_every_baseline():
    compared = compare(
        history(0.6, 0.8),
        found(majority=(0.5, 0.5), persistence=(0.6, 0.8), local=(0.1, 0.2), pooled=(0.9, 0.9)),
        "test_accuracy",
        "month",
    )
    assert compared["words"] == (
        "next-month accuracy 70.0 %: above majority class (50.0) and local models (15.0), "
        "level with persistence (70.0), below all data pooled (90.0); "
        "means over 2 periods, too few for a test"
    )
    assert compared["references"]["majority"]["difference"] == pytest.approx(0.2)
    assert compared["references"]["majority"]["p"] is None


def test_words_name_what_is_beyond_chance():
    own = (0.7, 0.71, 0.69, 0.7, 0.72, 0.68)
    compared = compare(
        history(*own),
        found(majority=(0.5,) * 6, persistence=(0.9, 0.5, 0.9, 0.5, 0.9, 0.4)),
        "test_accuracy",
        "50 rows",
    )
    words = compared["words"]
    assert words.startswith("next-period accuracy 70.0 %: above majority class (50.0) and persist")
    assert "means over 6 periods; different beyond chance from majority class (Student's" in words
    # Holm: the smaller p-value is doubled.
    small = compared["references"]["majority"]["p"]
    assert small == pytest.approx(2 * float(f"{small / 2:.12g}"))
    assert compared["references"]["persistence"]["p"] > 0.5


def test_an_error_is_better_if_lower():
    lines = [{"round": 1, "rmse": 2.0}]
    words = compare(lines, found(majority=(3.0,)), headline(()))["words"]
    assert words == (
        "next-period root-mean-square error 2.000 (lower is better): below mean so far (3.000); "
        "means over 1 period, too few for a test"
    )
    assert headline(("no", "yes")) == "test_accuracy"


def test_a_baseline_without_scores_is_left_out():
    compared = compare(history(0.5), found(local=(None,), majority=(0.4,)), "test_accuracy")
    assert list(compared["references"]) == ["majority"]
    assert compare(history(0.5), found(local=(None,)), "test_accuracy")["words"] == ""


@pytest.fixture
def experiment(tmp_path):
    table = Table(path=str(write_table(tmp_path)), period="10", fit_periods=2)
    return Experiment(
        data=table,
        model=Linear(),
        scenario=Periods(),
        train=Train(steps=2, batch_size=8),
        evaluate=Evaluate(baselines="simple"),
        engine="serial",
    )


def test_a_run_that_was_killed_computes_its_baselines_again(experiment, tmp_path):
    path = tmp_path / "run"
    first = runner.run(experiment, path)
    content = (path / "baselines.json").read_bytes()
    (path / "summary.json").unlink()
    (path / "baselines.json").write_bytes(b"{")
    again = runner.run(experiment, path)
    assert again["baselines"] == first["baselines"]
    assert (path / "baselines.json").read_bytes() == content
    assert {"seconds", "seconds_baselines"} <= set(first)
    assert first["rounds"] == 6
    table = json.loads(content)
    assert table["rounds"] == [1, 2, 3, 4, 5]
    assert table["periods"][0] == "[10, 20)"
    assert table["rows"] == [40] * 5
    assert set(table["scores"]) == {"majority", "persistence"}


def test_off_is_off(experiment, tmp_path):
    settings = msgspec.structs.replace(experiment, evaluate=Evaluate(baselines="off"))
    assert "baselines" not in runner.run(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "baselines.json").exists()


@pytest.mark.parametrize(
    ("changes", "names", "reason"),
    [
        ({}, (*SIMPLE, *TRAINED), ""),
        ({"train": Train(epochs=1e6)}, SIMPLE, "each would pass about 240,000,000 samples, more"),
        ({"evaluate": Evaluate(baselines="simple")}, SIMPLE, ""),
        (
            {"train": Train(epochs=1e6), "evaluate": Evaluate(baselines="all")},
            (*SIMPLE, *TRAINED),
            "",
        ),
    ],
)
def test_auto_trains_only_what_is_cheap(experiment, changes, names, reason):
    auto = msgspec.structs.replace(experiment, evaluate=Evaluate())
    built = build(msgspec.structs.replace(auto, **changes))
    train = built.experiment.train
    world = Surroundings(built.task, built.scenario, built.upcoming, train, 0)
    chosen, why = choose_baselines(built, world)
    assert chosen == names
    assert reason in why


def test_a_table_of_runs_has_the_baselines_that_they_share(experiment, tmp_path):
    runner.run(experiment, tmp_path / "one")
    other = msgspec.structs.replace(experiment, train=Train(steps=3, batch_size=8))
    runner.run(other, tmp_path / "two")
    views = [RunView.read(tmp_path / name) for name in ("one", "two")]
    rows = groups(views)
    shown = references(rows)
    assert [one.title for one in shown] == ["majority class", "persistence"]
    cells = list(comparison(rows, width=300).columns[0].cells)
    assert [str(cell) for cell in cells[-2:]] == ["majority class", "persistence"]
    # A run without baselines, or with others, cannot be read beside them.
    off = msgspec.structs.replace(experiment, evaluate=Evaluate(baselines="off"))
    runner.run(off, tmp_path / "three")
    assert references(groups([*views, RunView.read(tmp_path / "three")])) == []
    assert RunDirectory(tmp_path / "three").baselines() == {}


def test_the_title_says_next_period(experiment, tmp_path):
    from chronofed.reports.groups import measures_of

    runner.run(experiment, tmp_path / "one")
    held = msgspec.structs.replace(experiment, evaluate=Evaluate(protocol="holdout"))
    runner.run(held, tmp_path / "two")
    views = [RunView.read(tmp_path / name) for name in ("one", "two")]
    titles = [measures_of(groups(part))[0].title for part in (views[:1], views[1:], views)]
    plain = "Accuracy on the test set"
    assert titles == ["Accuracy on the next period", plain, plain]

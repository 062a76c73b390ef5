"""Numbers as targets, from a table to the measures: decisions, scales and errors by hand."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from chronofed import (
    Dataset,
    Ditto,
    Evaluate,
    Linear,
    Measure,
    Method,
    Quantile,
    Regression,
    Samples,
    Stateless,
    Subsets,
    Train,
    Window,
    run,
)
from chronofed.clients.messages import Order
from chronofed.clients.order_check import OrderCheck, OrderLimits
from chronofed.clients.store.codec import count_samples
from chronofed.core.errors import DataError, IncompatibleError, SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.data.client_source import TableFile
from chronofed.data.client_source.rows import SourceRows
from chronofed.data.dataset import Origin
from chronofed.data.preparation import Preparation, Target
from chronofed.data.table import Table
from chronofed.engines import SerialEngine
from chronofed.flower.codec import OrderWriter, read_order
from chronofed.flower.messages import read_request
from chronofed.methods.memories.selection import balanced, group_codes
from chronofed.methods.surrogate import Pool, Surrogate
from chronofed.models.supervised import Score
from chronofed.reports.spread import Spread
from chronofed.runs import runner
from chronofed.runs.load_spec import load as load_spec
from chronofed.scenarios.base import Visit
from chronofed.studies.sweep import Scored, find_measure
from chronofed.training.evaluation import Evaluator
from chronofed.training.measures import columns, of_tasks, task_of
from chronofed.training.period_accuracy import AccuracyHistory, PeriodAccuracy
from chronofed.training.scenario_summary import describe
from tests.helpers.world import slopes

# --- tables


@pytest.fixture
def load(tmp_path):
    """Write a table of two periods with these targets, and load it; all rows train."""

    def load(first, later=(), **settings):
        cells = [*((1, y) for y in first), *((2, y) for y in later)]
        lines = [f"c{k % 2},{period},{y},{k % 7}" for k, (period, y) in enumerate(cells)]
        (tmp_path / "t.csv").write_text("\n".join(["client,time,y,f", *lines]) + "\n")
        settings = {"period": "1", "test": 0.0, "fit_periods": 1} | settings
        return Table("t.csv", **settings).load(tmp_path, 0)

    return load


@pytest.mark.parametrize(
    ("first", "regression"),
    [
        (["yes", "no"], False),
        ([0, 1, 2], False),
        (range(20), False),
        ([0.5, 1, 2], True),
        (["1.0", "2.0"], False),
        ([1e-9, 1], True),
    ],
)
def test_the_first_periods_decide(load, first, regression):
    assert (load(first).classes == ()) == regression


def test_many_whole_numbers_are_asked_about(load):
    with pytest.raises(DataError, match=r"21 different whole numbers .* set data.task"):
        load(range(21))
    assert load(range(21), task="regression").classes == ()
    assert len(load(range(21), task="classification").classes) == 21
    assert len(load(range(21), classes=tuple(map(str, range(21)))).classes) == 21


def test_later_rows_decide_nothing(load):
    """A later fraction is an error of its row, and later numbers do not change the scale."""
    with pytest.raises(
        DataError, match=r"row 4, column 'y': 0.5 is not a class.*data\.task = 'regression'"
    ):
        load([0, 1], [0.5])
    near, far = load([1.5, 2.5]), load([1.5, 2.5], [1000.0])
    assert near.preparation.target == far.preparation.target
    assert torch.equal(near.train.y, far.train.y[:2])


def test_numbers_are_scaled_by_mean_and_deviation(load):
    """1, 2 and 6: the mean is 3 and the deviation the root of 14/3; rows are in the order of clients."""
    data = load([1, 2, 6], [10], task="regression")
    target = data.preparation.target
    assert (target.name, target.mean) == ("y", 3.0)
    assert target.deviation == pytest.approx((14 / 3) ** 0.5, rel=1e-15)
    assert data.train.y.dtype == torch.float32
    want = (np.array([1, 6, 2, 10]) - 3) / (14 / 3) ** 0.5
    np.testing.assert_allclose(data.train.y.numpy(), want, rtol=1e-6)
    assert Preparation.from_json(data.preparation.to_json()) == data.preparation
    assert data.scaling == target


def test_held_out_rows_do_not_scale(load):
    data = load(np.arange(40) + 0.5, test=0.5)
    kept = data.train.y.double() * data.scaling.deviation + data.scaling.mean
    assert kept.mean().item() == pytest.approx(data.scaling.mean, abs=1e-4)
    assert kept.std(correction=0).item() == pytest.approx(data.scaling.deviation, rel=1e-4)


def test_equal_numbers_are_not_divided_by_zero(load):
    data = load([2.5, 2.5, 2.5])
    assert data.scaling.deviation == 1.0
    assert data.train.y.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (["a", "b"], "target 'y' holds text, and a regression needs numbers"),
        (["2020-01-01", "2020-01-02"], "target 'y' holds dates, and a regression needs numbers"),
        ([1.5, "inf"], "inf is "),
    ],
)
def test_what_is_no_number_is_refused(load, first, message):
    with pytest.raises(DataError, match=message):
        load(first, task="regression")


def test_a_regression_has_no_classes():
    with pytest.raises(ValueError, match=r"Table\.classes: a regression predicts numbers"):
        Table("t.csv", classes=("a", "b"), task="regression")


# --- bins instead of classes


def test_bins_have_equally_many_samples():
    data = slopes()
    assert np.bincount(data.labels).tolist() == [120] * 10
    assert len(data.groups) == 10
    y = torch.tensor([1.0, 1.0, 1.0, 5.0])
    few = Dataset("d", Samples(y[:, None], y), Samples(y[:, None], y), ())
    assert few.labels.tolist() == [0, 0, 0, 1]
    assert few.groups == ("below 5", "from 5")
    same = replace(few, train=few.train[torch.arange(3)])
    assert (same.labels.tolist(), same.groups) == ([0, 0, 0], ("all",))


def test_bins_are_named_in_the_targets_own_units():
    y = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    target = Preparation((), (), target=Target("t", 100.0, 10.0))
    data = Dataset("d", Samples(y[:, None], y), Samples(y[:, None], y), (), preparation=target)
    assert data.groups == ("below 110", "from 110")


@pytest.mark.parametrize(
    "settings", [Subsets(clients=3, subsets=4), Stateless(clients=3, subsets=4), Window(clients=3)]
)
def test_scenarios_split_numbers_by_bins(settings):
    data = slopes()
    scenario = settings.on(data, seed=0)
    visits = scenario.at(0).visits
    assert len(visits) == 3
    about = describe(scenario, data, 5)
    assert about["classes"] == list(data.groups)
    json.dumps(about)


def test_selection_balances_bins():
    y = torch.cat([torch.linspace(0, 1, 95), torch.linspace(50, 60, 5)])
    codes = group_codes(y)
    assert codes.bincount().tolist() == [10] * 10
    pick = balanced(codes, 20, torch.Generator().manual_seed(0))
    assert codes[pick].bincount().tolist() == [2] * 10
    assert group_codes(torch.tensor([3, 1])).tolist() == [3, 1]
    assert group_codes(torch.tensor([3.0])).tolist() == [0]


# --- scores and measures


def world(y, output=0.0, deviation=1.0, loss=None):
    """A linear model that always returns ``output``."""
    y = torch.tensor(y)
    samples = Samples(torch.zeros(len(y), 1), y)
    preparation = Preparation((), (), target=Target("t", 5.0, deviation))
    data = Dataset("d", samples, samples, (), preparation=preparation)
    task = Regression(data, Linear(), loss=loss)
    return task, torch.tensor([0.0, output]), torch.zeros(0)


def test_a_score_has_errors_in_the_targets_units():
    task, params, buffers = world([1.0, 3.0], output=2.0, deviation=10.0)
    score = task.score(task.objective(), params, buffers, task.data.test)
    assert score.errors.tolist() == [10.0, -10.0]
    assert score.by_sample.tolist() == [10.0, 10.0]
    assert score.loss == 0.5
    with pytest.raises(IncompatibleError, match="a regression has no accuracy"):
        _ = score.accuracy
    classes = Score(0.1, np.array([True, False, True, True]), torch.zeros(4, 2))
    assert (classes.accuracy, classes.by_sample.tolist()) == (0.75, [1, 0, 1, 1])
    with pytest.raises(IncompatibleError, match="a classification has no errors"):
        _ = classes.errors


def measured(task, params, buffers, **settings):
    scenario = Subsets(clients=1, subsets=1).on(task.data, seed=0)
    first = next(run(Method(), scenario, task, rounds=1, train=Train(steps=1)))
    snapshot = replace(first, server={"params": params}, buffers=buffers)
    return Evaluator(task, scenario, Method(), Evaluate(**settings), seed=0)(snapshot)


def test_measures_by_hand():
    """Targets 1, 2, 3, 6 in units of 10, a model that says 2: errors 10, 0, -10, -40."""
    task, *model = world([1.0, 2.0, 3.0, 6.0], output=2.0, deviation=10.0)
    found = measured(task, *model).measures
    assert found["mae"] == pytest.approx(15.0)
    assert found["rmse"] == pytest.approx((1800 / 4) ** 0.5)
    # The mean of the targets is 30; squared deviations 400, 100, 0, 900.
    assert found["r2"] == pytest.approx(1 - 1800 / 1400)
    assert found["pinball"] == pytest.approx(7.5)
    assert found["seen_rmse"] == pytest.approx(found["rmse"])
    assert found["test_loss"] == pytest.approx(18 / 8)
    assert "test_accuracy" not in found
    task, *model = world([1.0, 2.0, 3.0, 6.0], 2.0, 10.0, loss=Quantile(0.9))
    assert measured(task, *model).measures["pinball"] == pytest.approx((1 + 9 + 36) / 4)
    task, *model = world([2.0, 2.0], 1.0)
    assert "r2" not in measured(task, *model).measures


def test_measures_are_of_their_task():
    assert task_of({"rmse": 1.0}) == "regression"
    assert task_of({}) == "classification"
    keys = [column.key for column in columns(of_tasks(["regression"]))]
    assert keys[:5] == ["best5_rmse", "last_rmse", "anytime_rmse", "last_mae", "last_r2"]
    assert "last_forgetting_mae" in keys
    assert "best5" not in keys


def test_numbers_in_units_of_the_target_have_significant_digits():
    assert Spread.of([1234.5, 1240.5]).text(-4) == "1238 ± 4"
    assert Spread.of([0.00012345]).text(-4) == "0.0001234"
    assert Spread.of([0.0]).text(-4) == "0.000"


def test_a_sweep_looks_for_the_least_error():
    assert find_measure("anytime", {"anytime_rmse": 1.0}) == Scored("anytime_rmse", -1.0)
    assert find_measure("anytime", {"anytime": 0.5}) == Scored("anytime", 1.0)
    assert find_measure("last_mae", {"last_mae": 0.5}).sign == -1.0
    assert find_measure("last_r2", {"last_r2": 0.5}).sign == 1.0
    own = Measure(key="cost", title="Cost", better="lower")
    assert find_measure("last_cost", {"last_cost": 0.5}, [own]).sign == -1.0
    with pytest.raises(SpecError, match="--measure last: not measured here; use one of rounds"):
        find_measure("last", {"rounds": 3})


def test_the_loss_of_a_guess():
    """Output 0 for targets 3 and 4: 25/4; where all targets are 0, an error of one deviation: 1/2."""
    assert world([3.0, 4.0])[0].guess_loss() == pytest.approx(25 / 4)
    assert world([0.0, 0.0])[0].guess_loss() == pytest.approx(0.5)


# --- by client and period


def test_errors_by_period():
    """Client 0 has test rows 0 and 1 in its first period; nobody has row 2."""
    y = torch.tensor([0.0, 1.0, 2.0])
    codes = np.array([0, 0, 1])
    origin = Origin(("a", "b"), ("p", "q"), codes, codes, codes, np.array([0, 0, 0]))
    data = Dataset("d", Samples(y[:, None], y), Samples(y[:, None], y), (), origin)
    periods = PeriodAccuracy(data)
    assert periods.visit(0, Visit(np.array([0, 1]), 0))
    assert not periods.visit(0, Visit(np.array([2]), 1))
    assert periods.accuracies(np.array([1.0, 4.0, 9.0])) == [[0, 0, 2.5]]
    assert periods.tested((0, 0)) == 2


def test_errors_by_bin_where_rows_have_no_client():
    """Two bins: a data set with three of four samples in the first."""
    y = torch.tensor([0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0])
    data = Dataset("d", Samples(y[:, None], y), Samples(y[:, None], y), ())
    periods = PeriodAccuracy(data)
    periods.visit(0, Visit(np.array([0, 1, 2, 4]), 0))
    errors = np.array([1.0] * 4 + [5.0] * 4)
    assert periods.accuracies(errors) == [[0, 0, 0.75 * 1 + 0.25 * 5]]


def test_forgetting_and_backward_transfer_of_errors():
    """Pair (0, 0): 3, 1, 2. Forgetting 2 - 1, backward transfer 3 - 2. Pair (1, 0) is new in the last line."""
    history = AccuracyHistory(lower=True)
    assert (history.entry, history.record) == ("error", "period_error")
    history.add({"round": 1, "error": [[0, 0, 3.0]]})
    history.add({"round": 2, "error": [[0, 0, 1.0]]})
    history.add({"round": 3, "error": [[0, 0, 2.0], [1, 0, 7.0]]})
    assert history.measures() == {"forgetting_mae": 0.5, "backward_transfer_mae": 1.0}


def test_personal_models_have_errors():
    data = slopes()
    task = Regression(data, Linear())
    scenario = Subsets(clients=2, subsets=2).on(data, seed=0)
    evaluator = Evaluator(task, scenario, Method(Ditto()), Evaluate(), seed=0)
    snapshots = run(
        Method(Ditto()), scenario, task, train=Train(steps=2), engine=SerialEngine(task)
    )
    for snapshot in islice(snapshots, 2):
        found = evaluator(snapshot)
    assert {"personal_mae", "client_mae", "forgetting_mae"} <= set(found.measures)
    assert "period_accuracy" not in found.records
    assert found.records["period_error"]["round"] == 2


# --- clients elsewhere


def test_a_source_of_numbers(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("time,f,y\n2020-01-01,1,10\n2020-01-02,2,14\n2020-01-03,3,\n")
    source = TableFile(path=str(path), mean=10.0, deviation=2.0)
    data = source.read(0)
    assert data.samples.y.dtype == torch.float32
    assert data.samples.y.tolist() == [0.0, 2.0]
    rows = SourceRows(source).load(None, 0)
    assert (rows.classes, rows.scaling) == ((), Target("y", 10.0, 2.0))
    path.write_text("time,f,y\n2020-01-01,1,ten\n")
    with pytest.raises(DataError, match="y"):
        source.read(0)
    # Other numbers are another data set.
    path.write_text("time,f,y\n2020-01-01,1,10\n2020-01-02,2,15\n")
    assert source.read(0).key != data.key


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected at least two different ones"),
        ({"mean": 1.0}, "for a number give its mean and deviation"),
        ({"mean": 0.0, "deviation": 1.0, "classes": ("a", "b")}, "the target has classes"),
        ({"mean": 0.0, "deviation": 0.0}, "deviation"),
    ],
)
def test_a_source_says_what_its_target_is(settings, message):
    with pytest.raises(ValueError, match=message):
        TableFile(path="x.csv", **settings)


def ordered(y):
    task = Regression(slopes(), Linear())
    params, buffers = task.initial(0)
    replay = Pool(Samples(torch.zeros(len(y), 5), y), torch.ones(len(y), dtype=torch.float64))
    past = Surrogate(0.5, replay)
    order = Order(0, 1, {"params": params}, buffers, Method().weights, past, Train(steps=1), 0)
    samples = task.samples(np.arange(4))
    return OrderCheck(Method(), Train(), task.objective(), samples, OrderLimits()), order


def test_an_order_carries_numbers():
    check, order = ordered(torch.tensor([0.25, -3.5]))
    _, message = OrderWriter("0" * 16, "print").write(order, "train")
    again = read_order(read_request(message), message.body, Method())
    assert again.past.replay.samples.y.tolist() == [0.25, -3.5]
    assert check.problem(again, "train", None) is None


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        (torch.tensor([float("nan"), 0.0]), "not finite"),
        (torch.tensor([0, 1]), "expected float32 of shape"),
        (torch.zeros(2).double(), "expected float32 of shape"),
    ],
)
def test_numbers_in_an_order_are_checked(y, reason):
    check, order = ordered(y)
    assert reason in check.problem(order, "train", None)


def test_numbers_have_no_classes_in_a_store():
    assert count_samples({"y": torch.tensor([0.5, 1.5])}) == (2, 0)
    assert count_samples({"y": torch.tensor([1, 1, 2])}) == (3, 2)


# --- a run as a user sees it


@pytest.fixture
def table(workdir):
    rng = numpy_generator(0, "test table")
    lines = ["client,time,a,b,price"]
    for month in range(1, 5):
        for k in range(40):
            a, b = rng.normal(size=2)
            lines.append(
                f"c{k % 3},2020-{month:02}-{k % 28 + 1:02},{a},{b},{300 + 50 * a - 20 * b}"
            )
    (workdir / "t.csv").write_text("\n".join(lines))
    (workdir / "spec.toml").write_text(
        'name = "prices"\n[evaluate]\nprotocol = "holdout"\n'
        '[data]\nkind = "table"\npath = "t.csv"\ntarget = "price"\n'
        '[model]\nkind = "linear"\n[scenario]\nkind = "periods"\nrounds_per_period = 3\n'
        "[method.memory]\nkind = 'core-set'\nsize = 10\n[train]\nlr = 0.2\nepochs = 3\n"
    )
    return workdir


def headings(out: str) -> list[str]:
    """Return the headings of a printed table, whose words may stand below each other."""
    head = [line.strip("┃").split("┃") for line in out.splitlines() if line.startswith("┃")]
    return [" ".join(words) for words in zip(*head, strict=True)]


def test_the_commands_show_a_regression(cli, table):
    code, out, err = cli("run", "spec.toml", "-o", "r", "-q")
    assert code == 0, err
    heads = [column.split() for column in headings(out)]
    assert ["last", "rmse"] in heads
    assert ["last", "%"] not in heads
    summary = json.loads((table / "r/summary.json").read_text())
    # The target is linear without noise; its deviation is about 54.
    assert summary["last_rmse"] < 10
    assert summary["last_r2"] > 0.9
    assert {"best5_rmse", "anytime_rmse", "last_mae", "last_forgetting_mae"} <= set(summary)
    assert "best5" not in summary
    target = json.loads((table / "r/preparation.json").read_text())["target"]
    assert target["name"] == "price"
    code, out, _ = cli("compare", "r", "--html", "r.html")
    assert code == 0
    assert "rmse, mean over runs, by round" in out
    assert "Root mean squared error" in (table / "r.html").read_text()
    code, out, _ = cli("scenario", "spec.toml")
    assert code == 0
    assert "10 bins of the target for classes" in out
    assert cli("plot", "curves", "r", "-o", "c.svg")[0] == 0
    code, _, err = cli("plot", "heatmap", "r", "-o", "h.svg")
    assert code != 0
    assert "r predicts numbers, and a heatmap shows accuracies" in err


def test_a_stopped_run_ends_with_the_same_bits(table):
    class StopError(Exception):
        pass

    def stop(progress):
        if progress.round == 5:
            raise StopError

    experiment = load_spec(table / "spec.toml", ["checkpoint.every=2"])
    runner.run(experiment, table / "straight")
    with pytest.raises(StopError):
        runner.run(experiment, table / "stopped", on_round=stop)
    runner.run(experiment, table / "stopped")
    for name in ("metrics.jsonl", "period_error.jsonl"):
        assert (table / "stopped" / name).read_bytes() == (table / "straight" / name).read_bytes()

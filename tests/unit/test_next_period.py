"""Evaluation on the next period: which rows, after which round, and that nothing later matters."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from chronofed import (
    Classification,
    Dataset,
    Deletion,
    Ditto,
    Evaluate,
    Experiment,
    Linear,
    Method,
    Mlp,
    Periods,
    Samples,
    Subsets,
    Table,
    Train,
)
from chronofed.clients.state import ClientState
from chronofed.core.errors import SpecError
from chronofed.data.dataset import Origin
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.runs.checkpoint import load_latest
from chronofed.training.evaluation import Evaluator
from chronofed.training.loop import run
from chronofed.training.next_period import next_period
from tests.helpers.tables import write_table

NONE = np.zeros(0, dtype=np.int64)


def dataset(client, period, periods: int, overlap: int = 0, tested: int = 0) -> Dataset:
    """Rows whose class is that of the sign of their first number."""
    client, period = np.array(client), np.array(period)
    x = torch.randn(len(client) + tested, 3, generator=torch.Generator().manual_seed(0))
    samples = Samples(x, (x[:, 0] > 0).long())
    cut = torch.arange(len(client) + tested) < len(client)
    names = tuple(map(str, range(periods)))
    held = np.arange(tested) % 2
    origin = Origin(("a", "b"), names, client, period, held, held * 0, NONE, NONE, overlap)
    return Dataset("rows", samples[cut], samples[~cut], ("-", "+"), origin)


@pytest.fixture
def rows():
    """Two clients; the second has no rows in period 1."""
    client = [0, 1, 0, 0, 0, 1, 0, 1, 1, 0]
    period = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    return lambda **options: dataset(client, period, 4, **options)


def following(data, every=1, skip=0, deletions=(), **scenario):
    return next_period(data, Periods(**scenario).on(data, 0), every, skip, deletions)


def test_a_period_is_evaluated_after_the_last_round_of_the_one_before(rows):
    found = following(rows(), rounds_per_period=2)
    assert [found.period(r) for r in range(9)] == [None, None, 1, None, 2, None, 3, None, None]
    assert found.rows(1, 2).tolist() == [3, 4]
    assert found.rows(2, 4).tolist() == [5, 6, 7]
    assert found.name(2) == "2"


def test_every_counts_periods_and_the_first_can_be_skipped(rows):
    assert [following(rows(), every=2).period(r) for r in range(5)] == [None, None, 2, None, None]
    assert [following(rows(), skip=2).period(r) for r in range(5)] == [None, None, 2, 3, None]


def test_rows_that_overlap_with_earlier_ones_of_their_client_are_left_out(rows):
    found = following(rows(overlap=1))
    assert found.rows(1, 1).tolist() == [4]
    # Of both clients the first: that of client 1 follows its row of period 0.
    assert found.rows(2, 2).tolist() == [7]
    assert found.all_rows(2, 2).tolist() == [5, 6, 7]
    late = following(dataset([0, 0, 1, 1], [0, 1, 1, 1], 2, overlap=1))
    # The other client has nothing before.
    assert late.rows(1, 1).tolist() == [2, 3]
    # Where all rows overlap, there is nothing to evaluate.
    assert following(rows(overlap=3)).period(1) is None


def test_deleted_data_are_not_evaluated_on(rows):
    found = following(rows(), deletions=(Deletion(2, rows=(6,)), Deletion(3, clients=(1,))))
    assert found.rows(2, 1).tolist() == [5, 6, 7]
    assert found.rows(2, 2).tolist() == [5, 7]
    assert found.rows(3, 3).tolist() == [9]


@pytest.mark.parametrize("window", [1, 2])
def test_the_measures_are_those_of_the_model_on_the_rows_to_come(rows, window):
    data = rows(tested=4)
    task, scenario = Classification(data, Linear()), Periods(window=window).on(data, 0)
    upcoming = next_period(data, scenario)
    evaluator = Evaluator(task, scenario, Method(), Evaluate(), 0, upcoming=upcoming)
    snapshots = list(run(Method(), scenario, task, train=Train(steps=2, batch_size="full")))
    found = {s.round: evaluator(s) for s in snapshots if evaluator.due(s.round, 4)}
    assert list(found) == [1, 2, 3]
    for snapshot in snapshots[:3]:
        own = data.origin.train_period == snapshot.round
        logits = data.train.x[own] @ snapshot.params[:6].view(2, 3).T + snapshot.params[6:]
        want = (logits.argmax(1) == data.train.y[own]).double().mean()
        measures = found[snapshot.round].measures
        assert measures["test_accuracy"] == pytest.approx(float(want))
        assert measures["test_loss"] == pytest.approx(
            float(torch.nn.functional.cross_entropy(logits, data.train.y[own])), rel=1e-5
        )
        assert (measures["test_samples"], measures["test_period"]) == (own.sum(), snapshot.round)
        # Forgetting is measured on what is held out, of period 0 here.
        assert measures["followed_pairs"] == 2
    line = found[2].records["breakdown"]
    assert (line["round"], line["period"], line["rows"]) == (2, "2", 3)
    assert [client[:2] for client in line["clients"]] == [[0, 1], [1, 2]]
    # Any period can be asked for, which is how a run is evaluated that goes on later.
    assert evaluator(snapshots[1], 3).measures["test_period"] == 3


def test_without_rows_held_out_there_is_no_forgetting(rows):
    data = rows()
    task, scenario = Classification(data, Linear()), Periods().on(data, 0)
    evaluator = Evaluator(
        task, scenario, Method(), Evaluate(), 0, upcoming=next_period(data, scenario)
    )
    found = evaluator(next(run(Method(), scenario, task)))
    assert "forgetting" not in found.measures
    assert "period_accuracy" not in found.records


def test_personal_models_answer_for_their_own_clients(rows):
    data = rows()
    task, scenario = Classification(data, Linear()), Periods().on(data, 0)
    upcoming = next_period(data, scenario)
    evaluator = Evaluator(task, scenario, Method(Ditto()), Evaluate(), 0, upcoming=upcoming)
    minus, plus = torch.zeros(8), torch.zeros(8)
    minus[6], plus[7] = 1.0, 1.0  # each always answers the same
    states = {0: ClientState({"personal": minus}), 1: ClientState({"personal": plus})}
    snapshot = replace(next(run(Method(), scenario, task)), round=2, client_states=states)
    y = data.train.y.numpy()
    want = ((y[[6]] == 0).mean() + (y[[5, 7]] == 1).mean()) / 2
    assert evaluator(snapshot).measures["personal_accuracy"] == pytest.approx(want)
    # In period 1 only the first client has rows.
    found = evaluator(snapshot, 1).measures
    assert found["personal_accuracy"] == pytest.approx((y[[3, 4]] == 0).mean())
    assert found["client_accuracy"] == pytest.approx(found["test_accuracy"])


def experiment(path, evaluate=None, scenario=None, **data) -> Experiment:
    table = Table(path=str(path), period="10", fit_periods=2, **data)
    return Experiment(
        data=table,
        model=Linear(),
        scenario=scenario or Periods(rounds_per_period=2),
        train=Train(steps=3, batch_size=8, lr=0.3),
        evaluate=evaluate or Evaluate(baselines="off"),
        engine="serial",
    )


def test_a_table_is_evaluated_on_the_next_period_and_keeps_all_its_rows(tmp_path):
    built = build(experiment(write_table(tmp_path)))
    assert built.experiment.evaluate.protocol == "next"
    assert built.experiment.data.test == 0.0
    assert (len(built.task.data.train), len(built.task.data.test)) == (240, 0)
    # What was left open is written down, and read again as the same.
    assert build(built.experiment).identity == built.identity
    held = build(experiment(write_table(tmp_path), test=0.2))
    assert held.upcoming is not None
    assert len(held.task.data.test) == 48


def test_other_data_and_scenarios_are_evaluated_on_rows_held_out(tmp_path):
    path = write_table(tmp_path)
    for settings in (
        experiment(path, scenario=Subsets(clients=2, subsets=2)),
        experiment(path, Evaluate(protocol="holdout")),
        msgspec.structs.replace(
            experiment(path), data=Table(path=str(path), time="", period="20 rows")
        ),
    ):
        built = build(msgspec.structs.replace(settings, rounds=2))
        assert (built.experiment.evaluate.protocol, built.upcoming) == ("holdout", None)
        assert built.experiment.evaluate.measures == ()
        assert len(built.task.data.test) == 48


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scenario": Subsets(clients=2)}, "'next' needs a table with periods and the scenario"),
        ({"period": "1000"}, r"all rows are in one period, \[0, 1000\), so there is no next one"),
        ({"rounds": 1}, "nothing is ever evaluated in 1 rounds, 2 a period; lower"),
        ({"evaluate": Evaluate(skip=9)}, "lower evaluate.every or evaluate.skip"),
        ({"evaluate": Evaluate(protocol="holdout", baselines="all")}, "'all' needs evaluate.prot"),
        ({"evaluate": Evaluate(protocol="holdout", skip=1)}, "skip = 1 needs evaluate.protocol"),
        ({"evaluate": Evaluate(measures=("auk",))}, "did you mean 'auc'?"),
    ],
)
def test_refusals(tmp_path, changes, complaint):
    start = experiment(write_table(tmp_path), Evaluate(protocol="next"))
    if "period" in changes:
        changes = {"data": msgspec.structs.replace(start.data, period=changes["period"])}
    with pytest.raises(SpecError, match=complaint):
        build(msgspec.structs.replace(start, **changes))


def lines(path) -> list[bytes]:
    return (path / "metrics.jsonl").read_bytes().splitlines()


def test_a_longer_table_only_adds_evaluations(tmp_path):
    """The run over all periods begins with the run over the first ones, bit for bit."""
    path = write_table(tmp_path)
    short = write_table(tmp_path, "short.csv", until=40)
    runner.run(experiment(path), tmp_path / "whole")
    runner.run(experiment(short), tmp_path / "part")
    assert lines(tmp_path / "whole")[:3] == lines(tmp_path / "part")
    assert len(lines(tmp_path / "whole")) == 5
    # The last model of the short run is evaluated once the next period has come.
    last, _ = load_latest(tmp_path / "part" / "checkpoints")
    built = build(experiment(path))
    settings = built.experiment
    parts = (built.task, built.scenario, settings.method, settings.evaluate, settings.seed)
    evaluator = Evaluator(*parts, upcoming=built.upcoming)
    assert evaluator.due(last.round, built.rounds)
    assert RunDirectory(tmp_path / "whole").history()[3] == evaluator(last).measures


def test_settings_are_chosen_by_the_first_half_of_the_periods_alone(tmp_path):
    """Whatever comes later, a trial is the same."""
    found = []
    for name, poison in (("plain.csv", None), ("other.csv", 30)):
        path = write_table(tmp_path, name, poison=poison)
        settings = experiment(path, Evaluate(on="validation", baselines="off"), test=0.2)
        built = build(settings)
        assert built.upcoming.origin.periods == ("[0, 10)", "[10, 20)", "[20, 30)")
        assert (built.rounds, len(built.task.data.test)) == (6, 0)
        runner.run(settings, tmp_path / name.partition(".")[0])
        found.append((lines(tmp_path / name.partition(".")[0]), build(settings).task))
    assert found[0][0] == found[1][0]
    assert len(found[0][0]) == 2
    assert torch.equal(found[0][1].data.train.x, found[1][1].data.train.x)
    # With all periods they differ.
    whole = [build(experiment(tmp_path / n)).task.data.train.x for n in ("plain.csv", "other.csv")]
    assert not torch.equal(*whole)


def test_a_model_is_not_run_twice_for_its_logits(rows, monkeypatch):
    data = rows()
    task, scenario = Classification(data, Mlp(hidden=(2,))), Periods().on(data, 0)
    evaluate = Evaluate(seen=0, measures=("macro_f1", "auc", "brier"))
    evaluator = Evaluator(task, scenario, Method(), evaluate, 0)
    evaluator.upcoming = next_period(data, scenario)
    snapshot = next(run(Method(), scenario, task))
    seen = []
    inner = type(evaluator.scorer.objective).logits
    monkeypatch.setattr(
        type(evaluator.scorer.objective),
        "logits",
        lambda self, params, x: seen.append(len(x)) or inner(self, params, x),
    )
    evaluator(snapshot)
    assert seen == [2]

"""Several global models as a user meets them: measures, records, files and reports."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import chronofed
from chronofed import (
    Clusters,
    Experiment,
    Linear,
    LossJump,
    Method,
    Regression,
    Scores,
    Subsets,
    Train,
)
from chronofed.methods.clusters.table import Table
from chronofed.reports.followed import followed, followed_lines
from chronofed.reports.groups import groups
from chronofed.reports.payload import build_payload
from chronofed.reports.runs import RunView
from chronofed.runs import RunDirectory, runner
from chronofed.runs.checkpoint import load_latest
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.loop import Snapshot
from tests.helpers.scenes import write_run
from tests.helpers.world import slopes


def constant(answer: int) -> torch.Tensor:
    """A linear model that always answers one of the three classes."""
    params = torch.zeros(18)
    params[15 + answer] = 1.0
    return params


@pytest.fixture
def snapshot():
    """Two of three models are followed, by the clients 0 and 2, and by 1; client 3 follows none."""
    state = {"params": constant(0)}
    table = Table.first(state, 3, 4, Scores().init(3, 4))
    table.models = [{"params": constant(answer)} for answer in range(3)]
    table.number, table.following = [7, 9, -1], [0, 1, 0, -1]
    return Snapshot(6, table.pack(), torch.empty(0))


def test_models_are_measured_on_their_own_clients_data(task, scenario, snapshot):
    """Always answering a class is right as often as a data set has that class."""
    method = Method(Clusters())
    found = Evaluator(task, scenario, method, Evaluate(), seed=0)(snapshot)
    first = {(i, v.key): v for t in range(6) for i, v in scenario.at(t).visits.items()}

    def share(client, answer):
        held = [v.indices for (i, _), v in first.items() if i == client]
        return np.mean([(task.data.labels[rows] == answer).mean() for rows in held])

    want = np.mean([share(0, 0), share(1, 1), share(2, 0)])
    assert found.measures["cluster_accuracy"] == pytest.approx(want)
    main = np.mean([share(i, 0) for i in (0, 1, 2)])
    assert found.measures["client_accuracy"] == pytest.approx(main)
    assert found.records["clusters"] == {"round": 6, "models": [7, 9], "of": [7, 9, 7, -1]}


def test_one_model_has_neither_the_measure_nor_the_record(task, scenario, train_for):
    found = Evaluator(task, scenario, Method(), Evaluate(), seed=0)(train_for(Method(), 1))
    assert "cluster_accuracy" not in found.measures
    assert "clusters" not in found.records


def test_errors_of_a_regression(scenario, snapshot):
    data = slopes()
    task = Regression(data, Linear())
    models = torch.zeros(3, 6)
    models[1, 5] = 100.0
    server = {**snapshot.server, "model_params": models, "params": models[0]}
    found = Evaluator(task, scenario, Method(Clusters()), Evaluate(), seed=0)
    measures = found(replace(snapshot, server=server)).measures
    # One of three clients follows a model that is 100 off.
    assert measures["cluster_mae"] == pytest.approx(33.3, abs=1.0)
    assert measures["client_mae"] < 1.0


def test_a_run_leaves_a_record_and_the_model_of_every_client(workdir):
    assign = Scores(detector=LossJump(0.01), eager=False, merge=0.0)
    experiment = Experiment(
        rounds=4,
        model=Linear(),
        scenario=Subsets(clients=3, subsets=4),
        method=Method(Clusters(models=4, assign=assign)),
        train=Train(steps=2, batch_size=16),
        evaluate=Evaluate(every=2, seen=0),
        engine="serial",
    )
    runner.run(experiment, workdir / "run")
    lines = RunDirectory(workdir / "run").record("clusters")
    assert [line["round"] for line in lines] == [2, 4]
    history = RunDirectory(workdir / "run").history()
    assert all("cluster_accuracy" in line for line in history)
    snapshot, _ = load_latest(workdir / "run" / "checkpoints")
    table, model = Table.unpack(snapshot.server), chronofed.load_model("run")
    assert len(set(table.following)) > 1
    assert model.clients == ("0", "1", "2")
    for i, place in enumerate(table.following):
        flat = torch.cat([p.reshape(-1) for p in model.personal(str(i)).parameters()])
        assert torch.equal(flat.detach(), table.models[place]["params"])
        assert lines[-1]["of"][i] == table.number[place]
    (shown,) = build_payload(groups([RunView.read(workdir / "run")]), "t")["clusters"]
    assert shown["of"] == [line["of"] for line in lines]
    assert (shown["rounds"], shown["clients"]) == ([2, 4], 3)


def test_a_report_shows_some_columns_and_clients(tmp_path):
    write_run(tmp_path / "a", "A", rounds=1200, models=3)
    path = tmp_path / "a" / "clusters.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    many = [json.dumps(line | {"of": line["of"] * 30}) + "\n" for line in lines]
    path.write_text("".join(many))
    write_run(tmp_path / "b", "B", rounds=40)
    views = [RunView.read(tmp_path / name) for name in ("a", "b")]
    (shown,) = build_payload(groups(views), "t")["clusters"]
    assert (shown["label"], shown["group"], shown["clients"]) == ("A, seed 0", 0, 150)
    assert len(shown["rounds"]) == len(shown["of"]) == len(shown["models"]) == 120
    assert {len(of) for of in shown["of"]} == {100}
    assert set(shown["models"]) == {3}
    assert shown["rounds"][-1] == 1200


def test_a_terminal_shows_who_followed_which_model_when(tmp_path, cli):
    run = write_run(tmp_path / "a", "A", rounds=160, models=3)
    lines = RunView.read(run).record("clusters")
    of = {line["round"]: line["of"] for line in lines}
    for client, changes in enumerate(followed(lines)):
        # Every evaluation shows the latest change.
        for round_, models in of.items():
            known = [model for when, model in changes if when <= round_]
            assert models[client] == (known[-1] if known else -1)
        assert all(one != other for (_, one), (_, other) in itertools.pairwise(changes))
    code, out, _ = cli("status", run)
    assert code == 0
    assert "  0, 1, 2 followed at round 160\n" in out
    assert (
        "client 0: ..., 1 from round 40, 2 from round 80, 0 from round 120, 1 from round 160\n"
        in out
    )
    assert "client 4: 0 from round 80, 1 from round 120, 2 from round 160\n" in out
    found = json.loads(cli("status", run, "--json")[1])["followed"]
    assert found[4] == [[80, 0], [120, 1], [160, 2]]


def test_clients_that_join_leave_and_are_many():
    lines = [
        {"round": 2, "models": [0], "of": [0]},
        {"round": 4, "models": [0, 3], "of": [3, 0]},
        {"round": 6, "models": [0, 3], "of": [-1, 0]},
    ]
    assert followed(lines) == [[(2, 0), (4, 3), (6, -1)], [(4, 0)]]
    assert list(followed_lines(lines, ["north"])) == [
        "0 followed at round 6",
        "client north: 0 from round 2, 3 from round 4, none from round 6",
        "client 1: 0 from round 4",
    ]
    many = list(followed_lines([{"round": 1, "models": [0], "of": [0] * 30 + [-1]}]))
    assert many[-1] == "and 11 more clients; see chronofed report or --json"
    assert len(many) == 22
    assert list(followed_lines([])) == []

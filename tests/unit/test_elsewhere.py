"""Clients with data of their own: who is asked is known here, and nothing else."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from chronofed import Elsewhere, Method, Subsets, Train, run
from chronofed.cli import main
from chronofed.config import kind_of
from chronofed.deletion import Deletion, without
from chronofed.engines import BatchedEngine, SerialEngine, ThreadEngine
from chronofed.errors import DataError, IncompatibleError, RunError, SpecError
from chronofed.experiments import runner
from chronofed.experiments.reader import read
from chronofed.experiments.spec import load, load_settings
from chronofed.metrics.evaluation import Evaluate, Evaluator
from chronofed.metrics.holdings import describe
from chronofed.reports.maps import recorded_grid
from chronofed.reports.view import RunView
from chronofed.scenarios import OneShot, Plan, ScenarioSettings, Schedule, Visit
from chronofed.tasks.dataset import Origin

SPEC = """
rounds = 4
[model]
kind = "linear"
[scenario]
kind = "elsewhere"
clients = 3
"""


@pytest.fixture
def away(data):
    return Elsewhere(clients=3).on(data, seed=0)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


def test_a_specification_names_it():
    plain = {"kind": "elsewhere", "clients": 3, "cohort": 2}
    settings = read(plain, ScenarioSettings)
    assert settings == Elsewhere(3, cohort=2)
    assert read(msgspec.to_builtins(settings), ScenarioSettings) == settings
    assert kind_of(settings) == "elsewhere"
    with pytest.raises(SpecError, match="clients"):
        read({"kind": "elsewhere"}, ScenarioSettings)
    assert [Elsewhere(1).elsewhere, Subsets().elsewhere] == [True, False]


def test_everybody_is_asked_and_nothing_is_known_of_them(away):
    assert (away.clients, away.rounds, away.persistent, away.elsewhere) == (3, None, True, True)
    plan = away.at(7)
    assert list(plan.visits) == [0, 1, 2]
    assert [len(visit.indices) for visit in plan.visits.values()] == [0, 0, 0]


def test_memberships_and_cohorts_as_in_a_simulation(data):
    late = Schedule(((1, 2, -1),))
    scenario = Elsewhere(3, membership=late).on(data, 0)
    assert [list(scenario.at(t).visits) for t in (1, 2)] == [[0, 2], [0, 1, 2]]
    some = Elsewhere(9, cohort=2).on(data, 0)
    simulated = Subsets(9, 2, 1.0, cohort=2).on(data, 0)
    assert [list(some.at(t).visits) for t in range(5)] == [
        list(simulated.at(t).visits) for t in range(5)
    ]
    assert not Elsewhere(4, membership=OneShot(2)).on(data, 0).persistent
    with pytest.raises(SpecError, match=r"cohort = 4, but at most 3 clients are there"):
        Elsewhere(3, cohort=4).on(data, 0)


def test_no_engine_of_this_machine_can_serve_it(away, task):
    for engine in (None, SerialEngine(task), ThreadEngine(task, 2), BatchedEngine(task, 1)):
        with pytest.raises(
            IncompatibleError, match=r"its clients are elsewhere.* run it on Flower"
        ):
            list(run(Method(), away, task, rounds=1, train=Train(steps=1), engine=engine))


def test_deleted_clients_are_not_asked_any_more_and_the_others_are(away):
    plan = without(away.at(2), [Deletion(round=1, rows=(3,), clients=(1,)), Deletion(round=3)])
    assert list(plan.visits) == [0, 2]
    here = Plan(0, {0: Visit(np.array([3]), 0), 1: Visit(np.array([3, 4]), 0)})
    assert list(without(here, [Deletion(rows=(3,))]).visits) == [1]


def test_only_the_test_set_is_evaluated(away, task, train_for):
    snapshot = train_for(Method(), 2)
    found = Evaluator(task, away, Method(), Evaluate(), seed=0)(snapshot)
    assert set(found.measures) == {"round", "test_accuracy", "test_loss", "bytes_down", "bytes_up"}
    assert found.periods == {}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("evaluate.periods='on'", "evaluate.periods = 'on' needs the clients' data, which are"),
        ("evaluate.past=2", "evaluate.past = 2 needs the clients' data, which are elsewhere"),
        ("deletions=[{rows=[3]}]", "deletions.rows: clients are elsewhere.* client forget"),
        ("method.backbone.kind='scaffold'", None),
        ("deletions=[{clients=[1]}]", None),
    ],
)
def test_what_would_need_their_data_is_refused(spec, change, line):
    experiment = load(spec, [change])
    if line is None:
        assert experiment.build()[2] == 4
        return
    with pytest.raises(SpecError, match=line) as error:
        experiment.build()
    assert "\n" not in str(error.value)


def test_a_run_here_is_refused_before_anything_starts(spec, capsys):
    for command in (["run"], ["profile"]):
        assert main([*command, str(spec)]) == 2
        said = capsys.readouterr().err
        assert "its clients are elsewhere" in said
        assert len(said.strip().splitlines()) == 1
    assert {path.name for path in spec.parent.iterdir()} == {"spec.toml"}


def test_a_run_of_elsewhere_is_not_resumed_here(spec):
    directory = runner.start(load(spec), spec.parent / "run", hired=True)
    with pytest.raises(IncompatibleError, match="run it on Flower"):
        runner.proceed(directory)


def test_what_is_known_can_be_shown(spec, capsys, tmp_path):
    assert main(["scenario", str(spec), "--rounds", "2"]) == 0
    assert "1: its own data" in capsys.readouterr().out
    assert main(["scenario", str(spec), "--rounds", "1", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["clients"][2] == {"client": 2, "samples": None, "by_class": None}
    pytest.importorskip("matplotlib")
    assert main(["scenario", str(spec), "--plot", "a.png"]) == 2
    assert "what they hold is not known here" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_who_was_asked_is_recorded(away, data, spec):
    about = describe(away, data, 4)
    assert (about["elsewhere"], about["clients"], about["shown"]) == (True, 3, [0, 1, 2, 3])
    assert about["held"] == [[[0, []]] * 4] * 3
    directory = runner.start(load(spec), spec.parent / "run", hired=True)
    directory.describe_scenario(about)
    with pytest.raises(RunError, match="not known here"):
        recorded_grid(RunView.read(directory.path), 3)


def test_the_clients_of_a_test_table_are_not_those_of_the_scenario(away, data):
    none = np.zeros(0, np.int64)
    named = replace(data, origin=Origin(("x", "y"), ("1",), none, none, none, none))
    assert "client_names" not in describe(away, named, 2)
    assert describe(Subsets(2, 2, 1.0).on(data, 0), named, 2)["client_names"] == ["x", "y"]


def test_a_client_reads_a_specification_whose_table_is_on_the_server(spec):
    spec.write_text(SPEC + '[data]\nkind = "table"\npath = "there.csv"\n')
    assert load_settings(spec).data.path == "there.csv"
    with pytest.raises(SpecError, match=r"spec.toml: data.path: no file there.csv"):
        load(spec)


def test_flower_local_asks_for_the_clients_own_data(spec, capsys):
    assert main(["flower", "local", str(spec)]) == 2
    assert "--source: this scenario's clients bring their own data" in capsys.readouterr().err
    assert main(["flower", "local", str(spec), "--source", "{client}.toml"]) == 2
    assert "0.toml: cannot be read" in capsys.readouterr().err
    assert {path.name for path in spec.parent.iterdir()} == {"spec.toml"}


def test_flower_local_gives_every_client_its_file(spec, monkeypatch):
    handed = {}

    def run_locally(text, path, clients, data, watch, sources, **settings):
        handed.update(sources)
        raise KeyboardInterrupt

    monkeypatch.setattr("chronofed.cli.flower.run_locally", run_locally)
    for client in range(3):
        source = f'[source]\nkind = "table"\npath = "{client}.csv"\nclasses = ["a", "b"]\n'
        (spec.parent / f"{client}.toml").write_text(source)
    assert main(["flower", "local", str(spec), "--source", "{client}.toml", "--quiet"]) == 130
    assert [handed[client].name for client in range(3)] == ["0.toml", "1.toml", "2.toml"]


TEST_ROWS = (
    SPEC
    + """
[data]
kind = "source"
[data.source]
kind = "table"
path = "test.csv"
target = "weather"
classes = ["storm", "calm"]
features = [{ name = "wind", mean = 10.0, deviation = 5.0 }]
current = { kind = "last-rows", count = 1 }
"""
)


def test_the_server_reads_its_test_rows_as_clients_read_theirs(spec):
    """Classes in the order that was agreed on, numbers scaled as was agreed on, and every row for testing."""
    spec.write_text(TEST_ROWS)
    with pytest.raises(SpecError, match=r"data.source.path: no file test.csv in"):
        load(spec)
    (spec.parent / "test.csv").write_text(
        "time,wind,weather\n2020-01-01,20,storm\n2020-01-02,5,calm\n"
    )
    experiment = load(spec)
    task, scenario, _ = experiment.build()
    assert scenario.elsewhere
    assert task.data.test.x.tolist() == [[2.0], [-1.0]]
    assert task.data.test.y.tolist() == [0, 1]
    assert (task.data.classes, task.data.name) == (("storm", "calm"), "test")
    (spec.parent / "again.toml").write_text(experiment.resolved())
    assert load(spec.parent / "again.toml") == experiment
    (spec.parent / "test.csv").write_text("time,wind,weather\n2020-01-01,20,\n")
    with pytest.raises(DataError, match=r"no rows to test on: 1 rows left out: no target"):
        experiment.build()

"""The scenario of clients on other machines: the server knows which clients it asks, and nothing else."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from chronofed import Method, Periods, Remote, Subsets, Train, run
from chronofed.cli.main import main
from chronofed.clients.deletion import Deletion, without
from chronofed.core.config import kind_of
from chronofed.core.errors import DataError, IncompatibleError, RunError, SpecError
from chronofed.core.spec_io import from_table
from chronofed.data.dataset import Origin
from chronofed.engines import BatchedEngine, SerialEngine, ThreadEngine
from chronofed.flower.settings import Federation
from chronofed.reports.figures.maps import recorded_grid
from chronofed.reports.runs import RunView
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.runs.load_spec import load, load_settings
from chronofed.scenarios import OneShot, Plan, ScenarioSettings, Schedule, Visit
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.scenario_summary import describe

SPEC = """
rounds = 4
[model]
kind = "linear"
[scenario]
kind = "remote"
clients = 3
"""


@pytest.fixture
def away(data):
    return Remote(clients=3).on(data, seed=0)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


def test_a_specification_names_it():
    plain = {"kind": "remote", "clients": 3, "cohort": 2}
    settings = from_table(plain, ScenarioSettings)
    assert settings == Remote(3, cohort=2)
    assert from_table(msgspec.to_builtins(settings), ScenarioSettings) == settings
    assert kind_of(settings) == "remote"
    with pytest.raises(SpecError, match="clients"):
        from_table({"kind": "remote"}, ScenarioSettings)
    assert [Remote(1).remote, Subsets().remote] == [True, False]


def test_everybody_is_asked_and_nothing_is_known_of_them(away):
    assert (away.clients, away.rounds, away.persistent, away.remote) == (3, None, True, True)
    plan = away.at(7)
    assert list(plan.visits) == [0, 1, 2]
    assert [len(visit.indices) for visit in plan.visits.values()] == [0, 0, 0]


def test_memberships_and_cohorts_as_in_a_simulation(data):
    late = Schedule(((1, 2, -1),))
    scenario = Remote(3, membership=late).on(data, 0)
    assert [list(scenario.at(t).visits) for t in (1, 2)] == [[0, 2], [0, 1, 2]]
    some = Remote(9, cohort=2).on(data, 0)
    simulated = Subsets(9, 2, 1.0, cohort=2).on(data, 0)
    assert [list(some.at(t).visits) for t in range(5)] == [
        list(simulated.at(t).visits) for t in range(5)
    ]
    assert not Remote(4, membership=OneShot(2)).on(data, 0).persistent
    with pytest.raises(SpecError, match=r"cohort = 4, but at most 3 clients are available"):
        Remote(3, cohort=4).on(data, 0)


def test_no_engine_of_this_machine_can_serve_it(away, task):
    for engine in (None, SerialEngine(task), ThreadEngine(task, 2), BatchedEngine(task, 1)):
        with pytest.raises(
            IncompatibleError, match=r"its clients are on other machines.* run it on Flower"
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
    assert "period_accuracy" not in found.records


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
        assert build(experiment).rounds == 4
        return
    with pytest.raises(SpecError, match=line) as error:
        build(experiment)
    assert "\n" not in str(error.value)


def test_a_run_here_is_refused_before_anything_starts(spec, capsys):
    for command in (["run"], ["profile"]):
        assert main([*command, str(spec)]) == 2
        said = capsys.readouterr().err
        assert "its clients are on other machines" in said
        assert len(said.strip().splitlines()) == 1
    assert {path.name for path in spec.parent.iterdir()} == {"spec.toml"}


def test_a_run_of_elsewhere_is_not_resumed_here(spec):
    directory = runner.create(build(load(spec)), spec.parent / "run", remote=True)
    with pytest.raises(IncompatibleError, match="run it on Flower"):
        runner.resume(directory)


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
    assert (about["remote"], about["clients"], about["shown"]) == (True, 3, [0, 1, 2, 3])
    assert about["held"] == [[[0, []]] * 4] * 3
    directory = runner.create(build(load(spec)), spec.parent / "run", remote=True)
    directory.describe_scenario(about)
    with pytest.raises(RunError, match="not known here"):
        recorded_grid(RunView.read(directory.path), 3)


def test_the_clients_of_a_test_table_are_not_those_of_the_scenario(away, data):
    none = np.zeros(0, np.int64)
    whose = np.arange(len(data.train)) % 2
    named = replace(data, origin=Origin(("x", "y"), ("1",), whose, 0 * whose, none, none))
    assert "client_names" not in describe(away, named, 2)
    assert "client_names" not in describe(Subsets(2, 2, 1.0).on(named, 0), named, 2)
    assert describe(Periods().on(named, 0), named, 1)["client_names"] == ["x", "y"]


def test_a_client_reads_a_specification_whose_table_is_on_the_server(spec):
    spec.write_text(SPEC + '[data]\nkind = "table"\npath = "there.csv"\n')
    assert load_settings(spec).data.path == "there.csv"
    with pytest.raises(SpecError, match=r"spec.toml: data.path: no file there.csv"):
        load(spec)


def test_flower_local_asks_for_the_clients_own_data(spec, capsys):
    assert main(["flower", "local", str(spec)]) == 2
    assert "clients of this scenario bring their own data; use --source" in capsys.readouterr().err
    assert main(["flower", "local", str(spec), "--source", "{client}.toml"]) == 2
    assert "0.toml: cannot be read" in capsys.readouterr().err
    assert {path.name for path in spec.parent.iterdir()} == {"spec.toml"}


def test_flower_local_passes_on_files_and_timeouts(spec, monkeypatch):
    handed, chosen = {}, {}

    def run_locally(text, path, clients, data, on_progress, sources, **settings):
        handed.update(sources)
        chosen.update(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("chronofed.flower.local.run_locally", run_locally)
    for client in range(3):
        source = f'[source]\nkind = "table-file"\npath = "{client}.csv"\nclasses = ["a", "b"]\n'
        (spec.parent / f"{client}.toml").write_text(source)
    local = ["flower", "local", str(spec), "--source", "{client}.toml", "--quiet"]
    waiting = ["--quorum", "2", "--round-timeout", "30", "--join-timeout", "5"]
    assert main([*local, *waiting, "--quorum-timeout", "60", "--poll", "0.1"]) == 130
    assert Federation(**chosen) == Federation(
        quorum=2, round_timeout_s=30, join_timeout_s=5, quorum_timeout_s=60, poll_s=0.1
    )
    chosen.clear()
    assert main(local) == 130
    assert chosen == {}
    assert [handed[client].name for client in range(3)] == ["0.toml", "1.toml", "2.toml"]


TEST_ROWS = (
    SPEC
    + """
[data]
kind = "source-rows"
[data.source]
kind = "table-file"
path = "test.csv"
target = "weather"
classes = ["storm", "calm"]
features = [{ name = "wind", mean = 10.0, deviation = 5.0 }]
current = { kind = "last-rows", count = 1 }
"""
)


def test_the_server_reads_its_test_rows_as_clients_read_theirs(spec):
    """Classes in the agreed order, numbers scaled as agreed, and every row used for testing."""
    spec.write_text(TEST_ROWS)
    with pytest.raises(SpecError, match=r"data.source.path: no file test.csv in"):
        load(spec)
    (spec.parent / "test.csv").write_text(
        "time,wind,weather\n2020-01-01,20,storm\n2020-01-02,5,calm\n"
    )
    experiment = load(spec)
    built = build(experiment)
    task, scenario = built.task, built.scenario
    assert scenario.remote
    assert task.data.test.x.tolist() == [[2.0], [-1.0]]
    assert task.data.test.y.tolist() == [0, 1]
    assert (task.data.classes, task.data.name) == (("storm", "calm"), "test")
    (spec.parent / "again.toml").write_text(experiment.resolved())
    assert load(spec.parent / "again.toml") == experiment
    (spec.parent / "test.csv").write_text("time,wind,weather\n2020-01-01,20,\n")
    with pytest.raises(DataError, match=r"no test rows: 1 rows left out: no target"):
        build(experiment)

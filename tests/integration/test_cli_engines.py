"""The commands that are about speed, and the options that choose an engine."""

import json

import pytest

from chronofed.cli import main
from chronofed.cli.bench import _table
from chronofed.cli.output import emit
from chronofed.experiments import bench
from chronofed.experiments.bench import WORKLOADS, Workload, peak
from chronofed.tasks.models import Linear, Mlp

SPEC = """
name = "tiny"
rounds = 4
[model]
kind = "mlp"
hidden = [8]
[train]
steps = 2
[evaluate]
every = 2
seen = 100
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_engines_on_the_command_line(call, tmp_path):
    metrics = {}
    for engine in ("serial", "threads", "processes", "batched"):
        code, _, _ = call("run", "spec.toml", "-o", engine, "--engine", engine, "--workers", 2)
        assert code == 0
        (line,) = (tmp_path / engine / "engine.jsonl").read_text().splitlines()
        assert json.loads(line)["engine"] == engine
        metrics[engine] = (tmp_path / engine / "metrics.jsonl").read_text()
    assert metrics["serial"] == metrics["threads"] == metrics["processes"]
    one, other = (json.loads(metrics[k].splitlines()[-1]) for k in ("serial", "batched"))
    assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4)


def test_a_run_goes_on_with_another_engine(call, tmp_path):
    call("run", "spec.toml", "-o", "whole", "--engine", "serial", "-q")
    call("run", "spec.toml", "-o", "part", "--engine", "serial", "-q", "-s", "checkpoint.every=2")
    for path in (tmp_path / "part" / "checkpoints").glob("00000004*"):
        path.unlink()
    (tmp_path / "part" / "summary.json").unlink()
    assert call("resume", "part", "--engine", "threads", "--workers", 2)[0] == 0
    engines = (tmp_path / "part" / "engine.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in engines] == [0, 2]
    same = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "part")]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "--workers: expected a number >= 1, not 0"),
        (["-s", "engine=turbo"], "engine: unknown value 'turbo'; known: auto, serial"),
        (["-s", "client_memory=-1"], "client_memory: expected float > 0.0"),
    ],
)
def test_bad_options(call, options, message):
    code, _, err = call("run", "spec.toml", "-o", "bad", *options)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_profile(call):
    code, out, _ = call("profile", "spec.toml", "--rounds", 2)
    assert code == 0
    assert "forward and backward" in out
    code, out, _ = call("profile", "spec.toml", "--json", "-s", "rounds=1")
    found = json.loads(out)
    assert code == 0
    assert set(found["round"]) >= {"data", "forward and backward", "update", "aggregate"}
    assert found["round"]["forward and backward"] > 0
    assert set(found["after"]) == {"evaluate", "write"}
    assert call("profile", "spec.toml", "--rounds", 0)[0] == 2


def test_bench(call, capsys):
    code, out, _ = call("bench", "a", "--rounds", 2, "--engines", "auto", "--json")
    assert code == 0
    (row,) = json.loads(out)["results"]
    assert row["chosen"].startswith("batched")
    assert row["samples_per_second"] == pytest.approx(7 * 238 / row["seconds"])
    assert row["fastest"] <= row["seconds"] <= row["slowest"]
    assert 0 < row["share_of_peak"] < 1.5
    assert row["memory_mb"] > 50
    emit(_table([row, {**row, "workload": "B"}]))
    shown = capsys.readouterr().out
    assert "A: MLP 784-200-10" in shown
    assert "auto: batched" in shown


@pytest.mark.parametrize("options", [["Q"], ["A", "--rounds", "0"]])
def test_bad_bench(call, options):
    code, _, err = call("bench", *options)
    assert code == 2
    assert err.count("\n") == 1


def test_operations_by_hand():
    linear = Workload("", Linear(), (1, 2, 3), clients=4, samples=5, cohort=2)
    assert linear.operations() == 2 * (2 * 6 * 10) * 5 * 2  # forward, and backward by the weights
    mlp = Workload("", Mlp((7,)), (6,), clients=1, samples=1, cohort=1)
    assert mlp.operations() == 2 * (2 * 6 * 7 + 3 * 7 * 10)
    assert WORKLOADS["A"].operations() == 2 * (2 * 784 * 200 + 3 * 2000) * 238 * 7
    assert peak(1) > 1e8


def test_workloads_are_what_they_say():
    work = WORKLOADS["B"]
    task, scenario = work.task(), work.scenario()
    plan = scenario.at(0)
    assert len(task.data.train) == 50_000
    assert len(plan.visits) == 100
    assert {len(visit.indices) for visit in plan.visits.values()} == {50}
    assert bench.memory() > 10

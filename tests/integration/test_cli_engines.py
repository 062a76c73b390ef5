"""The commands that are about speed, and the options that choose an engine."""

import json
from unittest.mock import ANY

import pytest

from chronofed.cli.bench import _table
from chronofed.cli.output import emit
from chronofed.engines.base import LocalEngine, one_thread
from chronofed.models.zoo import Linear, Mlp
from chronofed.studies import bench
from chronofed.studies.bench import WORKLOADS, Workload, peak

pytestmark = pytest.mark.usefixtures("tiny_spec")


@pytest.fixture
def call(cli):
    return cli


def test_engines_on_the_command_line(call, tmp_path):
    metrics = {}
    for engine in ("serial", "threads", "processes", "batched"):
        code, _, _ = call("run", "spec.toml", "-o", engine, "--engine", engine, "--workers", 2)
        assert code == 0
        (line,) = (tmp_path / engine / "engines.jsonl").read_text().splitlines()
        assert json.loads(line)["engine"] == engine
        metrics[engine] = (tmp_path / engine / "metrics.jsonl").read_text()
    assert metrics["serial"] == metrics["threads"] == metrics["processes"]
    one, other = (json.loads(metrics[k].splitlines()[-1]) for k in ("serial", "batched"))
    assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4)


class Backwards(LocalEngine):
    """Train one client at a time, the last one first, with a model for each."""

    def prepare(self, method, orders, plan):
        for order in orders:
            with one_thread():
                answer = self.client(method, order, plan).prepare()
            yield answer

    def map(self, method, orders, plan):
        for order in reversed(list(orders)):
            with one_thread():
                result, state = self.client(method, order, plan).serve()
            self.store_state(method, order.client, state)
            yield result

    def client(self, method, order, plan):
        job = self.job(method, order, plan)
        return job.build_client(self.task, self.task.objective(), self.timer)


@pytest.mark.some(1)
@pytest.mark.parametrize("backbone", ["scaffold", "mime"])
def test_an_engine_from_outside_the_package(call, tmp_path, backbone):
    path = f"{__name__}:Backwards"
    for name, options in {
        "serial": ["--engine", "serial"],
        "named": ["--engine", path, "--workers", 2],
        "specified": ["-s", f"engine={path}"],
    }.items():
        chosen = ["-s", f"method.backbone.kind={backbone}", "-s", "method.memory.kind=core-set"]
        assert call("run", "spec.toml", "-o", name, *chosen, *options) == (0, ANY, ANY)
    (line,) = (tmp_path / "named" / "engines.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "round": 0,
        "engine": path,
        "workers": 2,
        "reason": "as requested",
    }
    for name in ("named", "specified"):
        for file in ("metrics.jsonl", "checkpoints/*.safetensors"):
            got, want = (sorted((tmp_path / run).glob(file)) for run in (name, "serial"))
            assert [p.read_bytes() for p in got] == [p.read_bytes() for p in want] != []


def test_a_run_goes_on_with_another_engine(call, tmp_path):
    call("run", "spec.toml", "-o", "whole", "--engine", "serial", "-q")
    call("run", "spec.toml", "-o", "part", "--engine", "serial", "-q", "-s", "checkpoint.every=2")
    for path in (tmp_path / "part" / "checkpoints").glob("00000004*"):
        path.unlink()
    (tmp_path / "part" / "summary.json").unlink()
    assert call("resume", "part", "--engine", "threads", "--workers", 2)[0] == 0
    engines = (tmp_path / "part" / "engines.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in engines] == [0, 2]
    same = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "part")]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "--workers: expected a number >= 1, not 0"),
        (["-s", "engine=turbo"], "engine: unknown value 'turbo'; known: auto, batched"),
        (["--engine", "thread"], "engine: unknown value 'thread'; did you mean 'threads'? known: "),
        (["--engine", "nowhere:Engine"], "engine: cannot import 'nowhere:Engine': No module"),
        (["--engine", ":Engine"], "engine: cannot import ':Engine'"),
        (["--engine", "json:Engine"], "engine: cannot import 'json:Engine': module 'json' has no"),
        (["--engine", "json:JSONDecoder"], "'json:JSONDecoder' is not a subclass of chronofed.eng"),
        (["-s", "state_cache_mb=-1"], "state_cache_mb: expected float > 0.0"),
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


@pytest.mark.slow
def test_bench(call):
    code, out, _ = call("bench", "a", "--rounds", 2, "--engines", "auto", "--json")
    assert code == 0
    (row,) = json.loads(out)["results"]
    assert row["chosen"].startswith("batched")
    assert row["samples_per_second"] == pytest.approx(7 * 238 / row["seconds"])
    assert row["fastest"] <= row["seconds"] <= row["slowest"]
    assert 0 < row["share_of_peak"] < 1.5
    assert peak(1) > 1e8
    assert row["memory_mb"] > 50


def test_the_table_of_bench(capsys):
    row = {
        "workload": "A",
        "about": "MLP 784-200-10",
        "engine": "auto",
        "chosen": "batched",
        "seconds": 0.1,
        "fastest": 0.09,
        "slowest": 0.2,
        "samples_per_second": 16_660.0,
        "share_of_peak": 0.4,
        "memory_mb": 300.0,
    }
    emit(_table([row, {**row, "workload": "B"}]))
    shown = capsys.readouterr().out
    assert "A: MLP 784-200-10" in shown
    assert "auto: batched" in shown
    assert "0.09 - 0.2" in shown
    assert "16,660" in shown


@pytest.mark.parametrize("options", [["Q"], ["A", "--rounds", "0"], ["A", "--engines", "turbo"]])
def test_bad_bench(call, options):
    code, _, err = call("bench", *options)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.slow
def test_operations_by_hand():
    linear = Workload("", Linear(), (1, 2, 3), clients=4, samples=5, cohort=2)
    assert linear.operations() == 2 * (2 * 6 * 10) * 5 * 2  # forward, and backward by the weights
    mlp = Workload("", Mlp((7,)), (6,), clients=1, samples=1, cohort=1)
    assert mlp.operations() == 2 * (2 * 6 * 7 + 3 * 7 * 10)
    assert WORKLOADS["A"].operations() == 2 * (2 * 784 * 200 + 3 * 2000) * 238 * 7


def test_workloads_are_what_they_say():
    work = WORKLOADS["B"]
    task, scenario = work.task(), work.scenario()
    plan = scenario.at(0)
    assert len(task.data.train) == 50_000
    assert len(plan.visits) == 100
    assert {len(visit.indices) for visit in plan.visits.values()} == {50}
    assert bench.memory_mb() > 10

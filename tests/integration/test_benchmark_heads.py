"""The benchmark of heads: its federations, and a run of a few rounds that is resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from chronofed.studies.load_recipe import load as load_recipe
from tests.helpers.waiting import LIMIT_S

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "heads.py"


@pytest.fixture
def heads(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import heads

    return heads


@pytest.mark.parametrize("federation", ["cifar", "cifar-symmetric"])
def test_cifar_is_at_the_scale_of_the_papers_tables(heads, federation):
    found = heads.experiment(federation, "CFL-Core-Set", 0.2, 0, Path("nowhere"), False)
    column = "alpha 0.1" if federation == "cifar-symmetric" else "alpha 0.1, shares"
    want = next(
        cell.experiment
        for cell in load_recipe("table-baselines").cells("cpu", [0])
        if (cell.row, cell.column) == ("CFL-Core-Set", column)
    )
    for part in ("model", "train", "method", "rounds", "scenario"):
        assert getattr(found, part) == getattr(want, part), part
    assert found.data.augment == want.data.augment
    short = heads.experiment(federation, "head", 0.1, 0, Path("nowhere"), True, 40)
    assert (short.rounds, short.train.schedule.rounds, short.train.lr) == (40, 40, 0.1)


def test_every_method_makes_an_experiment_of_every_federation(heads):
    for federation in heads.FEDERATIONS:
        for method in heads.METHODS:
            made = heads.experiment(federation, method, 0.1, 0, Path("nowhere"), False)
            assert made.scenario.clients == 7


def test_a_few_rounds_and_again(tmp_path):
    command = [sys.executable, str(SCRIPT), "shares", "stateless", "--rounds", "4", "--seeds", "1"]
    command += ["--only", "FedAvg", "head on the mean", "--folder", str(tmp_path)]
    first, again = (
        subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S) for _ in range(2)
    )
    assert first.stderr == ""
    assert first.stdout == again.stdout
    rows = [line for line in first.stdout.splitlines() if line.startswith("| ")]
    assert sum(row.startswith("| head on the mean |") for row in rows) == 2
    assert len(list(tmp_path.rglob("summary.json"))) == 2 * 2 * 4


def test_next_period_figures_have_every_part_with_and_without(heads):
    import next_period

    found = next_period.heads("rain")
    assert len(found) == len({str(changes) for changes in found.values()}) == 9
    assert any("gaussian" in change for change in found["CFL-Core-Set, head on the mean"])
    assert any("ridge" in change for change in next_period.heads("flights-delay")["FedAvg, head"])

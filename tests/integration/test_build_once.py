"""One run parses its specification once, loads its data once and checks its method once."""

from collections import Counter

import pytest

from chronofed import Experiment
from chronofed.cli.main import main
from chronofed.data import settings
from chronofed.runs import built, load_spec
from chronofed.training import loop

SPEC = """
rounds = 2
[model]
kind = "mlp"
hidden = [4]
[train]
steps = 1
[evaluate]
seen = 20
[method.memory]
kind = "core-set"
size = 3
"""
RECIPE = """
title = "Two"
label = "two"
order = 1
[base]
rounds = 1
[base.model]
kind = "linear"
[base.train]
steps = 1
[scales.cpu]
hours = 0.01
[rows.FedAvg]
[rows.CFL.method.memory]
kind = "core-set"
size = 3
[view]
kind = "summary-table"
"""
ONCE = {"parse": 1, "load": 1, "split": 1, "check": 1}


@pytest.fixture
def count(monkeypatch, tmp_path):
    """Counts of the calls that a run should make once; commands run in ``tmp_path``."""
    calls = Counter()

    def spy(name, owner, attribute):
        original = getattr(owner, attribute)

        def counted(*arguments, **options):
            calls[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, attribute, counted)

    spy("parse", load_spec, "from_table")
    spy("load", settings.Images, "load")
    spy("split", type(Experiment().scenario), "on")
    spy("check", built, "check")
    spy("check", loop, "check")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "two.toml").write_text(RECIPE)
    return calls


@pytest.mark.parametrize("more", [[], ["--samples", "kept.png"]])
def test_run(count, more):
    assert main(["run", "spec.toml", "-o", "run", "-q", *more]) == 0
    assert count == ONCE


@pytest.mark.parametrize("more", [[], ["--samples", "kept.png"]])
@pytest.mark.slow
def test_resume(count, more, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("chronofed.runs.runner.proceed", lambda *_, **__: 1 / 0)
        assert main(["run", "spec.toml", "-o", "run", "-q"]) == 8
    count.clear()
    assert main(["resume", "run", "-q", *more]) == 0
    assert count == ONCE


def test_a_finished_run_needs_no_data(count):
    assert main(["run", "spec.toml", "-o", "run", "-q"]) == 0
    count.clear()
    assert main(["resume", "run", "-q"]) == 0
    assert count == {"parse": 1}


def test_demo(count, monkeypatch):
    monkeypatch.setattr("chronofed.engines.base.usable_cores", lambda: 1)
    assert main(["demo", "--rounds", "1", "--seeds", "1", "-o", "demo", "-q"]) == 0
    assert count == {"load": 2, "split": 2, "check": 2}  # two methods


def test_every_cell_of_a_recipe(count):
    assert main(["paper", "run", "two.toml", "--seeds", "0", "--jobs", "1", "-q"]) == 0
    assert count == {"load": 2, "split": 2, "check": 2}  # two rows


@pytest.mark.slow
def test_every_trial_of_a_sweep(count):
    pytest.importorskip("optuna", reason="needs the extra 'sweep'")
    vary = ["--vary", "train.lr=0.01,0.05", "--trials", "1", "--seeds", "0,1"]
    assert main(["sweep", "spec.toml", *vary, "-q"]) == 0
    # Two options are checked, one trial is run on two seeds, and the best is written.
    assert count == {"parse": 2 + 1 + 1, "load": 2, "split": 2, "check": 2}


@pytest.mark.parametrize("command", [["scenario"], ["profile", "--rounds", "1"]])
def test_other_commands(count, command):
    assert main([command[0], "spec.toml", *command[1:]]) == 0
    assert count == ONCE

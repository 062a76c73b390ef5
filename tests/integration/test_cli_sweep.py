"""``chronofed sweep``: trials are ordinary runs; a search that was stopped goes on."""

import builtins
import json
import tomllib
from functools import partial

import pytest

from chronofed.core.errors import SpecError
from chronofed.runs import runner
from chronofed.studies.sweep import SearchRange, Sweep

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
seen = 50
"""


@pytest.fixture(autouse=True)
def spec(workdir):
    (workdir / "spec.toml").write_text(SPEC)


@pytest.fixture
def call(cli):
    return partial(cli, "sweep", "spec.toml")


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("train.lr=0.01:0.5", SearchRange("train.lr", (), 0.01, 0.5, False)),
        ("train.steps=1:9", SearchRange("train.steps", (), 1.0, 9.0, True)),
        ("train.epoch=present,union", SearchRange("train.epoch", ("present", "union"))),
    ],
)
def test_choices(text, choice):
    assert SearchRange.parse(text) == choice


def test_wide_ranges_are_searched_by_magnitude():
    assert SearchRange.parse("a=0.01:0.1").logarithmic
    assert not SearchRange.parse("a=0.01:0.09").logarithmic
    assert not SearchRange.parse("a=0:100").logarithmic


@pytest.mark.parametrize("text", ["train.lr", "=1,2", "train.lr=", "a=2:1", "a=x:y", "a=1:inf"])
def test_invalid_ranges(text):
    with pytest.raises(SpecError, match="--vary"):
        SearchRange.parse(text)


def test_the_best_is_found_and_written_down(call, tmp_path):
    code, out, err = call("--vary", "train.lr=0.0001,0.05", "--trials", 4, "--seeds", "0,1", "-q")
    assert code == 0
    assert "Trials, best first" in out
    assert "best: -s train.lr=0.05; the whole spec: runs/sweep-spec/best.toml" in err
    best = tomllib.loads((tmp_path / "runs/sweep-spec/best.toml").read_text())
    assert best["train"]["lr"] == 0.05
    runs = list((tmp_path / "runs/sweep-spec").glob("*/summary.json"))
    assert len(runs) == 4  # two values and two seeds, however many trials


def test_a_search_continues_where_it_stopped(call, tmp_path):
    first = json.loads(call("--vary", "train.lr=0.001:0.1", "--trials", 2, "--json")[1])
    assert len(first["trials"]) == 2
    again = json.loads(call("--vary", "train.lr=0.001:0.1", "--trials", 2, "--json")[1])
    assert again == first
    more = json.loads(call("--vary", "train.lr=0.001:0.1", "--trials", 3, "--json")[1])
    assert {t["trial"] for t in more["trials"]} == {0, 1, 2}
    values = [t["value"] for t in more["trials"]]
    assert values == sorted(values, reverse=True)


def test_an_interrupted_trial_is_queued_again(tmp_path):
    sweep = Sweep(tmp_path / "spec.toml", [SearchRange.parse("train.lr=0.01:0.1")], tmp_path / "s")

    def interrupt(number: int, at: runner.Progress) -> None:
        if number == 1 and at.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(3, interrupt)
    with pytest.raises(KeyboardInterrupt):  # and again, when it was queued again
        sweep.run(3, lambda number, at: interrupt(number - 1, at))
    begun = {path.parent.name for path in (tmp_path / "s").glob("*/spec.toml")}
    trials = sweep.run(3)
    assert len(trials) == 3
    assert all(trial.state == "complete" for trial in trials)
    done = {path.parent.name for path in (tmp_path / "s").glob("*/summary.json")}
    assert begun <= done
    assert len(done) == 3


def test_trials_that_fall_behind_are_stopped(tmp_path):
    text = SPEC.replace("rounds = 4", "rounds = 8")
    (tmp_path / "spec.toml").write_text(text)
    sweep = Sweep(
        tmp_path / "spec.toml", [SearchRange.parse("train.lr=0.000001:0.1")], tmp_path / "s"
    )
    trials = sweep.run(14)
    pruned = [trial for trial in trials if trial.state == "pruned"]
    complete = [trial for trial in trials if trial.state == "complete"]
    assert pruned
    assert len(complete) >= 5
    assert all(trial.value is not None for trial in complete)
    assert trials[: len(complete)] == complete


def test_divergence_is_a_result(call):
    code, out, _ = call("--vary", "train.lr=0.05,1e30", "--trials", 6, "-s", "train.steps=5")
    assert code == 0
    assert any("1e30" in line and "diverged" in line for line in out.splitlines())
    code, _, err = call("--vary", "train.lr=1e30,1e31", "--trials", 1, "-o", "wild")
    assert code == 7
    assert "all trials diverged" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--vary", "train.lrr=0.1,0.2"], "train.lrr: unknown key"),
        (["--vary", "train.lr=0.1,-1"], "train.lr"),
        (["--vary", "train.lr=-1:0.5"], "train.lr"),
        (["--vary", "train.lr=0.1", "--trials", "0"], "--trials: expected a number >= 1"),
        (["--vary", "train.lr=0.1", "--measure", "fun"], "--measure: no 'fun' in the summary"),
        (["--vary", "train.lr=0.1", "--seeds", "x"], "--seeds: expected numbers"),
    ],
)
def test_what_is_wrong_is_one_line(call, arguments, complaint):
    code, out, err = call(*arguments, "-q")
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_without_optuna_the_message_says_what_to_install(call, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "optuna":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    code, _, err = call("--vary", "train.lr=0.1")
    assert code == 6
    assert "a sweep needs optuna: pip install 'chronofed[sweep]'" in err

"""``chronofed sweep``: trials are ordinary runs; a search that was stopped goes on."""

import builtins
import json
import tomllib
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from chronofed.core.errors import SpecError
from chronofed.core.types import Samples
from chronofed.data import registry
from chronofed.runs import runner
from chronofed.runs.load_spec import load
from chronofed.studies.search_range import SearchRange
from chronofed.studies.sweep import OnRound, Sweep

pytestmark = pytest.mark.usefixtures("tiny_spec")


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


def test_a_trial_is_judged_by_all_its_seeds(tmp_path, monkeypatch):
    """The value of a trial is the mean over seeds."""
    summaries = {0: 0.5, 1: 0.1, 2: 0.9}
    monkeypatch.setattr(
        Sweep, "_summary", lambda self, one, *_: {"anytime": summaries[one.seed], "last": 1.0}
    )
    sweep = Sweep(
        tmp_path / "spec.toml", [SearchRange("train.lr", ("0.1",))], tmp_path, seeds=(1, 0, 2)
    )
    trial = SimpleNamespace(
        suggest_categorical=lambda key, options: options[0], set_user_attr=lambda key, value: None
    )
    assert sweep._value(trial, lambda number, progress: None) == pytest.approx(0.5)


def test_the_best_is_found_and_written_down(call, tmp_path):
    code, out, err = call("--vary", "train.lr=0.0001,0.05", "--trials", 4, "--seeds", "0,1", "-q")
    assert code == 0
    assert "Trials, best first" in out
    assert "best: -s train.lr=0.05; the whole spec: runs/sweep-spec/best.toml" in err
    best = tomllib.loads((tmp_path / "runs/sweep-spec/best.toml").read_text())
    assert best["train"]["lr"] == 0.05
    # The best is for a run on the test rows, with the specification's own split.
    assert (best["evaluate"]["on"], best["data"]["validation"]) == ("test", 0.0)
    runs = list((tmp_path / "runs/sweep-spec").glob("*/summary.json"))
    assert len(runs) == 4  # two values and two seeds, however many trials


@pytest.mark.slow
def test_a_search_continues_where_it_stopped(call, tmp_path):
    first = json.loads(call("--vary", "train.lr=0.001:0.1", "--trials", 2, "--json")[1])
    assert len(first["trials"]) == 2
    again = json.loads(call("--vary", "train.lr=0.001:0.1", "--trials", 2, "--json")[1])
    assert again == first
    more = json.loads(call("--vary", "train.lr=0.001:0.1", "--trials", 3, "--json")[1])
    assert {t["trial"] for t in more["trials"]} == {0, 1, 2}
    values = [t["value"] for t in more["trials"]]
    assert values == sorted(values, reverse=True)


@pytest.mark.slow
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


@pytest.mark.parametrize(("trials", "stops"), [(3, (4, 6)), (9, (4, 11, 6, 9, 3))])
@pytest.mark.slow
def test_a_search_that_was_stopped_tries_the_same_values(tmp_path, trials, stops, tiny_spec):
    """It was stopped in the middle of runs, of which some are stopped early by the search itself."""
    text = tiny_spec.replace("rounds = 4", "rounds = 6\ncheckpoint.every = 2")
    (tmp_path / "spec.toml").write_text(text)
    ranges = [SearchRange.parse("train.lr=0.000001:0.1")]
    straight = Sweep(tmp_path / "spec.toml", ranges, tmp_path / "straight").run(trials)
    assert trials < 9 or any(trial.state == "pruned" for trial in straight)
    stopped = Sweep(tmp_path / "spec.toml", ranges, tmp_path / "stopped")

    def stop_after(rounds: int) -> OnRound:
        left = iter(range(rounds))

        def on_round(number: int, at: runner.Progress) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        return on_round

    for rounds in stops:
        with pytest.raises(KeyboardInterrupt):
            stopped.run(trials, stop_after(rounds))
    found = stopped.run(trials)
    assert [(t.settings, t.value, t.state) for t in found] == [
        (t.settings, t.value, t.state) for t in straight
    ]


@pytest.mark.slow
def test_trials_that_fall_behind_are_stopped(tmp_path, tiny_spec):
    text = tiny_spec.replace("rounds = 4", "rounds = 8")
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


@pytest.fixture
def scramble(monkeypatch):
    """Scramble the labels of all test images from now on."""
    load = registry.load

    def scrambled(*arguments):
        data = load(*arguments)
        labels = data.test.y[
            torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))
        ]
        return replace(data, test=Samples(data.test.x, labels))

    return lambda: monkeypatch.setattr(registry, "load", scrambled)


ONE = ("--vary", "train.lr=0.05", "--trials", 1)


@pytest.mark.slow
def test_scrambled_test_labels_change_a_value_only_if_asked_for(call, scramble, tmp_path):
    first = json.loads(call(*ONE, "--json", "-o", "one")[1])
    seen = json.loads(call(*ONE, "--json", "--on-test", "-o", "seen")[1])
    scramble()
    again = json.loads(call(*ONE, "--json", "-o", "two")[1])
    assert first["scored_on"] == again["scored_on"] == "validation"
    assert first["trials"] == again["trials"]
    _, out, err = call(*ONE, "--on-test", "-o", "three")
    assert "trials are scored on test rows, which cannot judge the result any more" in err
    assert "anytime (test)" in out
    head = (tmp_path / "three/best.toml").read_text().splitlines()[0]
    assert "on test rows" in head
    # The comparison above could have failed: with test rows the value is another.
    assert f"anytime = {seen['trials'][0]['value']!r}" not in head


def test_scrambled_test_rows_of_a_table_do_not_change_a_value(tmp_path):
    lines = [f"{'ab'[k % 2]},{k},{int(k % 7 > 3)},{k % 7}" for k in range(120)]
    (tmp_path / "table.toml").write_text(
        '[data]\nkind = "table"\npath = "t.csv"\nperiod = "40"\ntask = "classification"\n'
        'test = 0.2\n[evaluate]\nprotocol = "holdout"\n'
        '[scenario]\nkind = "periods"\n[model]\nkind = "linear"\n'
    )

    def values(lines, folder):
        (tmp_path / "t.csv").write_text("\n".join(["client,time,y,f", *lines]))
        ranges = [SearchRange.parse("train.lr=0.01,0.3")]
        sweep = Sweep(tmp_path / "table.toml", ranges, tmp_path / folder)
        return [trial.value for trial in sweep.run(2)]

    first = values(lines, "one")
    # Turn the labels of all test rows round.
    settings = Sweep(tmp_path / "table.toml", [], tmp_path).experiment([]).data
    numbered = [f"{'ab'[k % 2]},{k},{k},{k % 7}" for k in range(120)]
    (tmp_path / "t.csv").write_text("\n".join(["client,time,y,f", *numbered]))
    whole = settings.load(None, 0)
    times = {int(whole.classes[y]) for y in whole.test.y}
    turned = [
        f"{'ab'[k % 2]},{k},{int(k % 7 <= 3 if k in times else k % 7 > 3)},{k % 7}"
        for k in range(120)
    ]
    assert sum(one != other for one, other in zip(lines, turned, strict=True)) == len(times) == 24
    assert values(turned, "two") == first


def test_a_sweep_says_what_trials_are_scored_on_and_stays_with_it(call, tmp_path, tiny_spec):
    (tmp_path / "spec.toml").write_text(f'{tiny_spec}[data]\nkind = "images"\nvalidation = 0.3\n')
    _, out, err = call(*ONE)
    assert "trials are scored on validation rows (0.3 of the training rows)" in err
    assert "anytime (validation)" in out
    text = (tmp_path / "runs/sweep-spec/best.toml").read_text()
    assert "on validation rows (0.3 of the training rows)" in text.splitlines()[0]
    best = tomllib.loads(text)
    assert (best["evaluate"]["on"], best["data"]["validation"]) == ("test", 0.3)
    code, _, err = call(*ONE, "--on-test", "-q")
    assert code == 2
    assert "its trials were scored on validation rows; choose another folder (-o)" in err


@pytest.mark.slow
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
        (["--vary", "evaluate.on=test,validation"], "scored on the same rows"),
        (["--vary", "train.lr=0.1,-1"], "train.lr"),
        (["--vary", "train.lr=-1:0.5"], "train.lr"),
        (["--vary", "train.lr=0.1", "--trials", "0"], "--trials: expected a number >= 1"),
        (
            ["--vary", "train.lr=0.1", "--measure", "fun"],
            "--measure fun: not in a summary; use one of best5,",
        ),
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


def test_a_sweep_over_time_sees_the_first_half_of_the_periods_only(tmp_path):
    (tmp_path / "table.toml").write_text(
        '[data]\nkind = "table"\npath = "t.csv"\nperiod = "20"\nfit_periods = 1\n'
        '[scenario]\nkind = "periods"\n[model]\nkind = "linear"\n'
    )

    def trials(turned, folder):
        lines = [
            f"{'ab'[k % 2]},{k},{int((k % 7 > 3) != (turned and k >= 60))},{k % 7}"
            for k in range(120)
        ]
        (tmp_path / "t.csv").write_text("\n".join(["client,time,y,f", *lines]))
        ranges = [SearchRange.parse("train.lr=0.01,0.3")]
        sweep = Sweep(tmp_path / "table.toml", ranges, tmp_path / folder)
        assert sweep.scored_on() == "the next period, in the first 50% of the periods"
        return sweep, sweep.run(2)

    sweep, found = trials(False, "one")
    assert [t.value for t in trials(True, "two")[1]] == [t.value for t in found]
    best = tomllib.loads(sweep.save(found[0]).read_text())
    # It is judged by the periods that it was not chosen by.
    assert best["evaluate"]["skip"] == 3
    assert (best["evaluate"]["on"], best["evaluate"]["baselines"]) == ("test", "auto")
    summary = runner.run(load(tmp_path / "one" / "best.toml"), tmp_path / "run")
    assert summary["baselines"]["periods"] == 3

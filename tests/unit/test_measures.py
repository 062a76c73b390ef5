"""The registry of measures: one entry decides everything, for ours and for a user's own."""

import io
import re
import sys
from importlib.resources import files

import pytest
from rich.console import Console

from chronofed import Experiment, Linear, Measure, Method, Train
from chronofed.cli.progress import latest_table
from chronofed.core.errors import RunError, SpecError, UserCodeError
from chronofed.reports.groups import groups
from chronofed.reports.payload import build_payload
from chronofed.reports.runs import RunView
from chronofed.reports.terminal.comparison import comparison
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.measure import Column, read_displays
from chronofed.training.measures import BY_KEY, MEASURES, OPTIONAL, columns, of_tasks
from chronofed.training.summary import summarise

MODULE = """
from chronofed import Measure

calls = []
def count(evaluation):
    assert evaluation.logits.shape == (len(evaluation.labels), 10)
    assert ((evaluation.logits.argmax(1) == evaluation.labels).numpy() == evaluation.test.correct).all()
    return (~evaluation.test.correct).sum()  # a NumPy integer

WRONG = Measure(key="wrong", title="Wrong <b>answers</b>", better="lower", label="[b]wrong", digits=0,
                summary=("best5", "last"), compute=count)

def nothing():
    return Measure(key="nothing", title="Nothing", compute=lambda evaluation: None)

TAKEN = Measure(key="test_loss", title="Loss")
BROKEN = Measure(key="broken", title="Broken", compute=lambda evaluation: 1 / 0)
NUMBER = 7
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_measures.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_measures", None)


def start(path, *names):
    evaluate = Evaluate(measures=tuple(f"own_measures:{name}" for name in names))
    experiment = Experiment(rounds=2, model=Linear(), train=Train(steps=1), evaluate=evaluate)
    return runner.create(build(experiment), path)


def test_keys_are_unique_and_described():
    assert len(BY_KEY) == len(MEASURES) + len(OPTIONAL)
    assert all(measure.title and measure.description for measure in BY_KEY.values())


def test_positions_are_unique_at_every_place():
    for place in ("progress", "table", "curves", "summary"):
        positions = [measure.shown[place] for measure in MEASURES if place in measure.shown]
        assert len(positions) == len(set(positions)), place


def test_recipes_name_measures_that_exist():
    summary = {m.summary_key(s) for m in MEASURES if "summary" in m.shown for s in m.summary}
    known = {*BY_KEY, *summary}
    named = set()
    for path in files("chronofed.studies").joinpath("recipes").iterdir():
        text = path.read_text(encoding="utf-8") if path.name.endswith(".toml") else ""
        named |= set(re.findall(r'^(?:measure|other|left|right) = "(\w+)"', text, re.MULTILINE))
    assert named
    assert named <= known


def test_columns_of_the_table():
    assert [
        (c.key, c.heading, c.scale, c.digits, c.better)
        for c in columns(of_tasks(["classification"]))
    ] == [
        ("best5", "mean of best 5 %", 100, 2, "higher"),
        ("last", "last %", 100, 2, "higher"),
        ("anytime", "anytime %", 100, 2, "higher"),
        ("last_forgetting", "forgetting %", 100, 2, "lower"),
        ("seconds", "seconds", 1, 1, "lower"),
        ("last_test_loss", "test loss", 1, 3, "lower"),
        ("last_seen_loss", "seen loss", 1, 3, "lower"),
        ("last_information_loss", "information loss", 1, 3, "lower"),
        ("traffic", "traffic MB", 1e-6, 1, "lower"),
    ]


def test_everything_that_is_recorded_is_registered(task, scenario, train_for):
    measures = Evaluator(task, scenario, Method(), Evaluate(), seed=0)(
        train_for(Method(), 2)
    ).measures
    assert set(measures) <= {"round", *BY_KEY}
    order = [key for key in BY_KEY if key in measures]
    assert list(measures) == ["round", *order]


def test_statistics_follow_the_direction():
    low = Measure(
        key="low", title="Low", better="lower", summary=("best5", "last", "anytime", "falls")
    )
    history = [{"round": t, "low": float(t)} for t in range(10)]
    summary = summarise(history, [low])
    assert summary["best5_low"] == 2.0  # the mean of 0 to 4
    assert summary["anytime_low"] == 4.5
    assert (summary["last_low"], summary["falls_low"]) == (9.0, 0)
    assert [c.heading for c in low.columns()] == ["mean of best 5 low", "last low", "anytime low"]


def test_units():
    sent = Measure(key="sent", title="Sent", unit="bytes")
    assert (sent.progress_heading, sent.progress_text(2_500_000)) == ("sent MB", "2.5")
    assert sent.columns() == [Column("last_sent", "sent MB", 1e-6, 1, None)]


def test_an_own_measure_is_shown_everywhere(tmp_path):
    run = start(tmp_path / "run", "WRONG", "nothing")
    summary = runner.resume(run)
    line = run.history()[-1]
    assert line["wrong"] == round((1 - line["test_accuracy"]) * 2000)
    assert "nothing" not in line
    assert summary["last_wrong"] == line["wrong"]
    assert "best5_wrong" in summary
    sys.modules.pop("own_measures")
    (tmp_path / "own_measures.py").unlink()  # a reader needs no module
    found = groups([RunView.read(run.path)])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(comparison(found))
    assert "mean of best 5 [b]wrong" in console.export_text()
    payload = build_payload(found, "t")
    assert {
        "key": "last_wrong",
        "heading": "last [b]wrong",
        "digits": 0,
        "better": "lower",
        "scale": 1.0,
    } in payload["columns"]
    assert payload["groups"][0]["cells"]["last_wrong"]["mean"] == line["wrong"]
    curve = next(measure for measure in payload["measures"] if measure["key"] == "wrong")
    assert (curve["title"], curve["unit"]) == ("Wrong <b>answers</b>", "")
    assert curve["curves"][0]["y"][-1] == line["wrong"]
    assert "wrong" in table_text([("run", line)], found[0].runs[0].own_measures)


def table_text(evaluations, own):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(latest_table(evaluations, (*MEASURES, *own)))
    return console.export_text()


def test_an_unfinished_run_is_summarised_with_its_own_measures(tmp_path):
    run = start(tmp_path / "run", "WRONG")
    runner.resume(run)
    (run.path / "summary.json").unlink()
    assert RunView.read(run.path).summary["last_wrong"] == run.history()[-1]["wrong"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("own_measures:TAKEN", "the key 'test_loss' is taken"),
        ("own_measures:MISSING", "cannot import 'own_measures:MISSING'"),
        ("own_measures:NUMBER", "'own_measures:NUMBER' is a int, not a Measure"),
        ("no_such_module:X", "No module named 'no_such_module'"),
        ("own_measures", r"use 'package\.module:NAME' or one of macro_f1"),
        ("macro_fi", r"did you mean 'macro_f1'\?"),
        ("builtins:dict", "is a dict, not a Measure"),
    ],
)
def test_what_is_no_measure_is_refused_before_training(tmp_path, name, complaint):
    with pytest.raises(SpecError, match=f"evaluate.measures: .*{complaint}"):
        build(Experiment(rounds=2, evaluate=Evaluate(measures=(name,))))
    assert not (tmp_path / "run").exists()


def test_a_measure_that_fails_is_named(tmp_path):
    with pytest.raises(UserCodeError, match=r"'broken' failed: ZeroDivisionError") as caught:
        start(tmp_path / "run", "BROKEN")
    assert "own_measures.py" in caught.value.frames
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings", [{"key": "Not a key"}, {"unit": "parsecs"}, {"shown": {"nowhere": 1}}]
)
def test_a_measure_checks_itself(settings):
    with pytest.raises(SpecError, match="measure"):
        Measure(**{"key": "key", "title": "Title", **settings})


@pytest.mark.parametrize("content", [[{"key": "a"}], [7], {"a": 1}, [{"key": "A", "title": "x"}]])
def test_damaged_displays_are_named(content):
    with pytest.raises(RunError, match=r"measures\.json is damaged"):
        read_displays(content)


def test_what_a_method_reports_without_an_entry_is_recorded(task, scenario, train_for, monkeypatch):
    method = Method()
    monkeypatch.setattr(type(method.backbone), "report", lambda self, rounds: {"own_number": 3.0})
    found = Evaluator(task, scenario, method, Evaluate(), seed=0)(train_for(method, 1))
    assert found.measures["own_number"] == 3.0


def test_runs_without_own_measures_have_no_file(tmp_path):
    run = start(tmp_path / "run")
    runner.resume(run)
    assert not (run.path / "measures.json").exists()
    assert RunDirectory(run.path).measures() == ()

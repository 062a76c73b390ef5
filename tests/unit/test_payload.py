"""The payload of pages, as plain data."""

import base64
import json
import math
import random
import re

import numpy as np
import pytest

from chronofed import CoreSet, Experiment, Method
from chronofed.reports.groups import groups
from chronofed.reports.payload import SECTIONS, build_payload
from chronofed.reports.runs import RunView
from chronofed.reports.web.page import asset, render
from chronofed.runs import RunDirectory
from chronofed.training.summary import summarise
from tests.helpers.pages import content_of

SCENARIO = {
    "rounds": 10,
    "clients": 2,
    "returning": True,
    "classes": ["cat", "dog"],
    "shown": [0, 5],
    "held": [[[0, [[0, 5]]], None], [[1, [[1, 2]]], [0, [[0, 1], [1, 1]]]]],
}


def write(path, history, periods=(), weights=(), scenario=None, **settings):
    run = RunDirectory.create(
        path, Experiment(**settings).resolved(), {"python": "3", "command": ["x"]}
    )
    for name, lines in (
        ("metrics", history),
        ("period_accuracy", periods),
        ("round_weights", weights),
    ):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if scenario:
        run.describe_scenario(scenario)
    run.finish(summarise(history) | {"seconds": 2.0})
    return RunView.read(path)


def history(rounds, seed=0, **more):
    draw = random.Random(seed)
    return [
        {"round": t, "test_accuracy": draw.random(), "test_loss": draw.random(), **more}
        for t in range(1, rounds + 1)
    ]


def test_everything_that_a_page_shows(tmp_path):
    periods = [
        {
            "round": 1,
            "basis": "rows",
            "pairs": 3,
            "accuracy": [[0, 4, 0.5]],
            "held": [[0, 4, [[1, 1.0]]]],
            "tested": [6],
        }
    ]
    weights = [{"round": 1, "present": 0.5, "past": [0.5], "older": 0.0}]
    shared = {"periods": periods, "scenario": SCENARIO}
    one = write(tmp_path / "a", history(3), **shared, name="A")
    two = write(tmp_path / "b", history(3, 1), **shared, name="A", seed=1)
    method = Method(memory=CoreSet(5))
    three = write(tmp_path / "c", history(3), periods, weights, SCENARIO, name="B", method=method)
    content = build_payload(groups([one, two, three]), "Title")
    assert content["subtitle"] == "2 experiments, 3 runs on fashion-mnist-mini"
    assert [g["name"] for g in content["groups"]] == ["A", "B"]
    assert [run["seed"] for run in content["groups"][0]["runs"]] == [0, 1]
    assert {m["key"] for m in content["measures"]} == {"test_accuracy", "test_loss"}
    accuracy = content["measures"][0]["curves"]
    assert accuracy[0]["x"] == [1, 2, 3]
    assert "d" in accuracy[0]
    assert "d" not in accuracy[1]  # one run has no deviation
    # rounded once, to the digits that the page shows
    shown = [float(f"{100 * h['test_accuracy']:.4g}") for h in three.history]
    assert accuracy[1]["y"] == shown
    assert [t["label"] for t in content["periods"]] == ["A, seed 0", "A, seed 1", "B, seed 0"]
    assert content["periods"][0]["held"] == [[1, 100]]
    assert content["periods"][0]["pairs"] == [0, 4]
    assert content["periods"][0]["names"] == {"classes": ["cat", "dog"]}
    (table,) = [table for table in content["periods"] if table["label"] == "B, seed 0"]
    assert (table["basis"], table["tested"]) == ("rows", [6])
    assert (table["followed"], table["seen"]) == (1, 3)
    assert np.frombuffer(base64.b64decode(table["accuracy"]), "<u2").tolist() == [5000]
    assert content["weights"][0]["label"] == "B, seed 0"
    (scenario,) = content["scenarios"]  # the same for all
    assert scenario["of"] == ["0:0", "0:1", "1:0"]
    assert content["periods"][2]["scenario"] == 0
    assert content["differences"]["method.memory.kind"] == ["forget", "core-set"]
    assert content["environments"][0]["about"] == {"python": "3"}
    json.dumps(content, allow_nan=False)


def test_every_section_of_the_payload_has_its_part_on_the_page():
    registered = re.findall(r'cf\.addSection\(\{\s+id: "(\w+)"', asset("sections.js"))
    assert registered == list(SECTIONS)


def test_numbers_that_are_not_finite_are_gaps(tmp_path):
    lines = [{"round": 1, "test_accuracy": 0.5, "test_loss": math.inf}, *history(2)[1:]]
    content = build_payload(groups([write(tmp_path / "a", lines)]), "t")
    assert content["measures"][1]["curves"][0]["y"][0] is None
    json.dumps(content, allow_nan=False)


@pytest.mark.parametrize(
    ("runs", "pairs", "evaluations", "tables"),
    [
        (8, 210, 6, 8),
        pytest.param(20, 210, 24, 20, marks=pytest.mark.slow),
        pytest.param(20, 1500, 4, 8, marks=pytest.mark.slow),
        pytest.param(1, 3000, 24, 1, marks=pytest.mark.slow),
    ],
)
def test_a_report_stays_small(tmp_path, runs, pairs, evaluations, tables):
    """Twenty runs that differ in everything: the worst case for a page of one megabyte."""
    draw = random.Random(0)
    more = dict.fromkeys(
        ("seen_accuracy", "seen_loss", "forgetting", "information_loss"), 0.123456789
    )
    views = []
    for k in range(runs):
        periods = [
            {
                "round": t,
                "accuracy": [[p % 7, p // 7, round(draw.random(), 5)] for p in range(pairs)],
                "basis": "classes",
                "tested": [2000] * pairs if t == 1 else [],
                "pairs": pairs,
                "held": [[p % 7, p // 7, [[1, 0.52], [2, 0.48]]] for p in range(pairs)]
                if t == 1
                else [],
            }
            for t in range(1, evaluations + 1)
        ]
        scenario = SCENARIO | {"rounds": k, "held": [[[0, [[1, 10]] * 10]] * 40] * 24}
        lines = history(400, k, **more)
        views.append(
            write(tmp_path / str(k), lines, periods, (), scenario, name=f"m{k}", rounds=900 + k)
        )
    page = render(groups(views), "large")
    assert len(page.encode()) < 1_000_000
    content = build_payload(groups(views), "large")
    assert len(content["measures"][0]["curves"][0]["x"]) >= 100
    assert len(content["periods"]) == tables
    assert content["periods_left_out"] == runs - tables  # and the page says so
    assert len(content["scenarios"]) >= 1
    assert content["scenarios_in_all"] == runs


@pytest.mark.slow
def test_500_experiments_stay_below_two_megabytes(tmp_path):
    """Experiments that differ in every curve and every weight: the worst case."""
    draw = random.Random(0)
    keys = ("seen_accuracy", "seen_loss", "forgetting", "information_loss", "bytes_up")
    views = []
    for k in range(500):
        lines = history(60, k)
        for line in lines:
            line.update({key: draw.random() for key in keys})
        weights = [
            {"round": t, "present": draw.random(), "past": [draw.random() for _ in range(30)], "older": 0.0}
            for t in range(1, 31)
        ]  # fmt: skip
        method = Method(memory=CoreSet(k + 1))
        views.append(
            write(tmp_path / str(k), lines, (), weights, SCENARIO, name=f"m{k}", method=method)
        )
    found = groups(views)
    page = render(found, "many")
    assert len(page.encode()) < 2_000_000
    content = build_payload(found, "many")
    lengths = {m["key"]: len(m["curves"][0]["x"]) for m in content["measures"]}
    assert lengths.pop("test_accuracy") > 30  # the measure that ranks them has more points
    assert min(lengths.values()) >= 12
    assert all(m["points"] for m in content["measures"])  # and the page says that there are fewer
    (first, *_) = content["weights"]
    assert len(first["rounds"]) >= 12
    for round_, past, older in zip(first["rounds"], first["past"], first["older"], strict=True):
        line = views[0].record("round_weights")[round_ - 1]
        assert past == [float(f"{weight:.4g}") for weight in line["past"][: len(past)]]
        assert older == pytest.approx(sum(line["past"][len(past) :]), rel=1e-3)
    assert content_of(page) == json.loads(json.dumps(content))

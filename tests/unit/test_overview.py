"""The first screen as plain data, and its numbers in every other place."""

import base64
import csv
import io
import json
import re
import statistics

import numpy as np
import pytest
from rich.console import Console

from chronofed import CoreSet, Experiment, Method
from chronofed.cli.compare import as_json
from chronofed.reports.by_client import by_client, recalls
from chronofed.reports.groups import groups
from chronofed.reports.main_chart import calendar
from chronofed.reports.overview import overview, provenance
from chronofed.reports.payload import build_payload
from chronofed.reports.results_table import results_table
from chronofed.reports.runs import RunView
from chronofed.reports.spread import rounded
from chronofed.reports.terminal.comparison import comparison
from chronofed.reports.terminal.sentences import sentences
from chronofed.reports.web.page import render
from chronofed.runs import RunDirectory
from chronofed.training.summary import summarise
from tests.helpers.scenes import write_run


@pytest.fixture
def demo(tmp_path):
    paths = [write_run(tmp_path / f"plain-{s}", "FedAvg", s) for s in range(3)]
    paths += [write_run(tmp_path / f"core-{s}", "Core", s, memory=20) for s in range(3)]
    return groups([RunView.read(path) for path in paths])


def with_records(path, name="run", seed=0, scenario=None, memory=None, **records):
    method = Method(memory=CoreSet(memory)) if memory else Method()
    experiment = Experiment(name=name, seed=seed, rounds=4, method=method)
    run = RunDirectory.create(path, experiment.resolved(), {})
    lines = [{"round": r, "test_accuracy": r / 10, "test_loss": 1.0} for r in (1, 2, 3)]
    for record, content in {"metrics": lines, **records}.items():
        (path / f"{record}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in content))
    if scenario:
        run.describe_scenario(scenario)
    run.finish(summarise(lines) | {"seconds": 1.0})
    return RunView.read(path)


def periods(round_, accuracy, basis="rows", tested=(), held=()):
    return {
        "round": round_, "basis": basis, "pairs": len(accuracy), "accuracy": accuracy,
        "held": [[c, k, h] for (c, k, _), h in zip(accuracy, held or [[[0, 1.0]]] * 9, strict=False)],
        "tested": list(tested) or [1] * len(accuracy),
    }  # fmt: skip


def test_numbers_agree_to_the_last_digit_everywhere(demo):
    console = Console(width=250, file=io.StringIO(), record=True)
    console.print(comparison(demo, width=250))
    terminal, page = console.export_text(), build_payload(demo, "t")
    table = results_table(demo)
    (header, *rows) = list(csv.reader(io.StringIO(page["downloads"]["csv"])))
    assert page["downloads"]["tex"] == table.latex()
    for group, row, shown in zip(demo, rows, page["groups"], strict=True):
        found = as_json(group)
        for heading, text in list(zip(header, row, strict=True))[2:]:
            (column,) = [c for c in page["columns"] if c["heading"] == heading]
            assert shown["cells"][column["key"]]["text"] == text
            assert text in terminal
            latex = text.replace("±", r"$\pm$")
            assert latex in page["downloads"]["tex"]
            scale = {"%": 100.0, "B": 1e-6}.get(heading[-1], 1.0)
            if column["key"] in found["mean"]:
                mean = found["mean"][column["key"]]
                assert text.split(" ")[0] == rounded(mean, column["digits"], scale)


def test_the_verdict_is_the_same_in_the_report_and_the_terminal(demo):
    about = build_payload(demo, "t")["overview"]["verdict"]
    lines = [
        about["headline"] + ".",
        about["clear"],
        about["unresolved"],
        *about["failures"],
        *about["remarks"],
    ]
    assert sentences(demo).plain.splitlines() == [line for line in lines if line]
    page = render(demo, "t")
    assert f"<h1>{about['headline']}</h1>" in page


def test_the_headline_is_that_of_recomputed_statistics(demo):
    """Every number of the headline, from the summaries alone."""
    about = overview(demo)
    plain, core = ([run.summary for run in group.runs] for group in demo)
    for one in about["differences"]:
        gaps = [c[one["key"]] - p[one["key"]] for c, p in zip(core, plain, strict=True)]
        scale = 100 if one["points"] else 1
        assert one["mean"] == pytest.approx(scale * statistics.fmean(gaps))
        error = statistics.stdev(gaps) / 3**0.5
        ends = [scale * (statistics.fmean(gaps) + side * 4.302653 * error) for side in (-1, 1)]
        assert one["ends"] == pytest.approx(ends, rel=1e-5)
        assert one["resolved"] == (ends[0] > 0 or ends[1] < 0)
        assert [value for _, value in one["seeds"]] == pytest.approx([scale * g for g in gaps])
    resolved = {one["key"]: one for one in about["differences"] if one["resolved"]}
    numbers = re.findall(r"(\d+\.\d) points", about["verdict"]["headline"])
    assert numbers == [
        f"{abs(resolved[key]['mean']):.1f}" for key in ("last_forgetting", "anytime")
    ]


def test_seeds_are_thin_and_the_worst_client_is_named(demo):
    about = overview(demo)
    assert [len(seeds) for seeds in about["main"]["seeds"]] == [3, 3]
    series = demo[0].runs[1].series("test_accuracy")
    shown = about["main"]["seeds"][0][1]
    assert shown["x"] == series[0].astype(int).tolist()
    assert shown["y"] == [float(f"{100 * value:.4g}") for value in series[1]]
    (plain, core) = about["clients"]["rows"]
    assert plain["worst"][0].startswith("client 3, seed ")  # who forgets by construction
    assert plain["worst"][1] == min(value for _, value in plain["values"])
    assert len(plain["values"]) == 15
    assert plain["worst"][1] < core["worst"][1]


def test_accuracy_by_client_weighs_its_rows(tmp_path):
    lines = [periods(3, [[0, 0, 0.5], [0, 1, 1.0], [1, 0, 0.2]], tested=(1, 3, 2))]
    about, found = by_client(with_records(tmp_path / "a", period_accuracy=lines))
    assert about == "its own test rows, after the last round"
    assert found == pytest.approx({0: 0.875, 1: 0.2})


def test_forecasts_of_a_client_are_taken_together(tmp_path):
    lines = [
        {"round": 1, "period": "March", "rows": 3, "clients": [[0, 2, 0.5], [1, 1, 1.0]]},
        {"round": 2, "period": "April", "rows": 2, "clients": [[0, 2, 1.0]]},
    ]
    about, found = by_client(with_records(tmp_path / "a", breakdown=lines))
    assert about.startswith("next period")
    assert found == pytest.approx({0: 0.75, 1: 1.0})


def test_recalls_by_class(tmp_path):
    lines = [{"round": 1, "rows": 3, "classes": [[0.1, 0.4, 0.2, 3], [0.0, 0.0, 0.0, 0]]}]
    assert recalls(with_records(tmp_path / "a", breakdown=lines)) == {1: {0: 0.4}}
    # a data set of one class is measured on that class; a mixed one says nothing of a single class
    held = [[[1, 1.0]], [[0, 0.5], [1, 0.5]]]
    lines = [periods(2, [[0, 0, 0.7], [0, 1, 0.1]], "classes", held=held)]
    assert recalls(with_records(tmp_path / "b", period_accuracy=lines)) == {2: {1: 0.7}}
    lines = [periods(2, [[0, 0, 0.7]], "rows")]
    assert recalls(with_records(tmp_path / "c", period_accuracy=lines)) == {}


def test_maps_of_classes_are_means_over_seeds_each_of_its_own_runs(tmp_path):
    views = [
        with_records(
            tmp_path / f"{name}{seed}", name, seed, memory=memory,
            breakdown=[{"round": 1, "rows": 1, "classes": [[0, share + seed / 10, 0, 1]]}],
        )
        for name, memory, share in (("A", None, 0.1), ("B", 5, 0.7))
        for seed in (0, 1)
    ]  # fmt: skip
    maps = overview(groups(views))["classes"]["maps"]
    numbers = [np.frombuffer(base64.b64decode(m["values"]), "<u2").tolist() for m in maps]
    assert [m["group"] for m in maps] == [0, 1]
    assert numbers == [[1500], [7500]]


SCENARIO = {"rounds": 4, "clients": 2, "returning": True, "classes": [], "shown": [], "held": []}


def test_the_calendar_names_rounds(tmp_path):
    named = SCENARIO | {"period_names": ["March", "April"], "client_names": ["Bonn", "Köln"]}
    one = with_records(tmp_path / "a", scenario=named)
    assert calendar(groups([one])) == {"names": ["March", "April"], "length": 2, "ahead": 0}
    two = with_records(tmp_path / "b", name="other", scenario=SCENARIO, memory=5)
    assert calendar(groups([one, two])) is None


def test_where_it_comes_from(demo):
    line = provenance(demo)
    assert re.search(r"· \d{4}-\d\d-\d\d ·", line)
    assert line.startswith("fashion-mnist-mini · 5 clients · 160 rounds · 3 seeds")
    assert line.endswith("all 6 runs finished")


def test_the_price_is_beside_the_gain(demo):
    tiles = {tile["label"]: tile for tile in overview(demo)["tiles"]}
    assert tiles["price"] == {"label": "price", "value": "±0 %", "about": "time, same traffic"}
    assert tiles["anytime"]["about"].startswith("instead of ")

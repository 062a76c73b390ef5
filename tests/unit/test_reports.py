"""Reports are made from records alone, and show what users wrote as text."""

import io
import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from chronofed import Experiment
from chronofed.records import RunDirectory
from chronofed.reports.chart import Line, _Axis, chart
from chronofed.reports.html import render
from chronofed.reports.terminal import COLUMNS, cell, comparison
from chronofed.reports.view import RunView, groups


@pytest.fixture
def make_run(tmp_path):
    def make_run(
        name: str, seed: int, accuracies: list[float], rounds: int = 9, finish: bool = True
    ):
        experiment = Experiment(name=name, seed=seed, rounds=rounds)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        run = RunDirectory.create(path, experiment.resolved(), {})
        for k, accuracy in enumerate(accuracies, start=1):
            run.append({"round": k, "test_accuracy": accuracy, "test_loss": 1.0}, {"total": 2.0})
        if finish:
            view = RunView.read(path)
            run.finish(view.summary)
        return RunView.read(path)

    return make_run


def test_repetitions_are_put_together(make_run):
    runs = [make_run("a", seed, [0.1, value]) for seed, value in enumerate((0.2, 0.4))]
    (group,) = groups(runs)
    assert group.name == "a"
    mean, deviation = group.mean_and_deviation("last")
    assert mean == pytest.approx(0.3)
    assert deviation == pytest.approx(0.2 / 2**0.5)
    assert group.curve("test_accuracy") == [
        (1, 0.1, 0.0),
        (2, pytest.approx(0.3), pytest.approx(deviation)),
    ]
    assert group.mean_and_deviation("nothing") is None


def test_different_experiments_of_one_name_are_told_apart(make_run):
    one, two = make_run("same", 0, [0.1], rounds=3), make_run("same", 0, [0.1], rounds=4)
    names = [group.name for group in groups([one, two])]
    assert names == [f"same ({one.path.name})", f"same ({two.path.name})"]


def test_a_run_that_is_not_finished_shows_what_it_has(make_run):
    view = make_run("half", 0, [0.5, 0.7], finish=False)
    assert view.state == "stopped"
    assert view.summary["last"] == 0.7
    assert view.summary["seconds"] == 4.0
    table = comparison(groups([view]))
    assert str(next(table.columns[0].cells)) == "half (1 unfinished)"


def test_a_run_without_records_yet(make_run):
    view = make_run("new", 0, [], finish=False)
    assert view.summary == {}
    (group,) = groups([view])
    assert [cell(group, column) for column in COLUMNS] == ["-"] * len(COLUMNS)
    assert "new" in render([group], "nothing yet")
    assert comparison([group]).row_count == 1


def test_the_best_is_bold(make_run):
    table = comparison(groups([make_run("a", 0, [0.1]), make_run("b", 0, [0.9], rounds=8)]))
    assert [row.style for row in table.rows] == ["", "bold"]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_fits_and_always_shows_the_names(make_run, width):
    runs = [make_run("a method with a long name", seed, [0.5 + seed / 10, 0.7]) for seed in (0, 1)]
    console = Console(width=width, record=True, file=io.StringIO())
    table = comparison(groups([*runs, make_run("b", 0, [0.1], rounds=8)]), width=width)
    console.print(table)
    text = console.export_text()
    assert "best-5 %" in text
    assert "a method with" in text
    assert "…" not in text
    assert ("seen loss" in text) == (width == 200)
    assert [c.header for c in table.columns][:3] == ["experiment", "runs x rounds", "best-5 %"]


def test_names_are_text_wherever_they_appear(make_run):
    bad = "<script>alert(1)</script>[red]"
    page = render(groups([make_run(bad, 0, [0.1, 0.2])]), title=bad)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 3  # title, heading, table, curve
    table = comparison(groups([make_run(bad, 1, [0.1])]))
    assert bad in str(next(table.columns[0].cells))


def test_the_page_is_self_contained(make_run):
    page = render(groups([make_run("a", 0, [0.1, 0.2])]), "t")
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)


def test_a_chart_is_valid_and_accessible():
    svg = chart([Line("one", [(1, 0.5, 0.1), (2, 0.7, 0.0)]), Line("empty", [])], "Accuracy & more")
    root = ET.fromstring(svg)
    assert root.get("aria-label") == "Accuracy & more"
    curves = [e for e in root.iter() if "curve" in (e.get("class") or "")]
    assert len(curves) == 1
    (first, second) = curves[0].get("points").split()
    assert float(first.split(",")[0]) < float(second.split(",")[0])
    assert float(first.split(",")[1]) > float(second.split(",")[1])  # higher is further up


def test_long_curves_are_thinned_but_keep_their_end():
    svg = chart([Line("long", [(k, k / 5000, 0.0) for k in range(5000)])], "t")
    points = re.search(r'<polyline[^>]*points="([^"]*)"', svg)[1].split()
    assert len(points) <= 401
    assert points[-1].startswith("448")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.12, 0.88, [0.2, 0.4, 0.6, 0.8]),
        (3, 3, [2.6, 2.8, 3.0, 3.2, 3.4]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert _Axis(low, high, 0, 1).ticks() == pytest.approx(ticks)

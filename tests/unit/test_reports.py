"""Reports are made from records alone, and show what users wrote as text."""

import base64
import hashlib
import io
import json
import re
from html import escape

import pytest
from rich.console import Console

from chronofed import Experiment
from chronofed.reports.figures.canvas import COLOURS
from chronofed.reports.groups import groups
from chronofed.reports.runs import RunView
from chronofed.reports.terminal.comparison import comparison
from chronofed.reports.web.page import DARK, asset, embedded, render, style
from chronofed.runs import RunDirectory
from chronofed.training.measures import columns
from tests.helpers.pages import content_of


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
    found = group.spread("last")
    assert (found.mean, found.count) == (pytest.approx(0.3), 2)
    assert found.deviation == pytest.approx(0.2 / 2**0.5)
    assert group.curve("test_accuracy") == [
        (1, 0.1, 0.0),
        (2, pytest.approx(0.3), pytest.approx(found.deviation)),
    ]
    assert group.spread("nothing") is None


def test_experiments_of_one_name_are_named_by_what_differs(make_run):
    runs = [make_run("same", 0, [0.1], rounds=3), make_run("same", 0, [0.1], rounds=4)]
    assert [group.name for group in groups(runs)] == ["rounds 3", "rounds 4"]
    other = make_run("other", 0, [0.1], rounds=5)
    half = make_run("same", 0, [0.1], rounds=6, finish=False)
    names = [group.name for group in groups([*runs, other, half])]
    assert names == ["same, rounds 3", "same, rounds 4", "other", "same, rounds 6 (stopped)"]


def test_several_seeds_that_are_not_finished_keep_theirs(make_run):
    done = [make_run("same", seed, [0.1], rounds=3, finish=False) for seed in (0, 1)]
    rows = groups([*done, make_run("same", 0, [0.1], rounds=4)])
    assert [row.name for row in rows] == [
        "rounds 3, seed 0 (stopped)", "rounds 3, seed 1 (stopped)", "rounds 4",
    ]  # fmt: skip


def test_what_needs_more_is_told_apart_by_the_directory(make_run):
    with_long = [make_run("same", 0, [0.1], rounds=3), make_run("same", 0, [0.1], rounds=4)]
    for run, text in zip(with_long, ("x" * 80, "y" * 80), strict=True):
        run.spec["note"] = text
        run.spec["rounds"] = 3
    names = [group.name for group in groups(with_long)]
    assert names == [f"same ({run.path.name})" for run in with_long]


def test_a_run_that_is_not_finished_shows_what_it_has(make_run):
    view = make_run("half", 0, [0.5, 0.7], finish=False)
    assert view.state == "stopped"
    assert view.summary["last"] == 0.7
    assert view.summary["seconds"] == 4.0
    table = comparison(groups([view]))
    assert str(next(table.columns[0].cells)) == "half, seed 0 (stopped)"
    assert str(next(table.columns[1].cells)) == "1 x 2 of 9"


def test_a_run_without_records_yet(make_run):
    view = make_run("new", 0, [], finish=False)
    assert view.summary == {}
    (group,) = groups([view])
    assert [group.text(column) for column in columns()] == ["-"] * len(columns())
    assert "new" in render([group], "nothing yet")
    assert comparison([group]).row_count == 1


def bold(table, heading):
    """Return the rows whose number in a column is bold."""
    (column,) = [c for c in table.columns if c.header == heading]
    return [k for k, text in enumerate(column.cells) if text.style == "bold"]


def test_only_a_lead_beyond_chance_is_bold(make_run):
    plain = [make_run("a", seed, [0.1 + seed / 10, 0.5 + seed / 10]) for seed in range(3)]
    ahead = [make_run("b", s, [0.11 + s / 10, 0.6 + s / 9], rounds=8) for s in range(3)]
    table = comparison(groups(plain + ahead))
    # last: +0.10, +0.11, +0.12; the five best: +0.055, +0.061, +0.066
    assert bold(table, "last %") == bold(table, "mean of best 5 %") == [1]
    expected = "bold: b in last, anytime, mean of best 5: the lead over the second is beyond chance"
    assert expected in table.caption
    lucky = [make_run("c", s, [0.1, 0.9 if s else 0.4], rounds=7) for s in range(3)]
    table = comparison(groups(plain + lucky))
    assert bold(table, "last %") == []
    assert "no lead over the second is beyond chance" in table.caption
    assert (
        bold(comparison(groups([plain[0], ahead[0]])), "last %") == []
    )  # one seed resolves nothing


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_fits_and_always_shows_the_names(make_run, width):
    runs = [make_run("a method with a long name", seed, [0.5 + seed / 10, 0.7]) for seed in (0, 1)]
    console = Console(width=width, record=True, file=io.StringIO())
    table = comparison(groups([*runs, make_run("b", 0, [0.1], rounds=8)]), width=width)
    console.print(table)
    text = console.export_text()
    assert "a method with" in text
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    headers = [" ".join(str(c.header).split()) for c in table.columns]
    assert headers[:3] == ["experiment", "runs x rounds", "last %"]
    # what has no column is named below
    lost = " ".join(text.split()).partition("no room for: ")[2]
    for name in ("anytime %", "mean of best 5 %", "test loss"):
        assert (name in headers) != (name in lost)
    assert bool(lost) == (width < 120)


EVIL = "<script>alert(1)</script>[red]</title>&lt;"


def test_names_are_text_wherever_they_appear(make_run):
    page = render(groups([make_run(EVIL, 0, [0.1, 0.2])]), title=EVIL)
    assert "<script>alert" not in page
    assert "</title>&lt;" not in page.replace(escape(EVIL), "")
    assert page.count("&lt;script&gt;alert") >= 3  # title, heading, table
    content = content_of(page)
    assert content["groups"][0]["name"] == EVIL
    assert content["title"] == EVIL
    table = comparison(groups([make_run(EVIL, 1, [0.1])]))
    assert EVIL in str(next(table.columns[0].cells))


def test_what_is_embedded_cannot_leave_its_element():
    text = embedded({"a": "</script><!--<script>", "b": "\u2028 & é"})
    assert not re.search(r"[<>&\u2028é]", text)
    assert json.loads(text) == {"a": "</script><!--<script>", "b": "\u2028 & é"}


def test_the_page_is_self_contained(make_run):
    page = render(groups([make_run("a", 0, [0.1, 0.2])]), "t")
    own = re.sub(r"https://github.com/leeoniya/uPlot|http://www.w3.org/2000/svg", "", page)
    assert not re.search(r"""\ssrc=|<link|@import|https?:|url\(|\.innerHTML""", own)


def test_only_the_code_of_the_page_may_run(make_run):
    page = render(groups([make_run("a", 0, [0.1])]), "t")
    code = re.search(r"<script>(.*)</script>", page, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    # Pictures are made by the page itself, to save a figure as PNG.
    allowed = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert policy == f"{allowed}; script-src 'sha256-{digest}'"


def test_colours_are_those_of_the_figures():
    for k, colour in enumerate(COLOURS):
        assert f"--c{k}: {colour};" in style()


def contrast(one: str, two: str) -> float:
    """Compute the contrast of two colours as accessibility guidelines define it."""

    def light(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_curves_stand_out(theme):
    """Text has a contrast of 4.5 to 1 on its background, curves 3 to 1."""
    found = {}
    for name in ("page", "card", "ink", "soft", "accent", "good", "bad", "warn"):
        found[name] = re.findall(rf"--{name}: (#[0-9a-f]{{6}});", style())[theme]
    for text in ("ink", "soft", "accent", "good", "bad", "warn"):
        assert contrast(found[text], found["card"]) >= 4.5, text
        assert contrast(found[text], found["page"]) >= 4.5, text
    for colour in (COLOURS, DARK)[theme]:
        assert contrast(colour, found["card"]) >= 3


def test_the_licence_of_vendored_code_is_kept():
    text = asset("LICENSE.uplot")
    assert "MIT" in text
    assert "Leon Sorokin" in text

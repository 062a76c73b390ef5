"""The common parts of all figures, and the figures of weights and rates."""

import sys

import numpy as np
import pytest

from chronofed.core.errors import MissingExtraError, SpecError, StorageError
from chronofed.reports.figures import canvas, curves, theory
from chronofed.reports.figures.scenario import Grid
from chronofed.reports.groups import groups
from chronofed.reports.runs import RunView
from tests.helpers.scenes import monthly

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def drawing():
    drawn = canvas.new_figure((3, 2))
    drawn.add_subplot().plot([1, 2, 3], label="line")
    return drawn


@pytest.mark.parametrize("kind", canvas.FORMATS)
@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its global state is not needed
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    paths = [canvas.save(drawing(), tmp_path / f"{n}.{kind.upper()}") for n in range(2)]
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(MAGIC[kind])
    assert b"dc:date" not in first
    assert b"CreationDate" not in first
    assert sorted(tmp_path.iterdir()) == paths


def test_global_settings_are_left_alone(tmp_path):
    from matplotlib import rcParams

    before = dict(rcParams)
    canvas.save(drawing(), tmp_path / "a.svg")
    assert dict(rcParams) == before


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("a.gif", SpecError, r"cannot draw '.*a\.gif': use a file ending of \.png, \.svg, \.pdf"),
        ("a", SpecError, "use a file ending"),
        ("no/a.png", StorageError, "there is no folder .*no; make it"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_any_work(tmp_path, name, error, words):
    for act in (canvas.check, lambda path: canvas.save(drawing(), path)):
        with pytest.raises(error, match=words):
            act(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = r"drawing bees needs matplotlib: pip install 'chronofed\[plot\]'"
    with pytest.raises(MissingExtraError, match=message):
        canvas.check(tmp_path / "a.png", "drawing bees")
    with pytest.raises(MissingExtraError, match=message):
        canvas.new_figure((1, 1), "drawing bees")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The figures that were saved, beside their files."""
    figures = []
    save = canvas.save
    monkeypatch.setattr(
        canvas, "save", lambda drawn, path: figures.append(drawn) or save(drawn, path)
    )
    return figures


def test_bars_of_weights(tmp_path, saved):
    path = theory.draw_weights([0.5, -0.25, 0.75], tmp_path / "w.png", "title")
    assert path.read_bytes().startswith(MAGIC["png"])
    (axes,) = saved[0].axes
    bars = axes.containers[0]
    assert [bar.get_height() for bar in bars] == [0.5, -0.25, 0.75]
    assert [bar.get_center()[0] for bar in bars] == pytest.approx([1, 2, 3])
    assert bars[0].get_facecolor() == bars[1].get_facecolor() != bars[2].get_facecolor()
    assert [text.get_text() for text in axes.texts] == ["0.5", "−0.25", "0.75"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round (the last is the present)", "weight")
    assert axes.get_title() == "title"


def test_many_bars_have_no_numbers(tmp_path, saved):
    theory.draw_weights([0.01] * 100, tmp_path / "w.png")
    assert not saved[0].axes[0].texts
    assert saved[0].get_figwidth() == 12


def test_lines(tmp_path, saved):
    over = np.geomspace(0.1, 10, 5)
    lines = {"A": over, "B": over**2, "C": 1 / over}
    theory.draw_lines(lines, over, ("below", "beside"), tmp_path / "r.svg", "title")
    (axes,), (legend,) = saved[0].axes, saved[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["A", "B", "C"]
    assert [line.get_linestyle() for line in axes.lines] == ["--", "-.", "-"]
    assert len({line.get_color() for line in axes.lines}) == 3
    assert axes.lines[1].get_ydata().tolist() == (over**2).tolist()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("below", "beside")


def test_axes_are_linear_where_logarithms_say_nothing(tmp_path, saved):
    over = np.linspace(0, 10, 5)
    theory.draw_lines({"A": 5 + over}, over, ("", ""), tmp_path / "r.svg")
    (axes,) = saved[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")


def test_curves_name_periods_and_draw_single_evaluations(tmp_path, monkeypatch):
    """The axis below has years of months; a run with one evaluation has a mark that is not cut at the axis."""
    drawn = []
    monkeypatch.setattr(curves.canvas, "save", lambda figure, path: drawn.append(figure))
    months = [f"{2015 + k // 12}-{1 + k % 12:02d}" for k in range(36)]
    long = monthly(tmp_path / "long", "long", 0, months)
    once = monthly(tmp_path / "once", "once", 1, months)
    first = (once.path / "metrics.jsonl").read_text().splitlines()[0]
    (once.path / "metrics.jsonl").write_text(first + "\n")
    (once.path / "summary.json").unlink()
    found = groups([long, RunView.read(once.path)])
    curves.draw_curves({"": found}, "test_accuracy", "accuracy", tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert axes.get_xlabel() == "period"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2015", "2016", "2017"]
    assert axes.get_xticks().tolist() == [1, 13, 25]
    looks = [(line.get_marker(), line.get_clip_on()) for line in axes.get_lines()]
    assert looks == [("", True), ("o", False)]


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_circles_of_few_classes_do_not_merge(kinds):
    """A client holds all of two or three classes at once."""
    grid = Grid((0, 1), ("a", "b"), np.full((2, 2, kinds), 7))
    assert np.sqrt(grid.area(grid.counts).max()) / 72 <= grid.line + 1e-9

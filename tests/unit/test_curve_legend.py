"""Figures of curves: the look of a page, and a legend that fits."""

import pytest

from chronofed.reports.figures import canvas, curves
from chronofed.reports.groups import groups
from chronofed.reports.runs import RunView
from chronofed.reports.styles import COLOURS, styles_of
from tests.helpers.scenes import write_run


@pytest.fixture
def drawn(monkeypatch):
    """Keeps the figures that are saved."""
    kept = []
    monkeypatch.setattr(canvas, "save", lambda figure, path: kept.append(figure) or path)
    return kept


def six(tmp_path):
    names = [f"method number {k} of six" for k in range(6)]
    paths = [
        write_run(tmp_path / str(k), name, rounds=20, memory=k, periods=False)
        for k, name in enumerate(names)
    ]
    return names, groups([RunView.read(path) for path in paths])


def test_the_legend_of_six_methods_is_inside_the_figure(tmp_path, drawn):
    names, found = six(tmp_path)
    curves.draw_curves({"": found}, "test_accuracy", "accuracy", tmp_path / "a.png")
    (figure,) = drawn
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    box, whole = legend.get_window_extent(), figure.bbox
    assert box.x0 >= whole.x0
    assert box.x1 <= whole.x1
    assert box.y1 <= whole.y1


def test_lines_look_as_on_a_page(tmp_path, drawn):
    _, found = six(tmp_path)
    curves.draw_curves({"": found}, "test_accuracy", "accuracy", tmp_path / "a.png")
    lines = drawn[0].axes[0].get_lines()
    assert [line.get_color() for line in lines] == [COLOURS[k % 8] for k in styles_of(found)]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 6


def test_panels_share_the_looks_of_their_rows(tmp_path, drawn):
    _, found = six(tmp_path)
    panels = {"one": found[:2], "two": found[:2]}
    curves.draw_curves(panels, "test_accuracy", "accuracy", tmp_path / "a.png")
    one, two = ([line.get_color() for line in axes.get_lines()] for axes in drawn[0].axes)
    assert one == two
    assert len(drawn[0].legends[0].get_texts()) == 2


@pytest.mark.parametrize(("columns", "width"), [(1, 3.4), (2, 7.0)])
def test_a_figure_fills_the_columns_of_a_paper_with_readable_text(tmp_path, drawn, columns, width):
    names, found = six(tmp_path)
    curves.draw_curves(
        {"": found}, "test_accuracy", "accuracy", tmp_path / "a.pdf", columns=columns
    )
    (figure,) = drawn
    assert figure.get_figwidth() == width
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    inside = figure.bbox.padded(1)
    texts = [*legend.get_texts(), figure.axes[0].xaxis.label, figure.axes[0].yaxis.label]
    for text in [*texts, *figure.axes[0].get_xticklabels()[1:-1]]:
        assert text.get_fontsize() >= 8
        box = text.get_window_extent()
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1, text.get_text()
    legend_box, panel = legend.get_window_extent(), figure.axes[0].get_window_extent()
    assert legend_box.y0 >= panel.y1  # no curve is covered
    assert panel.height >= 100


def test_32_experiments_of_one_method_have_32_looks(tmp_path, drawn):
    paths = [
        write_run(tmp_path / str(k), f"m{k}", rounds=8, memory=k + 1, periods=False)
        for k in range(32)
    ]
    found = groups([RunView.read(path) for path in paths])
    curves.draw_curves({"": found}, "test_accuracy", "accuracy", tmp_path / "a.pdf", columns=2)
    lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 32

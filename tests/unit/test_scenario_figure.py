"""The figure of a scenario: the numbers behind it, and the file."""

import sys

import numpy as np
import pytest

from chronofed.core.errors import MissingExtraError, SpecError, StorageError
from chronofed.reports.figures.scenario import _COLUMN, _figure, draw_scenario, tabulate
from chronofed.scenarios import Everyone, OneShot, Scenario, Schedule, StatelessStream, SubsetStream

LABELS = np.array([0, 0, 0, 1, 1, 2])
CLASSES = ("cat", "dog", "$eel^")  # names are taken as they are, not as formulas


def _scenario(membership=None):
    subsets = [[np.array([0, 1, 3])], [np.array([2, 4, 5, 1])], [np.array([5])]]
    return Scenario(SubsetStream(subsets), membership or Everyone())


def _circles(figure):
    """Return all circles of the figure as (column, line, area), client by client; the key has none."""
    (axes,) = figure.axes
    drawn = [c for c in axes.collections if len(c.get_offsets())]
    return [
        [(x, y, area) for (x, y), area in zip(c.get_offsets(), c.get_sizes(), strict=True)]
        for c in drawn
    ]


def test_numbers_and_gaps():
    grid = tabulate(_scenario(Schedule(((1, 1, 2),))), LABELS, 3, range(3))
    assert grid.counts.shape == (3, 3, 3)
    assert grid.counts[0].tolist() == [[2, 1, 0]] * 3
    assert grid.counts[1].tolist() == [[0, 0, 0], [2, 1, 1], [0, 0, 0]]
    assert grid.names == ("client 0", "client 1", "client 2")


def test_clients_and_rounds_may_be_chosen():
    grid = tabulate(_scenario(), LABELS, 3, (4, 2), clients=(2, 0, 9))
    assert (grid.rounds, grid.names) == ((4, 2), ("client 2", "client 0", "client 9"))
    assert grid.counts[:, 0].tolist() == [[0, 0, 1], [2, 1, 0], [0, 0, 0]]


def test_new_clients_share_rows():
    stateless = Scenario(StatelessStream(np.tile(LABELS, 9), 2, 5, 1.0, 1.0), Everyone())
    grid = tabulate(stateless, np.tile(LABELS, 9), 3, range(6))
    assert grid.names == ("new client 0", "new client 1")
    assert grid.counts.sum(axis=2).tolist() == [[5] * 6] * 2
    once = tabulate(_scenario(OneShot(1)), LABELS, 3, range(3))
    assert once.counts.tolist() == [[[2, 1, 0], [2, 1, 1], [0, 0, 1]]]


def test_a_ball_for_every_class_held_with_area_in_proportion():
    grid = tabulate(_scenario(Schedule(((1, 1, 2),))), LABELS, 3, range(3))
    first, second, third = _circles(_figure(grid, CLASSES))
    assert sorted((x, y) for x, y, _ in first) == [(x, y) for x in range(3) for y in range(2)]
    assert {x for x, _, _ in second} == {1}
    assert {y for _, y, _ in third} == {2 * grid.pitch + 2}
    areas = {y: area for _, y, area in first}
    assert areas[0] == pytest.approx(2 * areas[1])
    assert np.sqrt(areas[0]) < 72 * _COLUMN


def test_large_circles_are_drawn_first():
    for circles in _circles(_figure(tabulate(_scenario(), LABELS, 3, range(3)), CLASSES)):
        areas = [area for _, _, area in circles]
        assert areas == sorted(areas, reverse=True)


def test_absent_clients_leave_a_gap_in_the_band():
    grid = tabulate(_scenario(Schedule(((1, 1, 2),))), LABELS, 3, range(3))
    (axes,) = _figure(grid, CLASSES).axes
    bands = [[round(cell.get_center()[0]) for cell in band] for band in axes.containers]
    assert bands == [[0, 1, 2], [1], [0, 1, 2]]


def test_names_of_rounds_classes_and_clients():
    figure = _figure(tabulate(_scenario(), LABELS, 3, (4, 6)), CLASSES)
    (axes,), (key,) = figure.axes, figure.legends
    assert [t.get_text() for t in axes.get_xticklabels()] == ["4", "6"]
    assert [t.get_text() for t in axes.get_yticklabels()] == list(CLASSES) * 3
    assert [t.get_text() for t in axes.texts] == ["client 0", "client 1", "client 2"]
    assert [t.get_text() for t in key.get_texts()] == ["1 sample", "2 samples"]
    assert len({t.get_color() for t in axes.texts}) == 3


def test_many_classes_share_the_room():
    grid = tabulate(_scenario(), LABELS, 100, range(2))
    figure = _figure(grid, [str(i) for i in range(100)])
    ticks = figure.axes[0].get_yticks()
    assert 90 < len(ticks) < 200
    assert figure.get_figheight() < 20


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")]
)
def test_the_ending_chooses_the_format(tmp_path, monkeypatch, ending, magic):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its global state is not needed
    path = draw_scenario(_scenario(), LABELS, CLASSES, tmp_path / f"scenario.{ending}")
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_picture_is_replaced(tmp_path):
    path = tmp_path / "scenario.svg"
    path.write_text("old")
    draw_scenario(_scenario(), LABELS, CLASSES, str(path), rounds=range(2), clients=(1,))
    assert path.read_text().startswith("<?xml")


def test_a_number_of_rounds_means_the_first_ones_that_exist(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "chronofed.reports.figures.scenario.tabulate",
        lambda *arguments: asked.append(list(arguments[3])) or tabulate(*arguments),
    )
    for membership, rounds in ((OneShot(1), {}), (Everyone(), {}), (Everyone(), {"rounds": 2})):
        draw_scenario(_scenario(membership), LABELS, CLASSES, tmp_path / "scenario.svg", **rounds)
    assert asked == [[0, 1, 2], list(range(20)), [0, 1]]


def test_nobody_at_all_is_still_a_picture(tmp_path):
    scenario = _scenario(Schedule(((0, 9, -1), (1, 9, -1), (2, 9, -1))))
    draw_scenario(scenario, LABELS, CLASSES, tmp_path / "scenario.png", rounds=range(2))


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(StorageError, match=r"cannot write .*nowhere.scenario\.png"):
        draw_scenario(_scenario(), LABELS, CLASSES, tmp_path / "nowhere" / "scenario.png")


@pytest.mark.parametrize(
    ("name", "rounds", "clients", "words"),
    [
        ("scenario.gif", range(2), None, "use a file ending of .png, .svg, .pdf"),
        ("scenario", range(2), None, "use a file ending"),
        ("scenario.png", (), None, "nothing to draw: 3 clients in 0 rounds"),
        ("scenario.png", range(2), (), "nothing to draw: 0 clients in 2 rounds"),
        ("scenario.png", range(1000), None, "3 clients x 1000 rounds are too many"),
    ],
)
def test_pictures_that_cannot_be(tmp_path, name, rounds, clients, words):
    with pytest.raises(SpecError, match=words):
        draw_scenario(_scenario(), LABELS, CLASSES, tmp_path / name, rounds, clients)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib: pip install 'chronofed\[plot\]'"):
        draw_scenario(_scenario(), LABELS, CLASSES, tmp_path / "scenario.png")


def test_49_clients_of_two_classes_fit_on_a_page():
    subsets = [[np.array([0, 3])] for _ in range(49)]
    grid = tabulate(Scenario(SubsetStream(subsets), Everyone()), LABELS % 2, 2, range(12))
    figure = _figure(grid, ("dry", "rain"))
    assert figure.get_figheight() < 24
    assert len(_circles(figure)) == 49

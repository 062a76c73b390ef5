"""Small curves in the terminal, and the table below the progress bar."""

import io
from itertools import pairwise

import numpy as np
import pytest
from rich.console import Console

from chronofed.cli.progress import LINES, Bars, Latest, latest_table
from chronofed.reports.groups import Group
from chronofed.reports.terminal.sparklines import HEIGHT, MOST, braille, curves, most_telling
from chronofed.runs import runner
from chronofed.training.measures import BY_KEY


def dots(lines):
    """Convert braille characters back into a picture of (rows, columns)."""
    picture = np.zeros((4 * len(lines), 2 * len(lines[0])), dtype=bool)
    bits = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1)]
    for r, line in enumerate(lines):
        for c, character in enumerate(line):
            for bit, (down, right) in enumerate(bits):
                picture[4 * r + down, 2 * c + right] = (ord(character) - 0x2800) >> bit & 1
    return picture


def test_a_line_goes_from_corner_to_corner():
    x = np.array([0.0, 10.0])
    picture = dots(braille(x, x, 10, 5, (0, 10, 0, 10)))
    assert picture[-1, 0]
    assert picture[0, -1]
    assert picture.any(axis=0).all()
    tops = picture.argmax(axis=0)
    assert (np.diff(tops) <= 0).all()


def test_steep_curves_are_not_torn_apart():
    x = np.arange(20.0)
    picture = dots(braille(x, (x == 10).astype(float), 10, 4, (0, 19, 0, 1)))
    rows = [np.flatnonzero(column) for column in picture.T]
    for one, two in pairwise(rows):
        assert min(abs(int(a) - int(b)) for a in one for b in two) <= 1


def test_a_curve_begins_and_ends_where_its_rounds_do():
    picture = dots(braille(np.array([5.0, 10.0]), np.ones(2), 10, 2, (0, 20, 0, 2)))
    assert picture.any(axis=0).tolist() == [5 <= x <= 10 for x in np.linspace(0, 20, 20)]


class FakeGroup(Group):
    """An experiment with a curve."""

    def bands(self, key):
        x = np.arange(1.0, 31.0)
        return (x, x / 40, x * 0) if key == "test_accuracy" else (x[:0],) * 3


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_curves_fit_the_width_and_need_no_colour(width, count):
    groups = [FakeGroup(f"[red]a rather long name {k}", ()) for k in range(count)]
    console = Console(width=width, file=io.StringIO(), no_color=True)
    console.print(curves(groups, width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count("75.0") == count  # the scale beside each
    assert text.count("30") >= count  # the last round
    assert "[red]" in text
    drawn = [line for line in lines if any("\u2800" <= c <= "\u28ff" for c in line)]
    assert len(drawn) % HEIGHT == 0


def test_nothing_to_draw():
    assert curves([FakeGroup("a", ())], 80, key="nothing") is None


def evaluation(round_, **more):
    return {"round": round_, "test_accuracy": 0.5, "test_loss": 1.25, **more}


def text(table):
    console = Console(width=100, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_the_table_of_latest_evaluations():
    shown = text(latest_table([("a", evaluation(5)), ("a", evaluation(10, forgetting=0.031))]))
    assert " ".join(shown.split()) == (
        "round accuracy loss forgetting 5 50.0% 1.250 10 50.0% 1.250 3.1%"
    )
    assert "run" in text(latest_table([("a", evaluation(5)), ("[b]", evaluation(5))]))
    assert "[b]" in text(latest_table([("a", evaluation(5)), ("[b]", evaluation(5))]))


def test_bars_carry_the_table():
    progress = Latest(console=Console(file=io.StringIO(), force_terminal=True, width=100))
    assert len(list(progress.get_renderables())) == 1
    move = Bars(progress).watch("run")
    for t in range(1, 10):
        move(runner.Progress(t, 10, evaluation(t) if t > 1 else None))
    _, table = progress.get_renderables()
    assert table.row_count == LINES
    assert progress.evaluations[-1][1]["round"] == 9


class Ended(Group):
    """An experiment with a last value, finished or not."""

    finished = True
    level = 0.0

    def bands(self, key):
        x = np.arange(1.0, 4.0)
        return (x, np.full(3, self.level), x * 0) if self.level else (x[:0],) * 3


@pytest.mark.parametrize(
    ("key", "best"), [("test_accuracy", [7, 8, 9, 10]), ("test_loss", [1, 2, 3, 4])]
)
def test_of_many_curves_the_best_that_finished_are_drawn(key, best):
    """Nine experiments finished; two stopped, though ahead; one has no evaluation."""
    found = []
    for k in range(12):
        group = Ended.__new__(Ended)
        object.__setattr__(group, "level", 0.05 * k)
        found.append(group)
    stopped = {5, 11} if key == "test_accuracy" else {1, 11}
    for k, group in enumerate(found):
        object.__setattr__(group, "finished", k not in stopped)
    shown = most_telling(found, BY_KEY[key])
    assert len(shown) == MOST
    assert shown == sorted(shown)
    assert not {0, *stopped} & {*shown}
    assert {*best} - stopped <= {*shown}
    assert most_telling(found[:3], BY_KEY[key]) == [0, 1, 2]

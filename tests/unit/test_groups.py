"""Rows of tables: what is averaged, what is left out, and that it is said."""

import io
import json
import math
import shutil

import pytest
from rich.console import Console

from chronofed import Experiment
from chronofed.cli.compare import as_json
from chronofed.reports.groups import differences, groups
from chronofed.reports.payload import Page, build_payload
from chronofed.reports.runs import RunView
from chronofed.reports.spread import Spread
from chronofed.reports.terminal.comparison import comparison
from chronofed.reports.web.page import render
from chronofed.runs import RunDirectory
from chronofed.training.measures import columns
from chronofed.training.summary import summarise
from tests.helpers.pages import content_of


@pytest.fixture
def make(tmp_path):
    """Make a run: accuracies of the rounds, and how it ended."""

    def make(name, seed, accuracies, end="finished", rounds=4, **settings):
        path = tmp_path / f"{name}-{seed}-{len(list(tmp_path.iterdir()))}"
        experiment = Experiment(name=name, seed=seed, rounds=rounds, **settings)
        run = RunDirectory.create(path, experiment.resolved(), {})
        for k, accuracy in enumerate(accuracies, start=1):
            sent = {"bytes_down": 1000 * k, "bytes_up": 1000 * k}
            line = {"round": k, "test_accuracy": accuracy, "test_loss": 1.0, **sent}
            run.append(line, {"total": 2.0})
        if end == "finished":
            run.finish(summarise(run.history()) | {"seconds": 1.0})
        elif end == "failed":
            run.fail("it diverged")
        return RunView.read(path)

    return make


def texts(table, heading):
    (column,) = [c for c in table.columns if c.header == heading]
    return [str(text) for text in column.cells]


def bold(table, heading):
    (column,) = [c for c in table.columns if c.header == heading]
    return [k for k, text in enumerate(column.cells) if text.style == "bold"]


def test_a_seed_that_is_not_finished_is_not_averaged_in(make):
    """One seed was stopped at round 1 of 4."""
    runs = [make("a", 0, [0.1, 0.2, 0.6, 0.68]), make("a", 1, [0.1, 0.2, 0.6, 0.7])]
    runs.append(make("a", 2, [0.1], end="stopped"))
    table = comparison(groups(runs))
    assert texts(table, "experiment") == ["a", "a, seed 2 (stopped)"]
    assert texts(table, "runs x rounds") == ["2 of 3 x 4", "1 x 1 of 4"]
    assert texts(table, "last %") == ["69.00 ± 1.41", "10.00"]
    assert "a: 2 of 3 seeds are finished" in table.caption
    curve = build_payload(groups(runs), "t")["measures"][0]["curves"][0]
    assert curve["y"][0] == 10.0
    assert len(curve["d"]) == 4


def test_less_training_makes_no_best_traffic(make):
    whole = [make("a", seed, [0.5, 0.6, 0.7, 0.8]) for seed in range(3)]
    stopped = [make("b", seed, [0.5], end="stopped", rounds=5) for seed in range(3)]
    assert bold(comparison(groups(whole + stopped)), "traffic MB") == []
    short = [make("c", seed, [0.5 + seed / 100], rounds=1) for seed in range(3)]
    table = comparison(groups(whole + short))
    assert bold(table, "traffic MB") == []
    assert bold(table, "last %") == [0]  # accuracies can be compared


def test_a_failed_run_and_one_without_an_evaluation_have_rows_of_their_own(make):
    runs = [make("a", 0, [0.5], end="failed"), make("a", 1, [], end="stopped")]
    runs.append(make("a", 2, [0.1, 0.2, 0.3, 0.4]))
    table = comparison(groups(runs))
    assert texts(table, "experiment") == ["a", "a, seed 0 (failed)", "a, seed 1 (stopped)"]
    assert texts(table, "last %") == ["40.00", "50.00", "-"]
    assert "a run without an evaluation has no numbers" in table.caption
    page = build_payload(groups(runs), "t")
    assert page["subtitle"].startswith("1 experiment, 3 runs")
    assert page["notes"]


def test_a_copy_is_counted_once_and_said(make, tmp_path):
    runs = [make("a", seed, [0.5, 0.6, 0.7, 0.8 + seed / 100]) for seed in range(2)]
    shutil.copytree(runs[0].path, tmp_path / "copy")
    runs.append(RunView.read(tmp_path / "copy"))
    (row,) = groups(runs)
    assert [run.path for run in row.runs] == [runs[0].path, runs[1].path]
    table = comparison([row])
    assert texts(table, "runs x rounds") == ["2 x 4"]
    assert texts(table, "last %") == ["80.50 ± 0.71"]
    assert f"{tmp_path / 'copy'}: left out" in table.caption
    assert as_json(row)["copies"] == [str(tmp_path / "copy")]
    # the finished one counts, wherever it stands
    first = make("b", 0, [0.1], end="stopped")
    (row,) = groups([first, make("b", 0, [0.1, 0.2, 0.3, 0.4])])
    assert row.finished
    assert [run.path for run in row.copies] == [first.path]


def test_one_value_has_no_deviation(make):
    (row,) = groups([make("a", 0, [0.5, 0.75])])
    assert row.spread("last") == Spread(0.75, None, 1)
    assert as_json(row)["deviation"]["last"] is None
    assert as_json(row)["count"]["last"] == 1
    assert "±" not in "".join(row.text(column) for column in columns())


def test_a_number_that_some_runs_lack_says_how_many_have_it(make):
    one, two = make("a", 0, [0.5]), make("a", 1, [0.7])
    one.summary["last_forgetting"] = 0.125
    (row,) = groups([one, two])
    (column,) = [c for c in columns() if c.key == "last_forgetting"]
    assert row.text(column) == "12.50 (1 of 2)"


def test_an_infinite_loss_is_shown(make):
    runs = [make("a", seed, [0.5]) for seed in range(2)]
    runs[0].summary["last_test_loss"] = math.inf
    page = build_payload(groups(runs), "t")
    assert page["groups"][0]["cells"]["last_test_loss"] == {"text": "inf", "mean": None}
    json.dumps(page, allow_nan=False)


@pytest.mark.parametrize("accuracy", [0.685049, 0.97495, 0.6850500001, 0.0009799])
def test_every_table_shows_the_same_digits(make, accuracy):
    """Rounding to five digits and again to two made 68.51 of 68.5049."""
    (row,) = groups([make("a", 0, [accuracy])])
    expected = f"{100 * accuracy:.2f}"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(comparison([row]))
    assert f" {expected} " in console.export_text()
    page = render([row], "t")
    assert f"<td>{expected}</td>" in page  # without scripts
    content = content_of(page)
    assert content["groups"][0]["cells"]["last"] == {"text": expected, "mean": accuracy}
    assert as_json(row)["mean"]["last"] == accuracy


def test_what_was_not_measured_has_a_dash_and_a_reason(make):
    table = comparison(groups([make("a", 0, [0.5])]))
    assert texts(table, "forgetting %") == ["-"]
    assert "forgetting was not measured: clients do not come back" in table.caption
    assert "information loss was not measured: evaluate.past = 0" in table.caption


def test_a_sample_of_pairs_is_said(make):
    view = make("a", 0, [0.5])
    view.summary.update(last_forgetting=0.1, last_followed_pairs=3000, last_seen_pairs=6615)
    caption = comparison(groups([view])).caption
    assert "forgetting is measured on a random sample, 3000 of 6615 pairs" in caption
    view.summary["last_seen_pairs"] = 3000
    assert "sample" not in comparison(groups([view])).caption


def test_a_setting_in_which_the_middle_one_differs(make):
    runs = [
        make("a", 0, [0.5], rounds=3),
        make("b", 0, [0.5], rounds=7),
        make("c", 0, [0.5], rounds=3, device="x"),
    ]
    found = differences(groups(runs))
    assert found["rounds"] == [3, 7, 3]


def test_the_first_run_of_an_experiment_stands_for_it(make):
    runs = [make("a", seed, [0.5]) for seed in (4, 2, 3)] + [make("b", 1, [0.5], rounds=5)]
    assert [(k, run.label) for k, run in Page(groups(runs)).first_runs] == [
        (0, "a, seed 4"),
        (1, "b, seed 1"),
    ]

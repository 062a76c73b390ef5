"""One data model: finding runs, curves over seeds, downsampling, differences."""

import json
import math
import os
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed import Experiment
from chronofed.core.errors import RunError
from chronofed.reports.downsample import downsample, evenly_spaced
from chronofed.reports.groups import Group, differences, groups
from chronofed.reports.period_history import LEVELS, UNSEEN, PeriodHistory
from chronofed.reports.runs import RunView, find_runs, method_of
from chronofed.reports.spread import Spread
from chronofed.runs import RunDirectory


def make(path, lines=(), **settings):
    run = RunDirectory.create(path, Experiment(**settings).resolved(), {})
    for line in lines:
        run.append(line, {"total": 1.0})
    return path


def line(round_, accuracy):
    return {"round": round_, "test_accuracy": accuracy, "test_loss": 1.0}


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    st.integers(4, 60),
)
def test_downsampling_keeps_ends_and_extremes(values, most):
    array = np.array(values)
    kept = downsample(array, most)
    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert array[kept].min() == array.min()
    assert array[kept].max() == array.max()


def test_downsampling_keeps_one_spike_among_ten_thousand():
    values = np.full(10_000, 0.5)
    values[7_345] = 0.9
    values[1_200] = np.nan  # drawn as a gap, not as a spike
    kept = downsample(values, 300)
    assert 7_345 in kept
    assert len(kept) <= 300


@given(st.integers(1, 500), st.integers(2, 90))
def test_even_spacing_has_both_ends(count, most):
    found = evenly_spaced(count, most)
    assert len(found) == min(count, most)
    assert {0, count - 1} <= set(found)


def test_runs_are_found_below_folders_each_once(tmp_path):
    one = make(tmp_path / "grid" / "b" / "one")
    two = make(tmp_path / "grid" / "a")
    make(two / "checkpoints" / "not-a-run-of-its-own")
    make(tmp_path / "grid" / ".hidden")
    assert find_runs([tmp_path / "grid", one]) == [two, one]
    assert find_runs([one]) == [one]
    with pytest.raises(RunError, match="no run is below it"):
        find_runs([tmp_path / "nothing"])


def test_links_to_folders_are_not_followed(tmp_path):
    make(tmp_path / "remote" / "run")
    (tmp_path / "grid").mkdir()
    os.symlink(tmp_path / "remote", tmp_path / "grid" / "link")
    with pytest.raises(RunError, match="no run is below it"):
        find_runs([tmp_path / "grid"])


def test_curves_of_runs_of_different_length(tmp_path):
    one = RunView.read(make(tmp_path / "1", [line(1, 0.2), line(2, 0.4), line(3, 0.9)]))
    two = RunView.read(make(tmp_path / "2", [line(1, 0.4), line(3, 0.5)], seed=1))
    curve = Group("both", (one, two)).curve("test_accuracy")
    assert [r for r, _, _ in curve] == [1, 2, 3]
    assert [m for _, m, _ in curve] == pytest.approx([0.3, 0.4, 0.7])
    want = [statistics.stdev([0.2, 0.4]), math.nan, statistics.stdev([0.9, 0.5])]
    assert [d for _, _, d in curve] == pytest.approx(
        want, nan_ok=True
    )  # one value has no deviation
    assert Group("both", (one, two)).curve("nothing") == []


def test_a_file_that_is_being_written_or_was_cut_by_a_crash(tmp_path):
    path = make(tmp_path / "run", [line(1, 0.2)])
    for name in ("metrics.jsonl", "period_accuracy.jsonl", "round_weights.jsonl", "times.jsonl"):
        with (path / name).open("a") as file:
            file.write('{"round": 2, "test_acc')
    view = RunView.read(path)
    assert [entry["round"] for entry in view.history] == [1]
    assert view.periods().rounds == []
    assert view.record("round_weights") == []
    assert view.state == "stopped"


def test_a_damaged_specification_is_named(tmp_path):
    path = make(tmp_path / "run")
    (path / "spec.toml").write_text("name = ")
    with pytest.raises(RunError, match=r"spec\.toml is damaged"):
        RunView.read(path)


def test_traffic_is_what_went_both_ways(tmp_path):
    path = make(tmp_path / "run", [line(1, 0.2) | {"bytes_down": 5, "bytes_up": 7}])
    (group,) = groups([RunView.read(path)])
    assert group.spread("traffic") == Spread(12.0, None, 1)
    assert Group("x", (RunView.read(make(tmp_path / "new")),)).spread("traffic") is None


def test_differences_of_specifications(tmp_path):
    views = [
        RunView.read(make(tmp_path / "a", name="a", rounds=3)),
        RunView.read(make(tmp_path / "b", name="b", rounds=4)),
    ]
    assert differences(groups(views)) == {"rounds": [3, 4]}  # names are no difference
    assert differences(groups(views[:1])) == {}


def test_who_tracks_a_run_is_no_difference(tmp_path):
    for name, settings in (("a", {"track": "tensorboard"}), ("b", {"seed": 1})):
        RunDirectory(make(tmp_path / name, **settings)).finish({"rounds": 3})
    assert len(groups([RunView.read(tmp_path / name) for name in "ab"])) == 1


def test_methods_in_words():
    assert method_of({}) == ""
    both = {
        "backbone": {"kind": "mime"},
        "memory": {"kind": "taylor"},
        "weights": {"kind": "optimal"},
    }
    assert method_of({"method": both}) == "mime + taylor, optimal weights"
    assert method_of({"method": both | {"memory": {"kind": "forget"}}}) == "mime"


def period_line(round_, accuracy, held=()):
    return {
        "round": round_,
        "basis": "rows",
        "pairs": len(accuracy),
        "accuracy": accuracy,
        "held": list(held),
        "tested": [6] * len(held),
    }


def test_the_period_history_knows_now_and_best():
    history = PeriodHistory().add(
        [
            period_line(1, [[0, 3, 0.5]], held=[[0, 3, [[1, 0.9]]]]),
            period_line(2, [[0, 3, 0.8], [1, 0, 0.25]]),
            period_line(3, [[0, 3, 0.1], [1, 0, 5 / 6]]),
        ]
    )
    rounds, now, best = history.downsample(10)
    assert rounds == [1, 2, 3]
    assert history.pairs == [(0, 3), (1, 0)]
    assert history.held == {(0, 3): [[1, 0.9]]}
    assert history.tested == {(0, 3): 6}
    assert now.tolist() == [[5000, UNSEEN], [8000, 2500], [1000, 8333]]  # 5 of 6 are 83.33 %
    assert best.tolist() == [[5000, UNSEEN], [8000, 2500], [8000, 8333]]
    rounds, now, best = history.downsample(2)  # the best between two is not lost
    assert (rounds, best[1].tolist()) == ([1, 3], [8000, 8333])
    assert LEVELS < UNSEEN


def test_the_period_history_takes_lines_in_parts():
    lines = [
        period_line(t, [[c, 0, (7 * t + c) % 10 / 10] for c in range(1 + t // 2)]) for t in range(9)
    ]
    parts = PeriodHistory().add(lines[:4]).add(lines[4:])
    for one, two in zip(parts.downsample(5), PeriodHistory().add(lines).downsample(5), strict=True):
        assert np.array_equal(one, two)
    assert json.dumps(parts.pairs)

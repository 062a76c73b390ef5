"""Forecasts from a table: lags, horizon and drifted scales, by hand; and no leak, by poison."""

import json

import numpy as np
import pytest
import torch

from chronofed.core.errors import DataError
from chronofed.data.drifting import NOTED, drift_notes
from chronofed.data.lags import earlier
from chronofed.data.scales import Scale, Scales
from chronofed.data.table import Table


@pytest.fixture
def load(tmp_path):
    def load(*lines, head="client,time,y,f", **choices):
        (tmp_path / "data.csv").write_text("\n".join([head, *lines]) + "\n")
        given = {"period": "10", "test": 0.0, "standardise": False} | choices
        return Table("data.csv", **given).load(tmp_path, 0)

    return load


# Two clients in turn; the file is not in time order.
LINES = ["a,3,1,30", "b,1,1,100", "a,1,0,10", "b,2,0,200", "a,2,1,20", "a,4,0,40"]


def test_earlier_rows_are_those_of_the_same_client():
    client = np.array([0, 1, 0, 0, 1])
    assert earlier(client, 0).tolist() == [0, 1, 2, 3, 4]
    assert earlier(client, 2).tolist() == [-1, -1, -1, 0, -1]
    for count in (5, 6, 9, 10, 11):
        assert earlier(client, count).tolist() == [-1] * 5


def test_lags_are_earlier_targets_of_the_same_client(load):
    data = load(*LINES, lags=(1, 2))
    # In time order: a1 b1 a2 b2 a3 a4; a missing lag becomes the mean, and is marked.
    f, one, gap, two, other = data.train.x.T
    assert f.tolist() == [10, 100, 20, 200, 30, 40]
    assert one[[2, 3, 4, 5]].tolist() == [0, 1, 1, 1]
    assert gap.tolist() == [1, 1, 0, 0, 0, 0]
    assert two[[4, 5]].tolist() == [0, 1]
    assert other.tolist() == [1, 1, 1, 1, 0, 0]
    assert [feature.name for feature in data.preparation.features] == ["f", "y lag 1", "y lag 2"]


def test_lags_of_other_columns_and_of_texts(load):
    data = load(*LINES, lags=(1,), lag_columns=("f",))
    # The mean of 10, 20, 30 and 100 where there is none.
    assert data.train.x[:, 1].tolist() == [40, 40, 10, 100, 20, 30]
    words = [
        line.replace(",1,", ",wet,", 1).replace(",0,", ",dry,", 1)
        for line in ["a,5,1,1", "a,6,0,2"]
    ]
    data = load(*words, lags=(1,))
    assert data.preparation.features[1].categories == ("wet",)
    assert data.train.x[:, 1:].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_a_horizon_moves_the_target_ahead_and_keeps_its_time(load):
    data = load(*LINES, horizon=1, lags=(1, 2), period="2")
    # Predicted: a2 b2 a3 a4, from a1 b1 a2 a3.
    assert data.train.y.tolist() == [1, 0, 1, 0]
    assert data.train.x[:, 0].tolist() == [10, 100, 20, 30]
    # Lag 1 is the target of the row whose features are known.
    assert data.train.x[:, 1].tolist() == [0, 1, 1, 1]
    assert data.train.x[2:, 2].tolist() == [0, 1]
    assert data.origin.periods == ("[2, 4)", "[4, 6)")
    assert data.origin.train_period.tolist() == [0, 0, 0, 1]
    assert "2 rows left out: their client has no row 1 rows before (horizon)" in data.notes


def test_rows_without_a_target_still_count(load):
    data = load("a,1,0,1", "a,2,,2", "a,3,1,3", "a,4,0,4", lags=(1,))
    assert data.train.x[:, 0].tolist() == [1, 3, 4]
    # Before row 3 comes a row whose target is not known, not row 1.
    assert data.train.x[:, 2].tolist() == [1, 1, 0]


def test_a_column_cannot_have_the_name_of_a_lag(load):
    with pytest.raises(DataError, match="has a column 'y lag 1', the name of a lag"):
        load("a,1,0,1", "a,2,1,1", head="client,time,y,y lag 1", lags=(1,))


@pytest.mark.parametrize("choices", [{"lags": (1, 3)}, {"lags": (2, 5), "horizon": 2}])
def test_the_future_is_poison_and_changes_nothing_before_it(load, choices):
    chance = np.random.default_rng(0)
    values = chance.normal(size=400)
    good = [f"{'ab'[k % 2]},{k / 4},{int(values[k] > 0)},{values[k]:.4f}" for k in range(400)]
    settings = {
        **choices,
        "test": 0.2,
        "standardise": True,
        "fit_periods": 3,
        "classes": ("0", "1"),
    }
    before = load(*good, **settings)
    poison = [*good[:240], *(f"{'ab'[k % 2]},{k / 4},{k % 2},1e30" for k in range(240, 400))]
    after = load(*poison, **settings)
    assert before.preparation == after.preparation
    for purpose in ("train", "test"):
        early = [getattr(d.origin, f"{purpose}_period") < 6 for d in (before, after)]
        one, other = (
            getattr(d, purpose)[torch.from_numpy(e)]
            for d, e in zip((before, after), early, strict=True)
        )
        assert len(one) > 20
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


# Drifted scales


def drifting(load, later, **choices):
    """Ten periods of 20 rows; f is 9 or 11 in the first two, and as given afterwards."""
    lines = [
        f"a,{10 * period + k / 2},{k % 2},{(9 + 2 * (k // 2 % 2)) if period < 2 else later(period, k)}"
        for period in range(10)
        for k in range(20)
    ]
    return load(*lines, standardise=True, fit_periods=2, **choices)


def test_a_feature_that_leaves_its_scale_is_reported(load):
    data = drifting(load, lambda period, k: 10 + (4 if period >= 6 else 0) + (k % 2 - 0.5))
    assert "from [60, 70) on, f lies up to 4 deviations above what it was fitted on" in data.notes
    (scale,) = data.scales.features
    assert scale.periods == tuple(range(10))
    assert scale.rows == (20,) * 10
    assert scale.shift == pytest.approx([0] * 6 + [4] * 4)
    assert scale.ratio == pytest.approx([1, 1, *[0.5] * 8])
    assert json.loads(data.scales.to_json())["features"][0]["name"] == "f"


def test_a_single_period_and_a_larger_spread_are_reported(load):
    data = drifting(load, lambda period, k: 5 if period == 4 else 10)
    assert "in [40, 50), f lies 5 deviations below what it was fitted on" in data.notes
    data = drifting(load, lambda period, k: 10 + 8 * (-1) ** k if period == 9 else 10)
    assert "in [90, 100), f varies 8 times as much as what it was fitted on" in data.notes


def test_what_stays_in_scale_is_not_noted(load):
    data = drifting(load, lambda period, k: 12.9)
    assert not [note for note in data.notes if "deviations" in note]
    # Gaps and few rows are no evidence.
    data = drifting(load, lambda period, k: 99 if k < 9 else "")
    assert data.scales.features[0].rows[2:] == (9,) * 8
    assert not [note for note in data.notes if "deviations" in note]
    assert load("a,1,0,1", "a,2,1,2").scales.features == ()


def test_only_the_worst_are_noted():
    found = tuple(Scale(f"f{k}", (0, 1), (50, 50), (0.0, 4.0 + k), (1.0, 1.0)) for k in range(5))
    notes = drift_notes(Scales(("p", "q"), 1, found))
    assert len(notes) == NOTED + 1
    assert notes[0] == "in q, f4 lies 8 deviations above what it was fitted on"
    assert notes[-1] == "2 more features lie far from what they were fitted on"


def test_a_run_keeps_its_scales(tmp_path, load):
    from chronofed import Experiment, Linear, Periods, run_experiment

    data = drifting(load, lambda period, k: 15)
    settings = Table(str(tmp_path / "data.csv"), period="10", fit_periods=2)
    run_experiment(
        Experiment(data=settings, scenario=Periods(), model=Linear(), rounds=1), tmp_path / "run"
    )
    kept = json.loads((tmp_path / "run" / "scales.json").read_bytes())
    assert kept["fitted"] == 2
    assert kept["periods"] == list(data.origin.periods)
    assert kept["features"][0]["shift"][-1] == pytest.approx(5, abs=0.5)

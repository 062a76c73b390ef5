"""The large chart: calm where there are many periods, and still the numbers of the records."""

import numpy as np
import pytest

from chronofed.reports.groups import groups
from chronofed.reports.main_chart import main_chart, trailing
from tests.helpers.scenes import monthly

MONTHS = [f"{2007 + k // 12}-{1 + k % 12:02}" for k in range(60)]


def test_many_months_are_averaged_over_a_year(tmp_path):
    found = groups([monthly(tmp_path / str(seed), "A", seed, MONTHS) for seed in (0, 1)])
    chart = main_chart(found)
    assert chart["season"] == 12
    (curve,) = chart["curves"]
    means = [mean for _, mean, _ in found[0].curve("test_accuracy")]
    assert curve["x"] == list(range(12, 61))  # the first eleven lack months before
    assert curve["y"][0] == pytest.approx(100 * np.mean(means[:12]), rel=1e-3)
    assert curve["y"][-1] == pytest.approx(100 * np.mean(means[-12:]), rel=1e-3)
    last = [run.series("test_accuracy")[1][-12:].mean() for run in found[0].runs]
    assert [seed["y"][-1] for seed in chart["seeds"][0]] == pytest.approx(
        [100 * one for one in last], rel=1e-3
    )


@pytest.mark.parametrize(
    ("names", "season"),
    [
        (MONTHS[:47], 1),  # not four years
        (MONTHS[:48], 12),
        ([f"{2000 + k // 4}-Q{1 + k % 4}" for k in range(16)], 4),
        ([f"2009-01-{k + 1:02}" for k in range(28)], 7),
        ([f"rows {k}" for k in range(100)], 1),
        ([*MONTHS[:59], "later"], 1),
    ],
)
def test_a_season_is_known_by_the_names_of_periods(tmp_path, names, season):
    chart = main_chart(groups([monthly(tmp_path / "a", "A", 0, names)]))
    assert chart["season"] == season
    assert (chart["curves"] is None) == (season == 1)


def test_a_short_curve_is_left_as_it_is():
    values = np.array([1.0, 2.0])
    assert trailing(np.array([1.0, 2.0]), values, 12)[1] is values

"""The verdict: resolved differences alone make the headline."""

import statistics

import numpy as np
import pytest

from chronofed import CoreSet, Experiment, Forget, Method, Subsets, Taylor
from chronofed.reports.comparisons import comparable, differences_to
from chronofed.reports.groups import groups
from chronofed.reports.runs import RunView
from chronofed.reports.verdict import verdict
from chronofed.runs import RunDirectory
from chronofed.training.paired import Paired, student, student_quantile
from chronofed.training.summary import summarise


@pytest.fixture
def make(tmp_path):
    """Make runs of an experiment: a list of accuracies for every seed."""

    def make(name, by_seed, memory=None, end="finished", forgetting=None, **settings):
        views = []
        for seed, accuracies in enumerate(by_seed):
            method = Method(memory=memory or Forget())
            experiment = Experiment(name=name, seed=seed, rounds=9, method=method, **settings)
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            run = RunDirectory.create(path, experiment.resolved(), {})
            for k, accuracy in enumerate(accuracies, start=1):
                more = {"forgetting": forgetting[seed]} if forgetting else {}
                run.append(
                    {"round": k, "test_accuracy": accuracy, "test_loss": 1.0, **more},
                    {"total": 1.0},
                )
            if end == "finished":
                run.finish(summarise(run.history()) | {"seconds": 1.0})
            elif end == "failed":
                run.fail("it diverged")
            views.append(RunView.read(path))
        return views

    return make


PLAIN = [[0.50, 0.60], [0.52, 0.61], [0.51, 0.62]]
AHEAD = [[0.60, 0.70], [0.63, 0.71], [0.60, 0.72]]


def test_a_resolved_difference_makes_the_headline(make):
    runs = make("FedAvg", PLAIN, forgetting=[0.2, 0.21, 0.19])
    runs += make("Core", AHEAD, CoreSet(5), forgetting=[0.1, 0.12, 0.08])
    found = verdict(groups(runs))
    assert found.headline == (
        "Core forgets 10.0 points less than FedAvg and is 10.0 points better over time"
    )
    assert "last +10.0 points (p < 0.001)" in found.clear
    assert found.unresolved == "Not resolved by 3 seeds: test loss 0.000 (p = 1.00)."
    # the reference is the one without a memory, in any order
    assert verdict(groups(runs[::-1])).headline == found.headline


def test_what_is_not_resolved_is_not_in_the_headline(make):
    lucky = [[0.50, 0.60], [0.52, 0.61], [0.71, 0.92]]
    found = verdict(groups(make("FedAvg", PLAIN) + make("Core", lucky, CoreSet(5))))
    assert found.headline == "No difference between Core and FedAvg is resolved by 3 seeds"
    assert found.clear == ""
    assert "last +10.0 points (p = 0.42)" in found.unresolved


def test_a_loss_is_said_too(make):
    runs = make("FedAvg", AHEAD, forgetting=[0.2, 0.21, 0.19])
    runs += make("Core", PLAIN, CoreSet(5), forgetting=[0.1, 0.12, 0.08])
    assert verdict(groups(runs)).headline == (
        "Core forgets 10.0 points less than FedAvg, but is 10.0 points worse over time"
        " and is 10.0 points worse after the last round"
    )


def test_one_seed_resolves_nothing(make):
    found = verdict(groups(make("FedAvg", PLAIN[:1]) + make("Core", AHEAD[:1], CoreSet(5))))
    assert found.headline == "One seed cannot resolve a difference between Core and FedAvg"
    assert "--seeds" in found.unresolved


def test_p_values_are_corrected_for_the_number_of_experiments(make):
    other = [[0.5, 0.59], [0.52, 0.62], [0.51, 0.65]]
    two = groups(make("FedAvg", PLAIN) + make("Core", other, CoreSet(5)))
    alone = next(d for d in differences_to(two) if d.column.key == "last")
    three = groups([r for g in two for r in g.runs] + make("Taylor", AHEAD, Taylor()))
    found = {(d.row, d.column.key): d for d in differences_to(three)}
    assert found[1, "last"].p == pytest.approx(alone.p)  # the larger of two stays
    raw = found[2, "last"].found.p()
    assert found[2, "last"].p == pytest.approx(2 * raw)
    assert "corrected for 2 comparisons by Holm" in verdict(three).clear


def test_other_data_or_scenarios_are_not_compared(make):
    runs = make("FedAvg", PLAIN) + make("Core", AHEAD, CoreSet(5))
    runs += make("Else", AHEAD, scenario=Subsets(clients=3))
    found = groups(runs)
    assert comparable(found) == [0, 1]
    assert verdict(found).remarks[-1] == (
        "Not compared with FedAvg, because data, scenario or rounds differ: Else."
    )
    apart = groups(make("FedAvg", PLAIN) + make("Else", AHEAD, scenario=Subsets(clients=3)))
    assert verdict(apart).headline.startswith("No seeds of FedAvg and Else can be paired")


def test_one_experiment_says_what_it_reached(make):
    assert verdict(groups(make("FedAvg", PLAIN[:1]))).headline == (
        "FedAvg reaches 60.00 % test accuracy after round 2"
    )


def test_against_baselines_that_all_runs_differ_from(make):
    (run,) = make("FedAvg", PLAIN[:1])
    references = {
        "a": {"title": "majority class", "mean": 0.5, "difference": 0.05, "p": 0.01},
        "b": {"title": "persistence", "mean": 0.54, "difference": 0.01, "p": 0.3},
        "c": {"title": "pooled", "mean": 0.7, "difference": -0.15, "p": 0.001},
    }
    run.summary["baselines"] = {"measure": "test_accuracy", "references": references, "words": "w"}
    found = verdict(groups([run]))
    assert found.headline == (
        "FedAvg reaches 55.00 % next-period accuracy over time, "
        "above majority class (50.0) and below pooled (70.0)"
    )
    assert found.clear == "W."


@pytest.mark.parametrize(("end", "word"), [("failed", "failed"), ("stopped", "was stopped")])
def test_a_run_that_is_not_finished_says_so_and_why(make, end, word):
    found = verdict(groups(make("FedAvg", PLAIN[:1], end=end)))
    assert found.headline == f"FedAvg {word} after round 2 of 9"
    assert ("FedAvg, seed 0 failed: it diverged" in found.failures) == (end == "failed")


def test_failures_beside_results_are_said(make):
    runs = make("FedAvg", PLAIN) + make("Core", AHEAD, CoreSet(5))
    runs += make("Bad", [[0.1]], Taylor(), end="failed")
    assert verdict(groups(runs)).failures == ("Bad, seed 0 failed: it diverged",)


def test_nothing_at_all():
    assert verdict([]).headline == "No run yet"


def test_the_interval_leaves_out_zero_exactly_if_it_is_resolved():
    draw = np.random.default_rng(0)
    for _ in range(200):
        values = draw.normal(draw.normal(), 1, size=int(draw.integers(2, 8))).tolist()
        found = Paired(statistics.fmean(values), statistics.stdev(values), len(values))
        low, high = found.interval()
        assert (low > 0 or high < 0) == (found.p() < 0.05)
        assert (low + high) / 2 == pytest.approx(found.mean)
    assert Paired(1.0, None, 1).interval() is None


@pytest.mark.parametrize("freedom", [1, 2, 5, 40])
@pytest.mark.parametrize("p", [0.5, 0.05, 0.001])
def test_the_quantile_is_the_inverse(p, freedom):
    assert student(student_quantile(p, freedom), freedom) == pytest.approx(p, rel=1e-9)

"""The future never leaks into the past: a table is poisoned from some period on, and nothing before changes."""

import pytest
import torch

from chronofed import CoreSet, Evaluate, Experiment, Method, Mlp, Periods, Table, Train
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.training.loop import run
from tests.helpers.tables import write_table

PERIOD, ROUNDS = 4, 2


def experiment(path, protocol: str, holdout: str = "blocks") -> Experiment:
    return Experiment(
        # Two of six periods to fit on, all before the poison.
        data=Table(path=str(path), period="10", fit_periods=2, holdout=holdout),
        model=Mlp(hidden=(4,)),
        scenario=Periods(rounds_per_period=ROUNDS, window=2),
        method=Method(memory=CoreSet(size=3)),
        train=Train(steps=2, batch_size=8),
        evaluate=Evaluate(protocol=protocol, baselines="all" if protocol == "next" else "off"),
        engine="serial",
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poison")
    clean = write_table(folder, "clean.csv")
    return clean, write_table(folder, "poisoned.csv", poison=PERIOD * 10)


@pytest.mark.parametrize(("protocol", "holdout"), [("next", "blocks"), ("holdout", "random")])
def test_nothing_recorded_before_the_poison_changes(both, tmp_path, protocol, holdout):
    found = []
    for path in both:
        runner.run(experiment(path, protocol, holdout), tmp_path / path.stem)
        found.append(RunDirectory(tmp_path / path.stem))
    clean, poisoned = (run.history() for run in found)
    if protocol == "holdout":
        # The test set has rows of all periods; everything else is of the past.
        for line in (*clean, *poisoned):
            del line["test_accuracy"], line["test_loss"]
    # The poisoned period is first met by the evaluation after the one before it.
    before = PERIOD * ROUNDS - (protocol == "next")
    early = [[line for line in lines if line["round"] <= before] for lines in (clean, poisoned)]
    assert early[0] == early[1]
    assert len(early[0]) == (PERIOD - 1 if protocol == "next" else before)
    assert clean != poisoned
    if protocol == "next":
        check_baselines(*(run.baselines()["scores"] for run in found))


def check_baselines(clean, poisoned):
    assert set(clean) == {"majority", "persistence", "last_period", "local", "pooled"}
    for name, values in clean.items():
        assert values[: PERIOD - 1] == poisoned[name][: PERIOD - 1]
        assert values[PERIOD - 1 :] != poisoned[name][PERIOD - 1 :]


@pytest.mark.parametrize("protocol", ["next", "holdout"])
def test_no_parameter_before_the_poison_changes(both, protocol):
    models = []
    for path in both:
        built = build(experiment(path, protocol))
        settings = built.experiment
        snapshots = run(
            settings.method, built.scenario, built.task, train=settings.train, seed=settings.seed
        )
        models.append([snapshot.params.clone() for snapshot in snapshots])
    same = [torch.equal(*pair) for pair in zip(*models, strict=True)]
    assert same == [k < PERIOD * ROUNDS for k in range(6 * ROUNDS)]

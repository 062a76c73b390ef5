"""Runs on a cluster without Ray, on actors in this process: outcomes, deaths and refusals."""

import logging
import os
import shutil
import sys

import msgspec
import pytest

from chronofed import Cluster, Experiment, Mlp, Train
from chronofed.core.errors import ChronofedError, DivergedError, IncompatibleError, SpecError
from chronofed.runs.spec import Checkpoint
from chronofed.studies import cluster_grid, grid
from chronofed.studies.one_run import GridRun
from chronofed.training.evaluate import Evaluate
from tests.helpers.fake_ray import FakeRay

BASE = Experiment(
    rounds=2,
    model=Mlp((4,)),
    train=Train(steps=1),
    evaluate=Evaluate(seen=20),
    checkpoint=Checkpoint(every=2),
)


@pytest.fixture
def fake(monkeypatch):
    """A cluster whose actors leave nothing behind in this process."""
    logger = logging.getLogger("chronofed")
    before = list(logger.handlers), logger.level
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(cluster_grid, "NEWS_S", 0.01)
    ray = FakeRay()
    monkeypatch.setattr(cluster_grid, "connect", lambda cluster, workers: ray)
    yield ray
    logger.handlers[:] = before[0]
    logger.setLevel(before[1])


def run_all(folder, *experiments, **options):
    runs = [GridRun(each, folder / f"{k}") for k, each in enumerate(experiments)]
    return grid.run_all(runs, None, cluster=Cluster("auto"), **options)


def test_outcomes_are_those_of_this_machine(workdir, fake):
    ended = []
    wild = msgspec.structs.replace(BASE, train=Train(lr=1e30, steps=5))
    good, bad = run_all(workdir / "a", BASE, wild, on_end=lambda n, outcome: ended.append(n))
    here = grid.run_all([GridRun(BASE, workdir / "here")], 1)[0]
    assert good["best5"] == here["best5"]
    assert isinstance(bad, DivergedError)
    assert ended == [0, 1]


def test_a_run_whose_worker_dies_can_be_resumed(workdir, fake):
    fake.unborn = {0}
    bad, good = run_all(workdir, BASE, msgspec.structs.replace(BASE, seed=1))
    assert isinstance(bad, ChronofedError)
    assert str(bad).startswith("the worker of a run died")
    assert str(bad).endswith("resume it")
    assert good["rounds"] == 2


def test_runs_that_only_another_machine_has_are_an_error(workdir, fake, monkeypatch):
    serve = cluster_grid.outcome_of

    def elsewhere(run, *rest):
        outcome = serve(run, *rest)
        shutil.rmtree(run.path)
        return outcome

    monkeypatch.setattr(cluster_grid, "outcome_of", elsewhere)
    (outcome,) = run_all(workdir, BASE)
    assert "choose a folder that all machines share" in str(outcome)


def test_clients_and_runs_are_not_spread_at_once(workdir, fake):
    with pytest.raises(IncompatibleError, match="many runs are spread whole, so leave it out"):
        run_all(workdir, msgspec.structs.replace(BASE, engine="ray"))


def test_addresses_that_make_no_sense_are_one_line(cli, tiny_spec):
    code, _, err = cli("run", "spec.toml", "--address", "auto")
    assert code == SpecError.exit_code
    assert "engine auto: runs on this machine alone" in err
    code, _, err = cli("sweep", "spec.toml", "--vary", "train.lr=0.01:0.1", "--at-once", "2")
    assert code == SpecError.exit_code
    assert "--at-once: only on a cluster; give --address, too" in err

"""Whole runs on the machines of a cluster: progress, failures and results as on one machine."""

import os
import signal

import msgspec
import pytest

from chronofed import Cluster, Experiment, Mlp, Train
from chronofed.core.errors import ChronofedError, DivergedError, IncompatibleError
from chronofed.runs.spec import Checkpoint
from chronofed.studies import grid
from chronofed.studies.one_run import GridRun
from chronofed.studies.search_range import SearchRange
from chronofed.studies.sweep import Sweep
from chronofed.training.evaluate import Evaluate

BASE = Experiment(
    rounds=3,
    model=Mlp((6,)),
    train=Train(steps=2),
    evaluate=Evaluate(seen=50),
    checkpoint=Checkpoint(every=2),
)


@pytest.fixture
def on(cluster, engines):
    # Makes room on the cluster.
    engines(1).close()
    return Cluster(cluster.address)


def runs(folder, *experiments):
    return [GridRun(each, folder / f"{k}") for k, each in enumerate(experiments)]


def records(path):
    return [(path / name).read_bytes() for name in ("metrics.jsonl", "period_accuracy.jsonl")]


def test_runs_on_a_cluster_are_those_of_this_machine(workdir, on):
    told, ended = [], []
    seeds = [msgspec.structs.replace(BASE, seed=seed) for seed in range(4)]
    here = grid.run_all(runs(workdir / "here", *seeds), 1)
    there = grid.run_all(
        runs(workdir / "there", *seeds),
        None,
        on_round=lambda n, p: told.append((n, p.round)),
        on_end=lambda n, outcome: ended.append(n),
        cluster=on,
    )
    for k in range(4):
        assert records(workdir / "here" / f"{k}") == records(workdir / "there" / f"{k}")
        assert here[k]["best5"] == there[k]["best5"]
    assert sorted(told) == [(n, r) for n in range(4) for r in range(4)]
    assert sorted(ended) == [0, 1, 2, 3]


def test_one_that_fails_or_is_killed_does_not_stop_the_others(workdir, cluster, on):
    wild = msgspec.structs.replace(BASE, train=Train(lr=1e30, steps=5))
    endless = msgspec.structs.replace(BASE, rounds=100_000)

    def kill(number, progress):
        if number == 1 and progress.round == 1:
            for pid in cluster.workers("ray::RunWorker"):
                os.kill(pid, signal.SIGKILL)

    good, dead = grid.run_all(runs(workdir / "a", BASE, endless), 1, on_round=kill, cluster=on)
    assert good["rounds"] == 3
    assert isinstance(dead, ChronofedError)
    assert "resume it" in str(dead)
    bad, last = grid.run_all(runs(workdir / "b", wild, BASE), 2, cluster=on)
    assert isinstance(bad, DivergedError)
    assert last["rounds"] == 3


def test_an_engine_of_clusters_is_refused_there(workdir, on):
    again = msgspec.structs.replace(BASE, engine="ray")
    with pytest.raises(IncompatibleError, match="many runs are spread whole"):
        grid.run_all(runs(workdir, again), 1, cluster=on)


def test_the_command_line_spreads_runs(cli, workdir, tiny_spec, cluster, on):
    code, out, _ = cli("run", "spec.toml", "--seeds", "0-2", "--address", cluster.address, "--json")
    assert code == 0
    assert '"runs": 3' in out or '"seeds"' in out
    assert len(list((workdir / "runs").rglob("summary.json"))) == 3


def test_a_sweep_spreads_its_trials(workdir, tiny_spec, on):
    pytest.importorskip("optuna")
    ranges = [SearchRange.parse("train.lr=0.01:0.3")]
    sweep = Sweep(
        workdir / "spec.toml", ranges, workdir / "sweep", cluster=on, at_once=2, seeds=(0, 1)
    )
    trials = sweep.run(3)
    assert [trial.state for trial in trials] == ["complete"] * 3
    assert len({trial.settings["train.lr"] for trial in trials}) == 3
    values = [trial.value for trial in trials]
    assert values == sorted(values, reverse=True)
    # Finished; nothing is run again.
    assert sweep.run(3) == trials

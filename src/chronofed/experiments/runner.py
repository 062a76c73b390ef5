"""Carrying out an experiment in a run directory, from the start or from where it stopped."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronofed.clock import Clock
from chronofed.errors import StorageError
from chronofed.experiments.environment import environment
from chronofed.experiments.spec import Experiment, load, with_path
from chronofed.loop import run
from chronofed.metrics.evaluation import Evaluator
from chronofed.metrics.summary import Measures, summarise
from chronofed.records import RunDirectory
from chronofed.records.checkpoint import load_latest, save
from chronofed.records.directory import remove_leftovers


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is; handed to the caller after every round."""

    round: int
    rounds: int
    measures: Measures | None  # of this round, if it was evaluated


Watch = Callable[[Progress], None]


def start(experiment: Experiment, path: Path, data: Path | None = None) -> RunDirectory:
    """Make the directory of a new run; nothing is written if the experiment cannot work."""
    experiment = with_path(experiment, Path.cwd(), data)
    experiment.build(data)
    return RunDirectory.create(path, experiment.resolved(), environment())


def proceed(
    directory: RunDirectory,
    data: Path | None = None,
    watch: Watch = lambda progress: None,  # noqa: ARG005
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> dict[str, Any]:
    """Work on a run until it is finished.

    Args:
        directory: The run.
        data: Folder of data files.
        watch: Told of every round.
        say: Told, in one line, of anything unusual.

    Returns:
        The run's summary.

    Raises:
        RunError: If another process works on it.
        StorageError: If something cannot be written; the run can be continued later.
    """
    experiment = load(directory.spec_path, data=data)
    with directory.lock():
        summary = directory.summary()
        if summary is not None:
            return summary
        remove_leftovers(directory.path)
        try:
            return _work(directory, experiment, data, watch, say)
        except StorageError as error:
            msg = f"{error}, then continue with: chronofed resume {directory.path}"
            raise StorageError(msg) from error


def _work(
    directory: RunDirectory,
    experiment: Experiment,
    data: Path | None,
    watch: Watch,
    say: Callable[[str], None],
) -> dict[str, Any]:
    task, scenario, rounds = experiment.build(data)
    latest, complaints = load_latest(directory.checkpoints)
    done = latest.round if latest else 0
    for complaint in complaints:
        say(f"{complaint}; going on from round {done}")
    directory.rewind(done)
    evaluate = Evaluator(task, scenario, experiment.method, experiment.evaluate, experiment.seed)
    evaluate.absorb(directory.periods())
    clock = Clock()
    snapshots = run(
        experiment.method,
        scenario,
        task,
        rounds=rounds,
        train=experiment.train,
        seed=experiment.seed,
        start=latest,
        deletions=experiment.deletions,
        clock=clock,
    )
    watch(Progress(done, rounds, None))
    start = time.perf_counter()
    for snapshot in snapshots:
        measures = None
        if experiment.evaluate.due(snapshot.round, rounds):
            with clock("evaluate"):
                evaluation = evaluate(snapshot)
            measures, now = evaluation.measures, time.perf_counter()
            directory.append(measures, {"total": now - start, **clock.read()}, evaluation.periods)
            start = now
        if snapshot.round % experiment.checkpoint.every == 0 or snapshot.round == rounds:
            with clock("write"):
                directory.flush()
                save(directory.checkpoints, snapshot, experiment.checkpoint.keep)
        watch(Progress(snapshot.round, rounds, measures))
    summary = summarise(directory.history()) | _seconds(directory)
    directory.finish(summary)
    return summary


def _seconds(directory: RunDirectory) -> dict[str, float]:
    return {
        f"seconds_{k}" if k != "total" else "seconds": round(v, 3)
        for k, v in directory.seconds().items()
    }

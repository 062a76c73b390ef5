"""Carrying out an experiment in a run directory, from the start or from where it stopped."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from chronofed.clock import Clock
from chronofed.engines.base import LocalEngine
from chronofed.engines.lockers import LockerStore
from chronofed.errors import ChronofedError, RunError, StorageError
from chronofed.experiments.environment import environment
from chronofed.experiments.reader import written
from chronofed.experiments.spec import Experiment, load, with_path
from chronofed.experiments.tracking import Guarded, TrackedRun, find_tracker
from chronofed.loop import Snapshot, run
from chronofed.metrics.evaluation import Evaluator
from chronofed.metrics.holdings import describe
from chronofed.metrics.summary import Measures, summarise
from chronofed.records import RunDirectory
from chronofed.records.checkpoint import load_latest, save
from chronofed.records.directory import remove_leftovers
from chronofed.tasks.classification import Classification


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is; handed to the caller after every round."""

    round: int
    rounds: int
    measures: Measures | None  # of this round, if it was evaluated


Watch = Callable[[Progress], None]
Hire = Callable[[Classification, Clock], LocalEngine]
"""Makes an engine whose clients keep their lockers themselves, such as one on other machines."""


def start(
    experiment: Experiment, path: Path, data: Path | None = None, *, hired: bool = False
) -> RunDirectory:
    """Make the directory of a new run; nothing is written if the experiment cannot work.

    Args:
        experiment: What to do.
        path: Where the directory is to be.
        data: Folder of data files.
        hired: Whether :func:`proceed` will be given an engine whose clients are elsewhere.
    """
    experiment = with_path(experiment, Path.cwd(), data)
    _, scenario, _ = experiment.build(data)
    if not hired:
        scenario.check_here()
    if experiment.track:
        find_tracker(experiment.track)
    return RunDirectory.create(path, experiment.resolved(), environment())


def proceed(
    directory: RunDirectory,
    data: Path | None = None,
    watch: Watch = lambda progress: None,  # noqa: ARG005
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    change: Callable[[Experiment], Experiment] = lambda experiment: experiment,
    hire: Hire | None = None,
) -> dict[str, Any]:
    """Work on a run until it is finished.

    Args:
        directory: The run.
        data: Folder of data files.
        watch: Told of every round.
        say: Told, in one line, of anything unusual.
        change: What is done differently this time, such as the engine; the record stays as it is.
        hire: Makes the engine, where it is not one of those that a specification can name.

    Returns:
        The run's summary.

    Raises:
        RunError: If another process works on it, or it was begun elsewhere.
        StorageError: If something cannot be written; the run can be continued later.
    """
    experiment = change(load(directory.spec_path, data=data))
    with directory.lock():
        summary = directory.summary()
        if summary is not None:
            return summary
        if directory.elsewhere != (hire is not None) and load_latest(directory.checkpoints)[0]:
            raise RunError(_misplaced(directory))
        remove_leftovers(directory.path)
        directory.begin()
        try:
            return _work(directory, experiment, data, watch, say, hire)
        except StorageError as error:
            msg = f"{error}, then continue with: chronofed resume {directory.path}"
            raise StorageError(msg) from error
        except ChronofedError as error:
            directory.fail(str(error))
            raise


def _misplaced(directory: RunDirectory) -> str:
    """What clients keep is on their machines or in the checkpoint: a run cannot change between them."""
    if directory.elsewhere:
        return (
            f"{directory.path}: its clients are on Flower, and so is what they keep; continue it "
            "the way it was started: chronofed flower local ..., or flwr run ..."
        )
    return (
        f"{directory.path}: was begun on this machine, and holds what its clients keep; continue it "
        f"with: chronofed resume {directory.path}"
    )


def _work(
    directory: RunDirectory,
    experiment: Experiment,
    data: Path | None,
    watch: Watch,
    say: Callable[[str], None],
    hire: Hire | None,
) -> dict[str, Any]:
    task, scenario, rounds = experiment.build(data)
    latest, complaints = load_latest(directory.checkpoints)
    done = latest.round if latest else 0
    for complaint in complaints:
        say(f"{complaint}; going on from round {done}")
    directory.rewind(done)
    if not directory.scenario():
        directory.describe_scenario(describe(scenario, task.data, rounds))
    clock = Clock()
    if hire is None:
        choice = experiment.choose(task, scenario)
        engine = choice.build(task, LockerStore(experiment.budget, directory.path), clock)
        about, workers = asdict(choice), choice.workers
    else:
        engine, workers = hire(task, clock), 1
        about = {"engine": type(engine).__name__, "why": "clients are elsewhere"}
    directory.note_engine({"round": done, **about})
    tracker = Guarded(find_tracker(experiment.track) if experiment.track else None, say)
    tracker.start(TrackedRun(directory.path, written(experiment), done, rounds))
    with closing(engine), Writer(directory) as writer:
        task = cast("Classification", engine.task)
        judge = (task, scenario, experiment.method, experiment.evaluate, experiment.seed)
        evaluate = Evaluator(*judge, workers=workers)
        evaluate.absorb(directory.periods())
        snapshots = run(
            experiment.method,
            scenario,
            task,
            rounds=rounds,
            train=experiment.train,
            engine=engine,
            seed=experiment.seed,
            start=latest,
            deletions=experiment.deletions,
            clock=clock,
        )
        del latest  # which may hold a file open
        watch(Progress(done, rounds, None))
        start = time.perf_counter()
        for snapshot in snapshots:
            measures = None
            if experiment.evaluate.due(snapshot.round, rounds):
                with clock("evaluate"):
                    evaluation = evaluate(snapshot)
                measures, now = evaluation.measures, time.perf_counter()
                spent = {"total": now - start, **clock.read()}
                directory.append(measures, spent, evaluation.periods, evaluation.weights)
                tracker.log(snapshot.round, measures)
                start = now
            if snapshot.round % experiment.checkpoint.every == 0 or snapshot.round == rounds:
                with clock("write"):
                    writer.save(snapshot, experiment.checkpoint.keep)
                    if hire is not None:  # clients must not be further than what can be continued
                        writer.wait()
            watch(Progress(snapshot.round, rounds, measures))
    summary = summarise(directory.history()) | _seconds(directory)
    directory.finish(summary)
    tracker.finish(summary)
    return summary


class Writer:
    """Writes checkpoints while training goes on, one at a time.

    A snapshot never changes, so that it can be written at any time. What is booked as writing is only the
    time that training waits.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, snapshot: Snapshot, keep: int) -> None:
        """Write a checkpoint soon; first wait for the one before.

        Raises:
            StorageError: If the one before could not be written.
        """
        self.wait()
        self._pending = self._pool.submit(self._save, snapshot, keep)

    def wait(self) -> None:
        """Until everything is written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _save(self, snapshot: Snapshot, keep: int) -> None:
        self._directory.flush()
        save(self._directory.checkpoints, snapshot, keep)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown()
        if kind is None:
            self.wait()


def _seconds(directory: RunDirectory) -> dict[str, float]:
    return {
        f"seconds_{k}" if k != "total" else "seconds": round(v, 3)
        for k, v in directory.seconds().items()
    }

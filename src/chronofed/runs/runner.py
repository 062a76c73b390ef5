"""Running an experiment in a run directory, from the start or from its latest checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from chronofed.clients.cache import StateCache
from chronofed.core.errors import ChronofedError, RunError, SpecError, StorageError
from chronofed.core.spec_io import to_table
from chronofed.core.timing import PhaseTimer
from chronofed.core.user_code import user_frames_only
from chronofed.engines.base import ManagedEngine, usable_cores
from chronofed.models.supervised import SupervisedTask
from chronofed.runs.built import BuiltRun, build
from chronofed.runs.checkpoint_writer import CheckpointWriter
from chronofed.runs.comparison import compare_with_baselines
from chronofed.runs.directory import RunDirectory
from chronofed.runs.environment import environment
from chronofed.runs.extension import recover, settled
from chronofed.runs.identity import ChangedError
from chronofed.runs.load_spec import load_run
from chronofed.runs.model_files import leave_model, remove_model
from chronofed.runs.recorder import Recorder
from chronofed.runs.rehearsal import rehearse
from chronofed.runs.restore import apply, check_identity, find_start, finished_summary
from chronofed.runs.spec import Experiment, on_engine
from chronofed.runs.tracking import Guarded, TrackedRun, find_tracker
from chronofed.training.divergence import check_loss
from chronofed.training.evaluation import Evaluator
from chronofed.training.loop import Snapshot
from chronofed.training.loop import run as run_rounds
from chronofed.training.measures import next_period_displays
from chronofed.training.nearest_mean import NO_SAMPLES
from chronofed.training.scenario_summary import describe
from chronofed.training.stopping import EarlyStopping
from chronofed.training.summary import Measures, summarise


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, reported after every round.

    Attributes:
        round: Rounds done.
        rounds: Rounds in all; fewer than planned as soon as the run stops early.
        measures: The evaluation of this round, if there was one.
    """

    round: int
    rounds: int
    measures: Measures | None


OnRound: TypeAlias = Callable[[Progress], None]
EngineFactory: TypeAlias = Callable[[SupervisedTask, PhaseTimer], ManagedEngine]
"""Makes an engine whose clients keep their own state, such as one on other machines."""


def _ignore(progress: Progress) -> None:
    pass


def run(
    experiment: Experiment,
    path: Path,
    data: Path | None = None,
    *,
    workers: int | None = None,
    on_round: OnRound = _ignore,
) -> dict[str, Any]:
    """Run an experiment in a directory; if the directory holds a run already, resume that.

    Args:
        experiment: The settings of a new run.
        path: The run's directory.
        data: Folder of data files.
        workers: Clients to train in parallel this time; ``spec.toml`` keeps the experiment's own number.
        on_round: Called after every round.

    Returns:
        The run's summary.
    """
    directory = RunDirectory(path)
    if directory.exists:
        recover(directory)
        settings = on_engine(load_run(directory, data), None, workers)
        return resume(directory, data, experiment=settings, on_round=on_round)
    built = build(experiment, data)
    directory = create(built, path)
    now = replace(built, experiment=on_engine(built.experiment, None, workers))
    return proceed(directory, now, on_round=on_round)


def create(built: BuiltRun, path: Path, *, remote: bool = False) -> RunDirectory:
    """Make the directory of a new run; write nothing if the experiment cannot run.

    Args:
        built: The experiment.
        path: The new directory.
        remote: Whether :func:`proceed` will be given an engine whose clients are on other machines.

    Raises:
        IncompatibleError: If clients are remote and the engine is not.
        RunError: If the directory holds a run already.
        SpecError: If an evaluation needs what remote clients keep.
        UserCodeError: If a part of the user fails in the rehearsal.
    """
    if not remote:
        built.scenario.check_here()
    elif built.experiment.evaluate.classifier != "outputs":
        raise SpecError(NO_SAMPLES)
    if built.experiment.track:
        find_tracker(built.experiment.track)
    RunDirectory(path).check_new()
    rehearse(built)
    return RunDirectory.create(path, built.experiment.resolved(), environment(), built.identity)


def resume(
    directory: RunDirectory,
    data: Path | None = None,
    *,
    experiment: Experiment | None = None,
    on_round: OnRound = _ignore,
    engine_factory: EngineFactory | None = None,
) -> dict[str, Any]:
    """Build the experiment of a run directory and continue the run until it is finished.

    Args:
        directory: The run.
        data: Folder of data files.
        experiment: The directory's experiment, if the caller has loaded it, perhaps with another engine; by
            default loaded from ``spec.toml``, which stays as it is in any case.
        on_round: Called after every round.
        engine_factory: Makes the engine, if it is not one that a specification can name.

    Returns:
        The run's summary; a finished run is left alone.

    Raises:
        RunError: If another process is running it, or its clients are on other machines.
        StorageError: If something cannot be written; the run can be resumed later.
    """
    settings = experiment or load_run(directory, data)

    def build_again() -> BuiltRun:
        check = partial(check_identity, directory)
        return build(settings, data, check_identity=check, settled=settled(directory))

    return _finish(directory, build_again, on_round, engine_factory)


def proceed(
    directory: RunDirectory,
    built: BuiltRun,
    *,
    on_round: OnRound = _ignore,
    engine_factory: EngineFactory | None = None,
) -> dict[str, Any]:
    """Continue a run whose experiment is built already; otherwise as :func:`resume`."""
    return _finish(directory, lambda: built, on_round, engine_factory)


def _finish(
    directory: RunDirectory,
    build_once: Callable[[], BuiltRun],
    on_round: OnRound,
    engine_factory: EngineFactory | None,
) -> dict[str, Any]:
    """Lock the directory, train unless the run is finished, and record a failure."""
    # Before the lock, which needs permission to write.
    summary, _ = finished_summary(directory)
    if summary is not None:
        return summary
    with directory.lock():
        summary, damage = finished_summary(directory)
        if summary is not None:
            return summary
        directory.check_files()
        if directory.remote != (engine_factory is not None) and directory.has_checkpoint:
            raise RunError(_wrong_machine(directory))
        with _recording_failures(directory), user_frames_only():
            built = build_once()
        start = find_start(directory, built.identity)
        if damage:
            start.complaints.append(damage)
        with _recording_failures(directory):
            apply(start, directory, built.identity)
            return _train(directory, built, start.snapshot, on_round, engine_factory)


@contextmanager
def _recording_failures(directory: RunDirectory) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        msg = f"{error}, then continue with: chronofed resume {directory.path}"
        raise StorageError(msg) from error
    except ChangedError:
        raise
    except ChronofedError as error:
        directory.fail(str(error))
        raise


def _wrong_machine(directory: RunDirectory) -> str:
    """Explain that client states are on the clients' machines or in the checkpoint, and cannot move."""
    if directory.remote:
        return (
            f"{directory.path}: its clients, and their states, are on Flower; continue it "
            "the way it was started: chronofed flower local ..., or flwr run ..."
        )
    return (
        f"{directory.path}: was started on this machine, and holds the states of its clients; continue it "
        f"with: chronofed resume {directory.path}"
    )


def _train(
    directory: RunDirectory,
    built: BuiltRun,
    latest: Snapshot | None,
    on_round: OnRound,
    engine_factory: EngineFactory | None,
) -> dict[str, Any]:
    """Train from a snapshot to the last round, and write the summary."""
    experiment, timer = built.experiment, PhaseTimer()
    guess = built.task.guess_loss()
    done = latest.round if latest else 0
    remove_model(directory, built)
    if built.task.data.preparation is not None:
        directory.describe_preparation(built.task.data.preparation.to_json())
    if built.task.data.scales is not None:
        directory.describe_scales(built.task.data.scales.to_json())
    if built.periods is not None:
        directory.describe_periods(built.periods.to_json())
    directory.describe_scenario(describe(built.scenario, built.task.data, built.rounds))
    own = experiment.evaluate.own_measures()
    retitled = next_period_displays() if built.upcoming else []
    directory.describe_measures([*retitled, *(measure.display() for measure in own)])
    with user_frames_only():
        engine, workers = _make_engine(directory, built, timer, done, engine_factory)
    tracker = Guarded(find_tracker(experiment.track) if experiment.track else None)
    tracker.start(TrackedRun(directory.path, to_table(experiment), done, built.rounds))
    with closing(engine), CheckpointWriter(directory) as writer:
        evaluator = _evaluator(directory, built, cast("SupervisedTask", engine.task), workers)
        # Remote clients must not be ahead of the checkpoint that the server can resume from.
        wait_for_writes = engine_factory is not None
        stopping = _stopping(directory, built)
        parts = (evaluator, stopping, tracker, timer, writer)
        recorder = Recorder(directory, built, *parts, wait_for_writes)
        recorder.start_clock()
        if latest is not None:
            recorder.catch_up(latest)
        snapshots = _snapshots(built, engine, latest or built.first_snapshot(), timer)
        # A loaded snapshot may hold a file open.
        del latest
        on_round(Progress(done, built.rounds, None))
        while not stopping.reason and (snapshot := next(snapshots, None)):
            with user_frames_only():
                measures = recorder.record(snapshot)
            last = snapshot.round if stopping.reason else built.rounds
            on_round(Progress(snapshot.round, last, measures))
            check_loss(measures, guess, built.watched_loss)
    history = directory.history()
    check_loss(history[-1] if history else None, guess, built.watched_loss)
    summary = summarise(history, own) | {"rounds": built.rounds} | stopping.outcome(built.rounds)
    if built.upcoming is not None:
        with timer("baselines"):
            summary |= compare_with_baselines(directory, built, history)
    summary |= _seconds(recorder.seconds())
    leave_model(directory, built, summary)
    directory.finish(summary)
    tracker.finish(summary)
    return summary


def _make_engine(
    directory: RunDirectory,
    built: BuiltRun,
    timer: PhaseTimer,
    done: int,
    engine_factory: EngineFactory | None,
) -> tuple[ManagedEngine, int]:
    """Make the engine and record which; return it with the number of workers for evaluations."""
    engine: ManagedEngine
    if engine_factory is not None:
        engine, workers = engine_factory(built.task, timer), 1
        about = {"engine": type(engine).__name__, "reason": "clients are on other machines"}
    else:
        choice = built.choose_engine()
        states = StateCache(built.experiment.state_cache_bytes, directory.path)
        local = choice.build(built.task, states, timer, built.experiment.cluster)
        engine, workers = local, choice.workers or local.workers
        if local.clustered:
            # A cluster has cores that are not here, where the model is evaluated.
            choice = replace(choice, workers=local.workers)
            workers = min(workers, usable_cores())
        about = asdict(choice)
    directory.record_engine({"round": done, **about})
    return engine, workers


def _evaluator(
    directory: RunDirectory, built: BuiltRun, task: SupervisedTask, workers: int
) -> Evaluator:
    settings = built.experiment
    parts = (task, built.scenario, settings.method, settings.evaluate, settings.seed)
    evaluator = Evaluator(*parts, workers, built.upcoming, settings.stop is not None, built.rounds)
    evaluator.absorb(directory.record(evaluator.accuracy_history.record))
    return evaluator


def _stopping(directory: RunDirectory, built: BuiltRun) -> EarlyStopping:
    """Follow the evaluations so far; data that are to be deleted are deleted before a run may end."""
    settings = built.experiment
    deletions = [deletion.round + 1 for deletion in settings.deletions]
    stopping = EarlyStopping(settings.stop, max(deletions, default=0))
    stopping.absorb(directory.history())
    return stopping


def _snapshots(
    built: BuiltRun, engine: ManagedEngine, start: Snapshot | None, timer: PhaseTimer
) -> Iterator[Snapshot]:
    """Train round by round. Errors of the caller's ``on_round`` pass as they are."""
    settings = built.experiment
    snapshots = run_rounds(
        settings.method,
        built.scenario,
        engine.task,
        rounds=built.rounds,
        train=settings.train,
        engine=engine,
        seed=settings.seed,
        start=start,
        deletions=settings.deletions,
        timer=timer,
        checked=True,
        server_samples=built.server_samples,
        partial_sums=settings.partial_sums,
    )
    with user_frames_only():
        yield from snapshots


def _seconds(spent: Mapping[str, float]) -> dict[str, float]:
    return {
        f"seconds_{phase}" if phase != "total" else "seconds": round(value, 3)
        for phase, value in spent.items()
    }

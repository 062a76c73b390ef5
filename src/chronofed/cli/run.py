"""The command ``chronofed run``."""

from argparse import Namespace
from pathlib import Path

import msgspec

from chronofed.cli.output import emit, emit_json, note, width
from chronofed.cli.progress import progress
from chronofed.errors import RunError, SpecError
from chronofed.experiments import runner, spec
from chronofed.records import RunDirectory
from chronofed.records.checkpoint import load_latest
from chronofed.reports.samples import check_picture, draw_samples
from chronofed.reports.terminal import comparison
from chronofed.reports.view import RunView, groups


def main(options: Namespace) -> int:
    """Carry out an experiment."""
    experiment = spec.load(options.spec, options.set, options.data)
    experiment = changed(experiment, options)
    check_samples(experiment, options)
    path = options.output or Path("runs") / default_name(experiment)
    directory = runner.start(experiment, path, options.data)
    return work(directory, experiment, options)


def changed(experiment: spec.Experiment, options: Namespace) -> spec.Experiment:
    """The experiment with the engine and the tracker that the command line asks for."""
    experiment = spec.on_engine(experiment, options.engine, options.workers)
    return msgspec.structs.replace(experiment, track=options.track or experiment.track)


def default_name(experiment: spec.Experiment) -> str:
    """Name, fingerprint and seed: equal experiments meet in one directory."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in experiment.name)
    return f"{safe}-{experiment.fingerprint()}-s{experiment.seed}"


def work(directory: RunDirectory, experiment: spec.Experiment, options: Namespace) -> int:
    """Bring a run to its end and show the result."""
    with progress(options.quiet or options.json) as bars:
        summary = runner.proceed(
            directory,
            options.data,
            bars.watch(experiment.name),
            note,
            lambda read: changed(read, options),
        )
    if options.json:
        emit_json({"run": str(directory.path), **summary})
    else:
        found = groups([RunView.read(directory.path)])
        emit(comparison(found, f"run: {directory.path}", width()))
    if options.samples:
        _draw_samples(directory, experiment, options)
    return 0


def check_samples(experiment: spec.Experiment, options: Namespace) -> None:
    """Refuse, before anything is trained, to draw samples where there will be none.

    Raises:
        SpecError: If clients keep no samples, or none that are images.
    """
    if not options.samples:
        return
    memory = experiment.method.memory
    if memory.home != "client":
        msg = (
            f"--samples: with {type(memory).__name__} clients keep no samples to draw; "
            "leave it out, or choose a memory that keeps some, e.g. core-set or generative"
        )
        raise SpecError(msg)
    task, _, _ = experiment.build(options.data)
    check_picture(options.samples, task.data.shape)


def _draw_samples(directory: RunDirectory, experiment: spec.Experiment, options: Namespace) -> None:
    """Draw what clients keep at the end of the run."""
    snapshot, _ = load_latest(directory.checkpoints)
    if snapshot is None:
        raise RunError(f"{directory.path} has no checkpoint left to take samples from")
    task, _, _ = experiment.build(options.data)
    draw_samples(snapshot.lockers, options.samples, task.data.classes)
    note(f"samples: {options.samples}")

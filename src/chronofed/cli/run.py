"""The command ``chronofed run``."""

from argparse import Namespace
from pathlib import Path

from chronofed.cli.output import emit, emit_json, note
from chronofed.cli.progress import progress
from chronofed.experiments import runner, spec
from chronofed.records import RunDirectory
from chronofed.reports.terminal import comparison
from chronofed.reports.view import RunView, groups


def main(options: Namespace) -> int:
    """Carry out an experiment."""
    experiment = spec.load(options.spec, options.set, options.data)
    path = options.output or Path("runs") / default_name(experiment)
    directory = runner.start(experiment, path, options.data)
    return work(directory, experiment.name, options)


def default_name(experiment: spec.Experiment) -> str:
    """Name, fingerprint and seed: equal experiments meet in one directory."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in experiment.name)
    return f"{safe}-{experiment.fingerprint()}-s{experiment.seed}"


def work(directory: RunDirectory, name: str, options: Namespace) -> int:
    """Bring a run to its end and show the result."""
    with progress(options.quiet or options.json) as bars:
        summary = runner.proceed(directory, options.data, bars.watch(name), note)
    if options.json:
        emit_json({"run": str(directory.path), **summary})
    else:
        emit(comparison(groups([RunView.read(directory.path)]), title=f"run: {directory.path}"))
    return 0

"""The command ``chronofed run``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronofed.cli.many import add_grid, check_no_jobs, run_grid
from chronofed.cli.options import (
    add_address,
    add_data,
    add_engine,
    add_json,
    add_quiet,
    add_samples,
    add_spec,
    add_track,
    check_spec,
)
from chronofed.cli.output import emit, emit_json, note, plain, width
from chronofed.core.errors import RunError, SpecError

if TYPE_CHECKING:
    from chronofed.runs import RunDirectory
    from chronofed.runs.built import BuiltRun
    from chronofed.runs.spec import Experiment

GROUP = "experiments"
HELP = "run an experiment"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser)
    text = (
        "run directory to create (default: runs/NAME-FINGERPRINT-sSEED); of many runs, their folder"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    add_grid(parser)
    for add in (add_engine, add_address, add_data, add_samples, add_track, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Run an experiment."""
    check_spec(options.spec)
    if options.seeds is not None or options.vary:
        return run_grid(options)
    check_no_jobs(options)
    from chronofed.cli.progress import progress
    from chronofed.runs import runner
    from chronofed.runs.built import build
    from chronofed.runs.load_spec import load

    experiment = changed(load(options.spec, options.set, options.data), options)
    built = build(experiment, options.data)
    check_samples(built, options)
    if experiment.evaluate.on != "test" and not (options.quiet or options.json):
        note(_rows_meant(built))
    if built.start is not None and not (options.quiet or options.json):
        note(
            f"starts from the model of {built.start.path}; what its clients kept is not taken over"
        )
    path = options.output or Path("runs") / default_name(experiment)
    directory = runner.create(built, path)
    options.continue_with = ["resume", str(path)]
    with progress(options.quiet or options.json) as bars:
        on_round = bars.watch(experiment.name, built.experiment.evaluate.own_measures())
        summary = runner.proceed(directory, built, on_round=on_round)
    return show(directory, summary, built, options)


def _rows_meant(built: "BuiltRun") -> str:
    """Say which rows are meant by 'test' while settings are chosen."""
    if built.upcoming is None:
        return "'test' below means validation rows (evaluate.on)"
    periods = built.upcoming.origin.periods
    return f"only the periods until {periods[-1]} are used, to choose settings by (evaluate.on)"


def changed(experiment: "Experiment", options: Namespace) -> "Experiment":
    """Return the experiment with the engine and the tracker of the command line."""
    import msgspec

    from chronofed.runs.spec import on_engine

    experiment = on_engine(experiment, options.engine, options.workers, options.address)
    return msgspec.structs.replace(experiment, track=options.track or experiment.track)


def default_name(experiment: "Experiment") -> str:
    """Join name, fingerprint and seed: equal experiments get the same directory."""
    from chronofed.runs.spec import directory_name

    return directory_name(experiment)


def show(
    directory: "RunDirectory",
    summary: dict[str, Any],
    built: "BuiltRun | None",
    options: Namespace,
) -> int:
    """Print the result of a run; with ``--samples``, draw the samples that clients keep."""
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import RunView
    from chronofed.reports.terminal.comparison import comparison

    if options.json:
        emit_json({"run": str(directory.path), **summary})
    else:
        found = groups([RunView.read(directory.path)])
        emit(comparison(found, f"run: {directory.path}", width(), plain()))
        for line in verdict(summary):
            emit(line)
    if options.samples and built is not None:
        _draw_samples(directory, built, options)
    return 0


def verdict(summary: "Mapping[str, Any]") -> list[str]:
    """Say in words how a run compares with its baselines, and which were left out."""
    found = summary.get("baselines", {})
    return [found[key] for key in ("words", "reason") if found.get(key)]


def check_samples(built: "BuiltRun", options: Namespace) -> None:
    """Refuse ``--samples`` before training starts if there will be none to draw.

    Raises:
        SpecError: If clients keep no samples, or none that are images.
    """
    from chronofed.reports.figures.samples import check_picture

    if not options.samples:
        return
    memory = built.experiment.method.memory
    if memory.location != "client":
        msg = (
            f"--samples: with {type(memory).__name__} clients keep no samples to draw; "
            "leave it out, or choose a memory that keeps some, e.g. core-set or generative"
        )
        raise SpecError(msg)
    check_picture(options.samples, built.task.data.shape)


def _draw_samples(directory: "RunDirectory", built: "BuiltRun", options: Namespace) -> None:
    """Draw the samples that clients keep at the end of the run."""
    from chronofed.reports.figures.samples import draw_samples
    from chronofed.runs.checkpoint import load_latest
    from chronofed.training.scenario_summary import names_of

    snapshot, _ = load_latest(directory.checkpoints)
    if snapshot is None:
        raise RunError(f"{directory.path} has no checkpoint left to take samples from")
    data = built.task.data
    names = names_of(built.scenario, data)
    draw_samples(snapshot.client_states, options.samples, data.classes, names=names)
    note(f"samples: {options.samples}")

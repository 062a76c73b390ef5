"""The command ``chronofed resume``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.options import (
    add_address,
    add_data,
    add_engine,
    add_json,
    add_quiet,
    add_samples,
    add_track,
)
from chronofed.cli.output import note
from chronofed.cli.run import changed, check_samples, show

GROUP = "experiments"
HELP = "continue a run that was stopped"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    for add in (add_engine, add_address, add_data, add_samples, add_track, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Continue a run; of a finished one, print the result again."""
    # A folder that is not a run is reported before torch is imported.
    from chronofed.runs import RunDirectory

    directory = RunDirectory.open(options.run)
    from chronofed.cli.progress import progress
    from chronofed.runs import runner
    from chronofed.runs.built import build
    from chronofed.runs.extension import recover, settled
    from chronofed.runs.load_spec import load_run
    from chronofed.runs.restore import finished_summary

    recover(directory)
    finished = finished_summary(directory)[0] is not None
    experiment = changed(load_run(directory, options.data), options)
    # A finished run needs its data only to draw samples.
    built = None
    if options.samples:
        built = build(experiment, options.data, settled=settled(directory))
        check_samples(built, options)
    with progress(options.quiet or options.json) as bars:
        on_round = bars.watch(experiment.name, experiment.evaluate.own_measures())
        if built is not None:
            summary = runner.proceed(directory, built, on_round=on_round)
        else:
            summary = runner.resume(
                directory, options.data, experiment=experiment, on_round=on_round
            )
    code = show(directory, summary, built, options)
    if finished:
        note(f"{options.run} is finished; nothing to do")
    return code

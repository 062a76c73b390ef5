"""The command ``chronofed resume``."""

from argparse import Namespace

from chronofed.cli.run import check_samples, work
from chronofed.experiments import spec
from chronofed.records import RunDirectory


def main(options: Namespace) -> int:
    """Continue a run that was stopped; a finished one is only shown again."""
    directory = RunDirectory.open(options.run)
    experiment = spec.load(directory.spec_path, data=options.data)
    check_samples(experiment, options)
    return work(directory, experiment, options)

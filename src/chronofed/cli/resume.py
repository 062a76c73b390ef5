"""The command ``chronofed resume``."""

from argparse import Namespace

from chronofed.cli.run import work
from chronofed.experiments import spec
from chronofed.records import RunDirectory


def main(options: Namespace) -> int:
    """Continue a run that was stopped; a finished one is only shown again."""
    directory = RunDirectory.open(options.run)
    return work(directory, spec.load(directory.spec_path, data=options.data).name, options)

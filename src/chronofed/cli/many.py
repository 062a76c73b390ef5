"""Many runs of one command: their options, their progress, and what is said about failures."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import check_counts, parse_seeds
from chronofed.cli.output import emit, emit_json, note, plain, width
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from chronofed.engines.cluster import Cluster
    from chronofed.runs.runner import Progress
    from chronofed.studies.one_run import RunOutcome
    from chronofed.studies.recipe import RecipeCell
    from chronofed.studies.study import Study, StudyOutcome


def add_grid(parser: ArgumentParser) -> None:
    """Add the options that make many runs of a specification."""
    text = "run once for every seed, e.g. 0-4 or 0,1,2 (default: the spec's)"
    parser.add_argument("--seeds", metavar="LIST", help=text)
    text = "run all combinations of values, e.g. method.memory=none,core-set; repeat for more keys"
    parser.add_argument("--vary", action="append", default=[], metavar="KEY=VALUES", help=text)
    text = "with --seeds or --vary: runs to work on in parallel (default: one for each core)"
    parser.add_argument("--jobs", type=int, metavar="N", help=text)


def check_no_jobs(options: Namespace) -> None:
    """Refuse ``--jobs`` for a single run.

    Raises:
        SpecError: If it is given.
    """
    if options.jobs is not None:
        raise SpecError("--jobs: a single run is one job; give --seeds or --vary, or use --workers")


def run_grid(options: Namespace) -> int:
    """Run an experiment with all combinations of values and seeds; called again, go on with what is missing."""
    check_counts(options, "jobs")
    if options.samples:
        raise SpecError("--samples: draws the samples of one run; leave --seeds and --vary out")
    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    from chronofed.studies.study import Study
    from chronofed.studies.vary import Grid, Varied

    varied = [Varied.parse(text) for text in options.vary]
    grid = Grid(options.spec, varied, options.set, options.data)
    cells = grid.cells(seeds, options.engine, options.workers, options.track)
    study = Study(options.output or Path("runs") / grid.name, options.data, named=True)
    outcome = run_cells(study, cells, options)
    if outcome.done:
        _show(study, outcome.done, options)
    return tell_failures(outcome)


def _show(study: "Study", cells: "Sequence[RecipeCell]", options: Namespace) -> None:
    """Compare the experiments that are finished."""
    from chronofed.cli.compare import as_json
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import read_runs
    from chronofed.reports.terminal.comparison import comparison

    found = groups(read_runs([study.path(cell.experiment) for cell in cells]))
    if options.json:
        emit_json([as_json(group) for group in found])
        return
    emit(comparison(found, f"runs: {study.folder}", width(), plain()))


def run_cells(
    study: "Study",
    cells: "Sequence[RecipeCell]",
    options: Namespace,
) -> "StudyOutcome":
    """Run all cells under one progress bar; without a terminal, print a line for each that ends."""
    from chronofed.cli.progress import overall
    from chronofed.core.errors import IncompatibleError

    pending = study.pending(cells)
    with overall(options.quiet or options.json) as bar:
        bar.begin(len(pending))

        def on_round(number: int, at: "Progress") -> None:
            bar.move(number, pending[number].name, at)

        def on_end(number: int, outcome: "RunOutcome") -> None:
            if isinstance(outcome, IncompatibleError):
                bar.drop(number)

        return study.run(cells, options.jobs, on_round, on_end, cluster_of(options))


def cluster_of(options: Namespace) -> "Cluster | None":
    """Return the cluster that shares the runs, if one is asked for."""
    from chronofed.engines.cluster import Cluster

    return None if options.address is None else Cluster(options.address)


def tell_failures(outcome: "StudyOutcome") -> int:
    """Say what was refused and what failed; return the exit code."""
    for name, reason in {cell.experiment.name: why for cell, why in outcome.refused}.items():
        note(f"refused: {name}: {reason}")
    for cell, error in outcome.failed:
        note(f"failed: {cell.name}: {error}")
    if outcome.failed:
        note("run the same command again to retry what failed, and nothing else")
    return 1 if outcome.failed else 0

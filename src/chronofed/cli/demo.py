"""The command ``chronofed demo``."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_quiet, check_counts
from chronofed.cli.output import emit, emit_json, note, plain, width
from chronofed.core.errors import ChronofedError

if TYPE_CHECKING:
    from chronofed.runs.spec import Experiment

GROUP = "experiments"
HELP = "compare FedAvg with CFL-Core-Set on embedded data"

ROUNDS = 100
SEEDS = 3
MOST_SEEDS = 1000
TITLE = "FedAvg and CFL-Core-Set on clients whose data keep changing"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = f"rounds of each run (default {ROUNDS})"
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=text)
    text = f"number of seeds (default {SEEDS})"
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=text)
    text = "folder of the runs and the report (default: runs/demo-TIME)"
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    add_quiet(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Compare both methods over some seeds; write runs and a report."""
    check_counts(options, "rounds")
    check_counts(options, "seeds", most=MOST_SEEDS)
    # It takes less than a minute, and starts over.
    options.continue_with = ["demo"]
    from chronofed.cli.compare import as_json
    from chronofed.cli.progress import progress
    from chronofed.engines.base import usable_cores
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import RunView
    from chronofed.reports.terminal.comparison import comparison
    from chronofed.reports.terminal.sentences import sentences
    from chronofed.reports.verdict import verdict
    from chronofed.reports.web.page import write_report
    from chronofed.runs import RunDirectory
    from chronofed.studies.grid import run_all
    from chronofed.studies.one_run import GridRun

    folder = options.output or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    timer = time.perf_counter()
    runs = [
        GridRun(each, folder / f"{each.name.lower()}-s{each.seed}")
        for each in experiments(options.rounds, options.seeds)
    ]
    for each in runs:
        RunDirectory(each.path).check_new()
    with progress(options.quiet or options.json) as bars:
        moves = [
            bars.watch(f"{each.experiment.name}, seed {each.experiment.seed}") for each in runs
        ]
        outcomes = run_all(runs, usable_cores(), on_round=lambda number, at: moves[number](at))
    for outcome in outcomes:
        if isinstance(outcome, ChronofedError):
            raise outcome
    seconds = time.perf_counter() - timer
    found = groups([RunView.read(run.path) for run in runs])
    report = folder / "report.html"
    write_report(found, report, TITLE)
    if options.json:
        emit_json(
            {
                "seconds": seconds,
                "report": str(report),
                "verdict": verdict(found).lines,
                "experiments": [as_json(g) for g in found],
            }
        )
        return 0
    emit(comparison(found, TITLE, width(), plain()))
    emit(sentences(found, plain()))
    note(f"trained in {seconds:.1f} s; report: {report.resolve()}")
    return 0


def experiments(rounds: int, seeds: int) -> "list[Experiment]":
    """Return both methods on the paper's scenario, with 7 clients of 30 subsets to suit the embedded data."""
    import msgspec

    from chronofed.methods.backbones import FedAvg
    from chronofed.methods.local import Train
    from chronofed.methods.memories import CoreSet, Forget
    from chronofed.methods.method import Method
    from chronofed.runs.spec import Checkpoint, Experiment
    from chronofed.scenarios import Subsets
    from chronofed.training.evaluate import Evaluate

    methods = {
        "FedAvg": Method(FedAvg(), Forget()),
        "CFL-Core-Set": Method(FedAvg(), CoreSet(size=20)),
    }
    base = Experiment(
        rounds=rounds,
        scenario=Subsets(clients=7, subsets=30, client_alpha=0.1),
        train=Train(lr=0.05, steps=5),
        evaluate=Evaluate(every=5, seen=1000),
        checkpoint=Checkpoint(every=50),
    )
    return [
        msgspec.structs.replace(base, name=name, method=method, seed=seed)
        for name, method in methods.items()
        for seed in range(seeds)
    ]

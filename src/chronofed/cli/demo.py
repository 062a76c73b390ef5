"""The command ``chronofed demo``."""

import time
from argparse import Namespace
from pathlib import Path

import msgspec

from chronofed.backbones import FedAvg
from chronofed.cli.compare import as_json
from chronofed.cli.output import emit, emit_json, note, width
from chronofed.cli.progress import progress
from chronofed.engines.base import usable_cores
from chronofed.errors import ChronofedError
from chronofed.experiments import runner
from chronofed.experiments.grid import proceed_all
from chronofed.experiments.spec import Checkpoint, Experiment
from chronofed.local import Train
from chronofed.memories import CoreSet, Forget
from chronofed.metrics.evaluation import Evaluate
from chronofed.protocol import Method
from chronofed.reports.html import write_report
from chronofed.reports.terminal import comparison
from chronofed.reports.view import RunView, groups
from chronofed.scenarios import Subsets

ROUNDS = 100
METHODS = {
    "FedAvg": Method(FedAvg(), Forget()),
    "CFL-Core-Set": Method(FedAvg(), CoreSet(size=20)),
}
TITLE = "FedAvg and CFL-Core-Set on clients whose data keep changing"


def experiments(rounds: int, seeds: int) -> list[Experiment]:
    """Both methods on the paper's scenario, at the size of the embedded data: 7 clients, 30 subsets each."""
    base = Experiment(
        rounds=rounds,
        scenario=Subsets(clients=7, subsets=30, client_alpha=0.1),
        train=Train(lr=0.05, steps=5),
        evaluate=Evaluate(every=5, seen=1000),
        checkpoint=Checkpoint(every=50),
    )
    return [
        msgspec.structs.replace(base, name=name, method=method, seed=seed)
        for name, method in METHODS.items()
        for seed in range(seeds)
    ]


def main(options: Namespace) -> int:
    """Compare both methods over some seeds; leave runs and a report."""
    folder = options.output or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    clock = time.perf_counter()
    cells = experiments(options.rounds or ROUNDS, options.seeds)
    paths = [folder / f"{cell.name.lower()}-s{cell.seed}" for cell in cells]
    runs = [runner.start(cell, path) for cell, path in zip(cells, paths, strict=True)]
    with progress(options.quiet or options.json) as bars:
        watches = [bars.watch(f"{cell.name}, seed {cell.seed}") for cell in cells]
        outcomes = proceed_all(
            runs, usable_cores(), watch=lambda number, at: watches[number](at), say=note
        )
    for outcome in outcomes:
        if isinstance(outcome, ChronofedError):
            raise outcome
    seconds = time.perf_counter() - clock
    found = groups([RunView.read(path) for path in paths])
    report = folder / "report.html"
    write_report(found, report, TITLE)
    if options.json:
        emit_json(
            {"seconds": seconds, "report": str(report), "experiments": [as_json(g) for g in found]}
        )
        return 0
    emit(comparison(found, TITLE, width()))
    note(f"trained in {seconds:.1f} s; report: {report.resolve()}")
    return 0

"""The command ``chronofed bench``."""

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from chronofed.cli.options import add_json, add_workers, check_counts
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.bounds import MOST_WORKERS
from chronofed.core.errors import ChronofedError, SpecError

if TYPE_CHECKING:
    from rich.table import Table

GROUP = "this machine"
HELP = "time rounds of fixed workloads on every engine"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    every = ["A", "B", "C", "R"]
    text = "A, B, C or R (default: all)"
    parser.add_argument("workloads", nargs="*", default=every, metavar="WORKLOAD", help=text)
    parser.add_argument(
        "--engines",
        nargs="+",
        metavar="ENGINE",
        help="engines to time, by name or package.module:Class (default: all of one machine)",
    )
    add_workers(parser, "one for each core")
    text = "rounds to time on each engine (default 7)"
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Time rounds of fixed workloads on every engine, interleaved."""
    check_counts(options, "rounds")
    check_counts(options, "workers", most=MOST_WORKERS)
    from chronofed.engines.auto import AUTO, find_engine
    from chronofed.studies.bench import WORKLOADS, peak

    names = [name.upper() for name in options.workloads]
    for name in names:
        if name not in WORKLOADS:
            raise SpecError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    for engine in options.engines or ():
        if engine != AUTO:
            find_engine(engine)
    workers = options.workers or len(os.sched_getaffinity(0))
    best = peak(workers)
    found = [row for name in names for row in _measure(name, options, best)]
    if options.json:
        emit_json({"peak_gflops": best / 1e9, "workers": workers, "results": found})
        return 0
    emit(_table(found))
    note(f"fastest matrix product with {workers} threads: {best / 1e9:.0f} GFLOP/s")
    return 0


class _Process:
    """A process that runs a round on request."""

    def __init__(self, engine: str, command: list[str]) -> None:
        self.engine = engine
        self.about = ""
        self.seconds: list[float] = []
        self.memory_mb = 0.0
        self._command = command

    def __enter__(self) -> "_Process":
        import subprocess

        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._answer()["engine"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def round(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.memory_mb = max(self.memory_mb, answer["memory_mb"])

    def _answer(self) -> dict[str, Any]:
        import json

        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChronofedError(
                f"bench: the process of engine {self.engine} died; see its output above"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def _measure(name: str, options: Namespace, best: float) -> list[dict[str, Any]]:
    """Start all engines on one workload and let them take turns, in random order."""
    import random
    from contextlib import ExitStack

    from chronofed.engines.auto import AUTO

    program = [sys.executable, "-m", "chronofed.studies.bench", name]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_Process(engine, [*program, engine, str(options.workers or 0)]))
            for engine in options.engines or (AUTO, *_on_one_machine())
            if engine != "batched" or name in ("A", "B")
        ]
        order = random.Random(0)
        for _ in range(options.rounds):
            for process in order.sample(processes, len(processes)):
                process.round()
    return [_row(name, process, best) for process in processes]


def _on_one_machine() -> list[str]:
    """Return the names of the engines that need no cluster; others have to be asked for."""
    from chronofed.engines.auto import ENGINES

    return [name for name, cls in ENGINES.items() if not cls.clustered]


def _row(name: str, process: _Process, best: float) -> dict[str, Any]:
    import statistics

    from chronofed.studies.bench import WORKLOADS

    work, seconds = WORKLOADS[name], statistics.median(process.seconds)
    return {
        "workload": name,
        "about": work.about,
        "engine": process.engine,
        "chosen": process.about,
        "seconds": seconds,
        "fastest": min(process.seconds),
        "slowest": max(process.seconds),
        "samples_per_second": work.samples * work.cohort / seconds,
        "share_of_peak": work.operations() / seconds / best,
        "memory_mb": process.memory_mb,
    }


def _table(rows: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table(title="One FedAvg round", title_justify="left", header_style="bold")
    table.add_column("workload")
    table.add_column("engine")
    for heading in ("seconds", "range", "samples/s", "share of peak", "memory MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for row in rows:
        if before not in (None, row["workload"]):
            table.add_section()
        first, before = before != row["workload"], row["workload"]
        engine = f"auto: {row['chosen']}" if row["engine"] == "auto" else row["chosen"]
        table.add_row(
            f"{row['workload']}: {row['about']}" if first else "",
            engine,
            f"{row['seconds']:.3g}",
            f"{row['fastest']:.3g} - {row['slowest']:.3g}",
            f"{row['samples_per_second']:,.0f}",
            f"{row['share_of_peak']:.0%}",
            f"{row['memory_mb']:,.0f}",
        )
    return table

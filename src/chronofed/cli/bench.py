"""The command ``chronofed bench``."""

import json
import os
import random
import statistics
import subprocess
import sys
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from chronofed.cli.output import emit, emit_json, note
from chronofed.errors import ChronofedError, SpecError
from chronofed.experiments.bench import WORKLOADS, peak


def main(options: Namespace) -> int:
    """Time rounds of fixed workloads on every engine, interleaved."""
    if options.rounds < 1:
        raise SpecError(f"--rounds: expected a number >= 1, not {options.rounds}")
    names = [name.upper() for name in options.workloads]
    for name in names:
        if name not in WORKLOADS:
            raise SpecError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    workers = options.workers or len(os.sched_getaffinity(0))
    best = peak(workers)
    found = [row for name in names for row in _measure(name, options, best)]
    if options.json:
        emit_json({"peak_gflops": best / 1e9, "workers": workers, "results": found})
        return 0
    emit(_table(found))
    note(f"the fastest matrix product with {workers} threads: {best / 1e9:.0f} GFLOP/s")
    return 0


@dataclass
class _Contestant:
    """A process that runs a round when it is told to."""

    engine: str
    command: list[str]
    about: str = ""
    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0

    def __enter__(self) -> "_Contestant":
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
        self.memory = max(self.memory, answer["memory"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChronofedError(f"bench: the process of engine {self.engine} ended; see above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _measure(name: str, options: Namespace, best: float) -> list[dict[str, Any]]:
    """All engines on one workload: they sit ready side by side and take turns."""
    program = [sys.executable, "-m", "chronofed.experiments.bench", name]
    with ExitStack() as stack:
        everybody = [
            stack.enter_context(_Contestant(engine, [*program, engine, str(options.workers or 0)]))
            for engine in options.engines
            if engine != "batched" or name in ("A", "B")
        ]
        order = random.Random(0)
        for _ in range(options.rounds):
            for contestant in order.sample(everybody, len(everybody)):
                contestant.round()
    return [_row(name, contestant, best) for contestant in everybody]


def _row(name: str, contestant: _Contestant, best: float) -> dict[str, Any]:
    work, seconds = WORKLOADS[name], statistics.median(contestant.seconds)
    return {
        "workload": name,
        "about": work.about,
        "engine": contestant.engine,
        "chosen": contestant.about,
        "seconds": seconds,
        "fastest": min(contestant.seconds),
        "slowest": max(contestant.seconds),
        "samples_per_second": work.samples * work.cohort / seconds,
        "share_of_peak": work.operations() / seconds / best,
        "memory_mb": contestant.memory,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
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

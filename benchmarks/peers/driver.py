"""Time FedAvg rounds of several simulators on the same arrays, interleaved on this machine.

    python benchmarks/peers/driver.py A [--only naive pfl-1 ...] [--rounds 10] [--json FILE]

A contestant is an entry of contestants.toml: an interpreter, a script and arguments, run as ``interpreter
script WORKLOAD arguments``. It speaks lines on its standard input and output (``protocol.py`` has a ready
implementation, ``Channel.serve``); standard error is its own and goes to a log.

1. It prepares everything: data resident, one round in stored order compared with the reference
   (``workload.check``), two rounds to warm up. Then it writes ``{"ready": true, "steps": 8, "samples": 238,
   ...}``: steps and samples of one client in one round.
2. For every line ``go`` it runs one FedAvg round on the cohort ``workload.cohort(work, number of the round)``
   and writes ``{"seconds": ..., "rss_mb": ..., "pss_mb": ...}``. ``go n`` is n rounds, and ``seconds`` is for
   one.
3. ``quit`` or the end of its input ends it.

Contestants sit ready side by side and take turns in an order that is shuffled anew for every round, so that
what else happens on the machine meets all of them. One marked ``alone`` comes afterwards, beside a fresh
``naive``. Ratios are medians of seconds over naive's median in the same phase; below 1 is faster than naive.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from protocol import cpu_seconds
from workload import WORKLOADS, flops

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = Path.home() / ".cache" / "chronofed-peers"
BASELINE = "naive"
STAMPS = (".complete", ".done")
"""Files by which install.sh and the project's Makefile mark an environment that is complete."""


class ContestantError(RuntimeError):
    """A contestant did not start, or did not answer."""


@dataclass
class Contestant:
    """One process that runs rounds when it is told to."""

    name: str
    command: list[str]
    log: Path
    answers: list[dict[str, float]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    idle: list[float] = field(default_factory=list)  # cores used while others had their turn

    def __enter__(self) -> "Contestant":
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            cwd=HERE,
            text=True,
            start_new_session=True,
        )
        try:
            self.facts = self._answer()
        except ContestantError:
            self._kill()
            raise
        self._rest()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.process.communicate("quit\n", timeout=60)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._kill()

    def _kill(self) -> None:
        """End the process and what it started in its own group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def round(self) -> None:
        """Run one round and keep the answer."""
        waited = time.monotonic() - self._since
        self.idle.append((cpu_seconds(self.process.pid) - self._used) / waited)
        self._order("go")
        self.answers.append(self._answer())
        self._rest()

    def _rest(self) -> None:
        self._since, self._used = time.monotonic(), cpu_seconds(self.process.pid)

    def _order(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise ContestantError(f"{self.name} ended without an answer: see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def row(self, workload: str) -> dict[str, Any]:
        """What was measured."""
        seconds = [answer["seconds"] for answer in self.answers]
        work = WORKLOADS[workload]
        done = replace(work, samples=self.facts.get("samples", work.samples))
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
        return {
            "name": self.name,
            "median": median,
            "quartiles": [low, high],
            "gflops": flops(done) / median / 1e9,
            "rss_mb": max(answer["rss_mb"] for answer in self.answers),
            "pss_mb": max(answer["pss_mb"] for answer in self.answers),
            "idle_cores": float(np.mean(self.idle)),
            "facts": self.facts,
            "seconds": seconds,
        }


def phases(entries: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Who is measured beside whom: all that can wait quietly, then each of the others beside naive."""
    quiet = [name for name, entry in entries.items() if not entry.get("alone")]
    loud = [name for name, entry in entries.items() if entry.get("alone")]
    beside = [[BASELINE, name] if BASELINE in entries else [name] for name in loud]
    return [quiet, *beside] if set(quiet) - {BASELINE} or not loud else beside


def measure(
    names: Sequence[str], entries: dict[str, dict[str, Any]], chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """Start these contestants, let them take turns, and end them."""
    turns = random.Random(chosen.seed)
    with ExitStack() as stack:
        ready = [stack.enter_context(contestant(name, entries[name], chosen)) for name in names]
        for _ in range(chosen.rounds):
            for each in turns.sample(ready, len(ready)):
                each.round()
        rows = [each.row(chosen.workload) for each in ready]
    unit = next((row["median"] for row in rows if row["name"] == BASELINE), None)
    return [{**row, "ratio": row["median"] / unit if unit else None} for row in rows]


def contestant(name: str, entry: dict[str, Any], chosen: argparse.Namespace) -> Contestant:
    """The entry as a command."""
    environment = entry["environment"]
    interpreter = chosen.environments / environment / "bin" / "python"
    command = [str(interpreter) if environment else sys.executable, str(HERE / entry["script"])]
    return Contestant(
        name,
        [*command, chosen.workload, *entry.get("arguments", [])],
        chosen.logs / f"{chosen.workload}-{name}.log",
    )


def entries_for(chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The contestants asked for that exist here; says which are left out and why."""
    table = tomllib.loads((HERE / "contestants.toml").read_text())
    if unknown := set(chosen.only or []) - set(table):
        raise SystemExit(f"driver.py: no contestant {sorted(unknown)}: choose from {list(table)}")
    found = {}
    for name, entry in table.items():
        reason = _missing(entry, chosen)
        if chosen.only and name not in chosen.only:
            continue
        if reason:
            print(f"{name}: left out, {reason}")
        else:
            found[name] = entry
    return found


def _missing(entry: dict[str, Any], chosen: argparse.Namespace) -> str:
    if chosen.workload not in entry["workloads"]:
        return f"does not run workload {chosen.workload}"
    if not (HERE / entry["script"]).exists():
        return f"{entry['script']} is not there"
    environment = entry["environment"]
    home = chosen.environments / environment
    if environment and not any((home / stamp).exists() for stamp in STAMPS):
        return f"there is no complete environment {home}: see README.md"
    return ""


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    heads = ("seconds", "quartiles", "to naive", "Gflop/s", "RSS MB", "PSS MB", "idle", "samples")
    print(f"\n{'':18}" + "".join(f"{head:>16}" for head in heads))
    for row in rows:
        low, high = row["quartiles"]
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        cells = (
            f"{row['median']:.4f}",
            f"{low:.4f}-{high:.4f}",
            ratio,
            f"{row['gflops']:.1f}",
            f"{row['rss_mb']:.0f}",
            f"{row['pss_mb']:.0f}",
            f"{row['idle_cores']:.3f}",
            str(row["facts"].get("samples", "?")),
        )
        print(f"{row['name']:18}" + "".join(f"{cell:>16}" for cell in cells))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--logs", type=Path, help="a folder for the contestants' standard error")
    chosen = parser.parse_args()
    if chosen.rounds < 1:
        parser.error("--rounds is at least 1")
    chosen.logs = chosen.logs or Path(tempfile.mkdtemp(prefix="chronofed-peers-"))
    chosen.logs.mkdir(parents=True, exist_ok=True)
    return chosen


def main() -> int:
    chosen = options()
    entries = entries_for(chosen)
    load = os.getloadavg()[0]
    print(f"workload {chosen.workload}, {chosen.rounds} rounds each, load {load:.2f} at the start")
    rows: list[dict[str, Any]] = []
    try:
        for number, names in enumerate(phases(entries)):
            rows += [{**row, "phase": number} for row in measure(names, entries, chosen)]
    except ContestantError as error:
        print(f"driver.py: {error}", file=sys.stderr)
        return 1
    show(rows)
    if chosen.json:
        machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load": load}
        report = {**machine, "workload": chosen.workload, "seed": chosen.seed, "rows": rows}
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

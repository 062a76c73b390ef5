#!/usr/bin/env python3
"""Kill runs with SIGKILL at random instants, resume them, and compare the end with an undisturbed run, bit for bit.

    python benchmarks/kills/run.py [--kills 20] [--only NAME ...] [--work DIR] [--out kills.jsonl]

Nine configurations: four engines, spilled client states, adaptive weights with a deletion, a private backbone, a grid of
runs (``paper run``) and a sweep, which must also try the same values. Every configuration is run undisturbed once; then
it is started, killed at an instant drawn from a seeded generator, and continued, until it has been killed so often. If it
ends before, it starts again in another folder. One line of JSON a configuration is appended to OUT; what is there
already is skipped, so the script itself may be stopped. It exits with 1 if anything differs.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SPEC = """
name = "killed"
rounds = 30
{top}
[model]
kind = "mlp"
hidden = [16]
[scenario]
kind = "subsets"
clients = 5
subsets = 6
{middle}
[train]
steps = 3
lr = 0.1
[evaluate]
every = 2
seen = 200
[checkpoint]
every = 3
"""
CORE_SET = '[method.memory]\nkind = "core-set"\nsize = 10\n'
ADAPTIVE = (
    CORE_SET + '[method.weights]\nkind = "adaptive"\n[[deletions]]\nround = 17\nclients = [2]\n'
)
PRIVATE = (
    '[method]\naverage = "clients"\n'
    + CORE_SET
    + '[method.backbone]\nkind = "private"\nbound = 1.0\nnoise = 0.5\n'
)
RECIPE = """
title = "Killed"
label = "killed"
order = 1
[base]
rounds = 20
[base.model]
kind = "mlp"
hidden = [8]
[base.train]
steps = 2
[base.evaluate]
every = 2
seen = 50
[base.checkpoint]
every = 2
[scales.cpu]
hours = 0.01
[rows.FedAvg]
[rows.CFL-Core-Set.method.memory]
kind = "core-set"
size = 10
[columns.stateful.scenario]
kind = "subsets"
[view]
kind = "summary-table"
[paper]
FedAvg = [70.5]
"""


@dataclass(frozen=True)
class Configuration:
    """A file to write, a command that starts it, and one that continues it; DIR is the folder of the results."""

    text: str
    start: tuple[str, ...]
    go_on: tuple[str, ...]


def single(top: str, middle: str = CORE_SET) -> Configuration:
    start = ("run", "spec.toml", "-o", "DIR", "-q")
    return Configuration(SPEC.format(top=top, middle=middle), start, ("resume", "DIR", "-q"))


def repeated(text: str, *command: str) -> Configuration:
    return Configuration(text, command, command)


CONFIGURATIONS = {
    "serial": single('engine = "serial"'),
    "threads": single('engine = "threads"\nworkers = 2'),
    "processes": single('engine = "processes"\nworkers = 2'),
    "batched": single('engine = "batched"'),
    "spill": single('engine = "serial"\nstate_cache_mb = 0.01'),
    "adaptive-deletion": single('engine = "serial"', ADAPTIVE),
    "private": single('engine = "serial"', PRIVATE),
    "grid": repeated(
        RECIPE, "paper", "run", "spec.toml", "--seeds", "0,1", "--jobs", "2", "--runs", "DIR", "-q"
    ),
    "sweep": repeated(
        SPEC.format(top='engine = "serial"', middle=CORE_SET),
        "sweep", "spec.toml", "--vary", "train.lr=0.0001:0.5", "--trials", "8", "-o", "DIR", "-q",
    ),
}  # fmt: skip


def command_line(arguments: tuple[str, ...], folder: str) -> list[str]:
    return [sys.executable, "-m", "chronofed", *(a.replace("DIR", folder) for a in arguments)]


def start(arguments: tuple[str, ...], folder: str, work: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command_line(arguments, folder),
        cwd=work,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=(work / "stderr.txt").open("ab"),
    )


def results(folder: Path) -> dict[str, object]:
    """Everything below a folder that must not depend on kills."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        if path.name not in ("times.jsonl", "engines.jsonl"):
            found[str(path.relative_to(folder))] = path.read_bytes()
    for path in sorted(folder.rglob("summary.json")):
        summary = json.loads(path.read_bytes())
        lasting = {key: value for key, value in summary.items() if "seconds" not in key}
        found[str(path.relative_to(folder))] = lasting
        # Checkpoints are named by their digest.
        last = sorted((path.parent / "checkpoints").glob("*.safetensors"))[-1:]
        found[f"{path.parent.relative_to(folder)}/last checkpoint"] = [p.name for p in last]
    if (folder / "sweep.db").exists():
        found["trials"] = trials(folder / "sweep.db")
    return found


def trials(path: Path) -> list[tuple[object, ...]]:
    """The values that a sweep tried and what became of them, without trials that were queued again."""
    query = """
        select p.param_value, t.state, v.value from trials t
        join trial_params p using (trial_id) left join trial_values v using (trial_id)
        where t.state != 'FAIL' order by t.number
    """
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


def began(folder: Path, before: int) -> bool:
    return sum(p.stat().st_size for p in folder.rglob("metrics.jsonl")) != before


def killed(
    configuration: Configuration, folder: str, work: Path, moments: random.Random, kills: int
) -> tuple[int, bool]:
    """Start and kill until it ends or was killed often enough; return the kills, and if it ended well."""
    done = 0
    while True:
        path = work / folder
        known = next(iter(path.rglob("spec.toml")), None) is not None
        process = start(configuration.go_on if known else configuration.start, folder, work)
        if done >= kills:
            return done, process.wait() == 0
        before = sum(p.stat().st_size for p in path.rglob("metrics.jsonl"))
        # Every third kill comes while it starts; the others once something new is recorded.
        end = time.monotonic() + moments.uniform(0.2, 4.0)
        while process.poll() is None and (
            time.monotonic() < end if done % 3 == 2 else not began(path, before)
        ):
            time.sleep(0.005)
        if done % 3 != 2:
            time.sleep(moments.uniform(0, 0.3))
        if process.poll() is not None:
            return done, process.returncode == 0
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        done += 1


def examine(name: str, work: Path, kills: int) -> dict[str, object]:
    """Compare a configuration that was killed again and again with an undisturbed one."""
    configuration = CONFIGURATIONS[name]
    work.mkdir(parents=True)
    (work / "spec.toml").write_text(configuration.text)
    started = time.perf_counter()
    straight_ended_well = start(configuration.start, "straight", work).wait() == 0
    straight = results(work / "straight")
    done, runs, different = 0, 0, []
    while done < kills and straight_ended_well:
        # Seeded by what was done, so that a repetition kills at the same instants after the same events.
        moments = random.Random(f"{name} {runs}")
        count, ended_well = killed(configuration, f"killed-{runs}", work, moments, kills - done)
        found = results(work / f"killed-{runs}")
        if not ended_well:
            different.append(f"killed-{runs}: wrong exit code, see {work}/stderr.txt")
        differing = [key for key in straight | found if straight.get(key) != found.get(key)]
        different += [f"killed-{runs}/{key}" for key in differing]
        done, runs = done + count, runs + 1
    seconds = round(time.perf_counter() - started, 1)
    same = straight_ended_well and not different
    about = {"name": name, "kills": done, "runs": runs, "same": same, "seconds": seconds}
    return about | {"files": len(straight), "different": different}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=20, metavar="N", help="kills of each (default 20)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=CONFIGURATIONS, help="some of the configurations"
    )
    parser.add_argument("--work", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=Path("kills.jsonl"), help="results")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    known = {found["name"]: found for found in map(json.loads, lines)}
    work = options.work or Path(tempfile.mkdtemp(prefix="chronofed-kills-"))
    print(f"{'configuration':<18}{'kills':>6}{'runs':>6}{'files':>7}{'seconds':>9}  bit for bit")
    for name in options.only or CONFIGURATIONS:
        if name not in known or known[name]["kills"] < options.kills:
            known[name] = examine(name, work / f"{name}-{time.time_ns()}", options.kills)
            with options.out.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
        row = known[name]
        verdict = "same" if row["same"] else f"DIFFERENT: {', '.join(row['different'][:3])}"
        numbers = f"{row['kills']:>6}{row['runs']:>6}{row['files']:>7}{row['seconds']:>9}"
        print(f"{name:<18}{numbers}  {verdict}", flush=True)
    shown = [known[name] for name in options.only or CONFIGURATIONS]
    print(f"{sum(row['kills'] for row in shown)} kills; runs in {work}")
    return 0 if all(row["same"] for row in shown) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Search the setting of the paper's tables that two cores can afford; one JSON line for every finished trial.

Trials run one after another in this process, with one thread, and resume where they were stopped; a second process may
run another method (``--method``). A trial whose line is in the results is not run again. A trial that is at chance after a quarter of its rounds is given up. See ``search.toml`` for the trials, and ``README.md`` for what they showed.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from chronofed.core import toml
from chronofed.core.atomic import append_line
from chronofed.core.spec_io import from_table, to_table
from chronofed.runs import runner
from chronofed.runs.directory import RunDirectory
from chronofed.runs.spec import Experiment
from chronofed.studies.recipe import SpecPart, merged
from chronofed.training.summary import summarise

HERE = Path(__file__).parent
CORES = 2
IMAGES = 50_000
# Little above the tenth that guessing has.
CHANCE = 0.12


class GivenUpError(Exception):
    """A trial is at chance."""


def trials(table: Mapping[str, Any]) -> Iterator[tuple[str, str, SpecPart]]:
    """Yield every trial with every method: both names, and the specification."""
    for trial, change in table["trials"].items():
        rest = {key: value for key, value in change.items() if key != "methods"}
        for method in change.get("methods", table["methods"]):
            own = {"method": table["methods"][method]}
            yield trial, method, reduce(merged, (table["base"], own, rest))


def line_of(trial: str, method: str, experiment: Experiment, path: Path) -> dict[str, Any]:
    """Describe a finished run: its accuracies on validation rows, and what it costs."""
    run = RunDirectory(path)
    history = run.history()
    summary = run.summary() or summarise(history)
    given_up = {} if run.summary() else {"given_up": True}
    return {
        "trial": trial,
        "method": method,
        "spec": path.name,
        "seed": experiment.seed,
        "rounds": summary["rounds"],
        "best5": round(summary["best5"], 4),
        "last": round(summary["last"], 4),
        "curve": [[m["round"], round(m["test_accuracy"], 4)] for m in history],
        **given_up,
        **costs(experiment, path),
    }


def costs(experiment: Experiment, path: Path) -> dict[str, Any]:
    """Return CPU seconds by step and the minutes that the run would take on two idle cores at that rate.

    CPU time counts the work of this process only, evaluations included. With other work on the machine it is too long
    all the same, as caches and cores are shared; so the minutes are an upper bound.
    """
    spent = [json.loads(line) for line in (path / "cpu.jsonl").read_text().splitlines()]
    a_round = sum(part["s"] for part in spent) / sum(part["rounds"] for part in spent)
    assert isinstance(experiment.rounds, int)
    return {
        "steps_a_round": steps(experiment),
        "cpu_ms_a_step": round(1000 * a_round / steps(experiment), 2),
        "minutes_on_two_cores": round(a_round * experiment.rounds / 60 / CORES, 2),
    }


def fingerprint(table: SpecPart) -> str:
    """Hash a specification as it is written, so that a new key with its default does not ask for a new run."""
    text = json.dumps(table, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def run_one(experiment: Experiment, path: Path, data: Path) -> None:
    """Run or resume one trial, and note its CPU time at every evaluation."""
    seconds, round_ = time.process_time(), -1

    def on_round(progress: runner.Progress) -> None:
        nonlocal seconds, round_
        if progress.measures and round_ >= 0:
            now, rounds = time.process_time(), progress.round - round_
            note = {"s": round(now - seconds, 3), "rounds": rounds}
            append_line(path / "cpu.jsonl", json.dumps(note).encode())
            print(progress.round, progress.measures["test_accuracy"], note, flush=True)
            seconds, round_ = now, progress.round
            late = progress.round >= progress.rounds / 4
            if late and progress.measures["test_accuracy"] < CHANCE:
                raise GivenUpError
        elif round_ < 0:
            # What was spent on building the run is not a cost of a round.
            seconds, round_ = time.process_time(), progress.round

    with suppress(GivenUpError):
        runner.run(experiment, path, data, on_round=on_round)


def steps(experiment: Experiment) -> int:
    """Count the local steps of a round over all clients, without a schedule of steps."""
    table = to_table(experiment)
    rows = round(IMAGES * (1 - table["data"]["validation"]))
    size = rows // (table["scenario"]["clients"] * table["scenario"]["subsets"])
    return int(table["scenario"]["clients"] * experiment.train.count(size, size))


def main() -> None:
    """Run all trials that have no line yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of data files")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run directories")
    parser.add_argument("--trials", type=Path, default=HERE / "search.toml")
    parser.add_argument("--results", type=Path, default=HERE / "search.jsonl")
    parser.add_argument("--method", help="only this method of the trials")
    parser.add_argument("--trial", nargs="*", help="only these trials")
    options = parser.parse_args()
    torch.set_num_threads(1)
    while todo := pending(options.trials, options.results, options.method, options.trial):
        # One at a time, and the file is read again: trials may be added while others run.
        trial, method, key, experiment = todo[0]
        print(f"{trial}, {method}: {len(todo)} to do", flush=True)
        path = options.runs / key
        run_one(experiment, path, options.data)
        line = line_of(trial, method, experiment, path)
        append_line(options.results, json.dumps(line).encode())


def pending(
    trials_file: Path, results: Path, only: str | None = None, named: list[str] | None = None
) -> list[tuple[str, str, str, Experiment]]:
    """Return the trials without a line, in the order of the file."""
    lines = results.read_text().splitlines() if results.exists() else []
    done = {json.loads(line)["spec"] for line in lines}
    found = []
    for trial, method, table in trials(toml.load(trials_file)):
        wanted = only in {None, method} and (not named or trial in named)
        if wanted and (key := fingerprint(table)) not in done:
            experiment = from_table({"name": f"{trial}, {method}", **table}, Experiment)
            found.append((trial, method, key, experiment))
    return found


if __name__ == "__main__":
    main()

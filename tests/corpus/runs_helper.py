"""Tiny runs to damage, and what the commands say about them."""

import json
import os
import random
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from chronofed.cli.main import main
from chronofed.reports.run_index import RunIndex
from chronofed.runs import RunDirectory, runner
from chronofed.runs.load_spec import load

SPEC = """
name = "tiny"
rounds = 6
engine = "serial"
[data]
kind = "table"
path = "rows.csv"
target = "kind"
[model]
kind = "mlp"
hidden = [8]
[scenario]
kind = "periods"
[method.memory]
kind = "core-set"
size = 4
[train]
lr = 0.1
steps = 1
[evaluate]
protocol = "holdout"
seen = 20
[checkpoint]
every = 2
"""
LASTING = ("metrics.jsonl", "period_accuracy.jsonl", "round_weights.jsonl")
# These say nothing about the run.
LOCKS = ("lock", "running")


def call(*arguments: object) -> tuple[int, str, str]:
    """Call the command line in this process; return exit code, standard output and standard error."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def rows(count: int, start: int = 0) -> str:
    """Make rows of three clients over some months."""
    draw = random.Random(start)

    def row(k: int) -> str:
        numbers = [f"{draw.gauss(sign * k % 5, 1):.3f}" for sign in (1, -1)]
        return ",".join([f"c{k % 3}", f"2024-{1 + k // 40:02d}-03", *numbers, "abcde"[k % 5]])

    return "".join(f"{row(k)}\n" for k in range(start, start + count))


def write_data(folder: Path) -> Path:
    (folder / "rows.csv").write_text("client,time,u,v,kind\n" + rows(240))
    (folder / "spec.toml").write_text(SPEC)
    return folder / "spec.toml"


class Stop(Exception):
    pass


def make_run(
    spec: Path, path: Path, stop_after: int | None = None, **changes: object
) -> RunDirectory:
    """Run an experiment in this process; abandon it after a round, if one is given."""
    from chronofed.runs.built import build

    experiment = load(spec, [f"{key}={value}" for key, value in changes.items()])
    directory = runner.create(build(experiment), path)
    finish(directory, stop_after)
    return directory


def finish(directory: RunDirectory, stop_after: int | None = None) -> None:
    def on_round(progress: runner.Progress) -> None:
        if progress.round == stop_after:
            raise Stop

    if stop_after is None:
        runner.resume(directory)
        return
    with pytest.raises(Stop):
        runner.resume(directory, on_round=on_round)


def results(run: Path) -> dict[str, object]:
    """Everything that must not depend on interruptions and damages."""
    found: dict[str, object] = {name: (run / name).read_bytes() for name in LASTING}
    summary = json.loads((run / "summary.json").read_bytes())
    return found | {key: value for key, value in summary.items() if "seconds" not in key}


def tree(run: Path) -> dict[str, object]:
    """Everything below a folder, links as they are."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and name not in LOCKS:
            found[name] = path.read_bytes()
        elif path.is_dir():
            found[name] = None
    return found


def index_notes(folder: Path) -> dict[str, str]:
    """Read all runs as the live page does; return the note on each."""
    index = RunIndex(folder)
    rows = {row["id"]: row["note"] for row in index.rows()}
    json.dumps(index.payload(list(rows)))
    return rows

"""Commands on damaged runs: no traceback, the culprit named, nothing lost and nothing silently wrong.

``make test-corpus`` runs all cases; the quick suite runs the first damage of every kind and file.
"""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.damaged_runs import FINISHED, NEWEST, OLDER, STOPPED, Case, cases
from tests.corpus.runs_helper import (
    LASTING,
    call,
    index_notes,
    make_run,
    results,
    tree,
    write_data,
)

# A run goes on without a word if one of these is damaged: it is made again, or only readers need it.
REMADE = ("scenario.json", "failure.json", "environment.json", "measures.json")
# Rounds after the latest checkpoint are computed again anyway, and seconds may be anything.
LAST_LINE = ("last line lost", "last byte cut", "half a line")
TIMES = (
    *LAST_LINE,
    "deleted",
    "emptied",
    "a digit changed",
    "bit flipped in the middle",
    "first line lost",
    "cut in half",
    "zeros",
)
HARMLESS = {
    **dict.fromkeys(LASTING, LAST_LINE),
    "times.jsonl": TIMES,
    "engines.jsonl": (*TIMES, "line twice", "lines swapped"),
    "digests.json": ("deleted",),
    "checkpoints": ("deleted",),
    NEWEST: ("deleted", "dangling link"),
}
QUICK = {
    "finished-summary.json-a-digit-changed",
    "finished-metrics.jsonl-a-digit-changed",
    "finished-scenario.json-wrong-type",
    "stopped-metrics.jsonl-emptied",
    "stopped-period_accuracy.jsonl-bit-flipped-in-the-middle",
    "stopped-digests.json-deleted",
    "stopped-spec.toml-another-size-of-model",
    "stopped-newest-checkpoint-newer-format",
    "stopped-newest-checkpoint-zeros",
}
FAILURE = "error 123456789 stopped it"
ALL = list(cases())


def parameters():
    corpus = pytest.mark.corpus
    return [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [corpus]) for c in ALL]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A finished run, the same run stopped on its way, and its results."""
    folder = tmp_path_factory.mktemp("corpus")
    spec = write_data(folder)
    make_run(spec, folder / FINISHED)
    stopped = make_run(spec, folder / STOPPED, stop_after=5)
    stopped.fail(FAILURE)
    return folder


def test_there_are_200_cases_of_different_names():
    assert len({case.name for case in ALL}) == len(ALL) >= 200
    assert {case.name for case in ALL} >= QUICK


@pytest.mark.parametrize("case", parameters())
def test_damaged(case: Case, world: Path, tmp_path: Path):
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copytree(world / FINISHED, runs / "good")
    run = case.make(world / case.state, runs / "bad")
    look(case, run, world)
    resume(case, run, world)


def look(case: Case, run: Path, world: Path) -> None:
    """Readers show every other run, and this one only if its numbers are right."""
    before = tree(run)
    # Of runs of one seed that are equally complete, the first counts.
    both = [run, world / FINISHED]
    code, out, err = call("compare", *both, "--json")
    if not (run / "spec.toml").is_file():
        # No run at all: the user named a folder without one.
        assert (code, one_line(err)) == (4, f"chronofed: {run} is not a run directory")
        return
    assert code == 0, err
    rows = [row for group in json.loads(out) for row in group["runs"]]
    copies = [path for group in json.loads(out) for path in group["copies"]]
    shown = {Path(path).name for path in (*(row["path"] for row in rows), *copies)}
    assert FINISHED in shown
    check_words(case, err, skipped="bad" not in shown)
    for row in rows:
        assert row["state"] != FINISHED or {**row, "path": ""} == finished_row(world)
    code, _, err = call("report", *both, "-o", run.parent / "page.html")
    assert code == 0, err
    assert all(line.startswith("chronofed: ") for line in err.splitlines())
    # It reads the same way, and drawing takes longer than everything else together.
    if case.name in QUICK:
        assert call("plot", "curves", *both, "-o", run.parent / "curves.svg")[0] == 0
    notes = index_notes(run.parent)
    assert notes["good"] == ""
    if case.file != "failure.json":
        assert notes.get("bad", "") in ("", FAILURE) or case.file in notes["bad"]
    assert tree(run) == before


@cache
def finished_row(world: Path) -> dict[str, Any]:
    """The row of the undisturbed run, as ``compare`` shows it."""
    ((row,),) = (
        group["runs"] for group in json.loads(call("compare", world / FINISHED, "--json")[1])
    )
    return {**row, "path": ""}


def check_words(case: Case, err: str, *, skipped: bool) -> None:
    if skipped:
        (line,) = (line for line in err.splitlines() if "skipped" in line)
        assert case.file in line
    assert all(line.startswith("chronofed: ") for line in err.splitlines())


def resume(case: Case, run: Path, world: Path) -> None:
    """A resumed run equals the undisturbed one; one that is refused is left as it was."""
    before = tree(run)
    code, _, err = call("resume", run, "-q")
    lines = err.splitlines()
    assert all(line.startswith("chronofed: ") for line in lines), err
    if code:
        assert code in (2, 4), err
        assert len(lines) == 1
        assert culprit(case) in lines[0], err
        assert tree(run) == before
        return
    assert results(run) == results(world / FINISHED)
    if not harmless(case):
        assert culprit(case) in err
    assert call("resume", run, "-q")[2] == f"chronofed: {run} is finished; nothing to do\n"


def harmless(case: Case) -> bool:
    """True if a resumed run has nothing to complain about."""
    if case.file in REMADE or case.damage == "link":
        return True
    if case.state == FINISHED:
        # A run without a summary is not finished; one that is needs nothing else.
        return case.file not in (*LASTING, "summary.json") or case.damage == "deleted"
    return case.file == OLDER or case.damage in HARMLESS.get(case.file, ())


def culprit(case: Case) -> str:
    if case.file in (NEWEST, OLDER):
        return "checkpoint"
    return "on Flower" if case.file == "flower.json" else case.file


def one_line(err: str) -> str:
    (line,) = err.splitlines()
    return line.partition(" (")[0]

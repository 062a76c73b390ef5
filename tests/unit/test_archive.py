"""Finished runs in one file: packed, carried elsewhere, and the same tables made from them."""

import json
import lzma
from pathlib import Path

import pytest

from chronofed.core import toml
from chronofed.core.errors import RunError
from chronofed.reports.paper import write
from chronofed.reports.results import Results
from chronofed.runs import RunDirectory
from chronofed.studies.archive import FILES, pack, unpack
from chronofed.studies.study import Study
from tests.unit.test_results import COLUMNS, HEAD, TABLE, claim, ends
from tests.unit.test_results import results as results

CLAIMS = claim("beats", better=["B"], worse=["A"]) + claim("refused", rows=["C"], columns=["hard"])


def outcome(row, column, seed):
    """B and A finish; C is refused where it is hard, and one run is missing."""
    if (row, column) == ("C", "hard"):
        return "needs clients that come back"
    return None if (row, column, seed) == ("A", "easy", 2) else ends(row, column, seed)


@pytest.fixture
def done(results):
    return results(HEAD + COLUMNS + TABLE + CLAIMS, outcome)


def lines(content):
    return [json.loads(line) for line in lzma.decompress(content).splitlines()]


def packed(*changed):
    head = {"chronofed paper": 1}
    return lzma.compress("".join(json.dumps(one) + "\n" for one in (head, *changed)).encode())


def test_the_page_is_made_again_elsewhere(done, tmp_path):
    content, count = pack(done.study, done.cells)
    assert count == 18 - 1  # three of them are refusals
    there = Study(tmp_path / "there")
    found = unpack(content, there)
    assert (found.added, found.known, found.refused) == (14, 0, 3)
    again = Results(done.recipe, there, "cpu", done.seeds)
    assert write(again, "mini", tmp_path / "b") == write(done, "mini", tmp_path / "a")
    for name in ("mini.md", "mini.csv", "mini.tex"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
    assert again.missing == done.missing == 1


def test_a_study_goes_on_with_what_is_missing(done, tmp_path):
    there = Study(tmp_path / "there")
    unpack(pack(done.study, done.cells)[0], there)
    pending = [(c.row, c.column, c.seed) for c in there.pending(done.cells) if c.row != "C"]
    assert pending == [("A", "easy", 2)]


def test_the_same_runs_make_the_same_bytes_and_nothing_is_added_twice(done, tmp_path):
    content, _ = pack(done.study, done.cells)
    there = Study(tmp_path / "there")
    unpack(content, there)
    assert unpack(content, there).known == 14
    assert pack(there, reversed(done.cells))[0] == content


def test_only_the_figures_are_packed(done):
    _, *runs = lines(pack(done.study, done.cells)[0])
    kept = {name for run in runs for name in run["files"]}
    assert kept == set(FILES)
    assert len(pack(done.study, done.cells)[0]) < 3000


def test_a_run_of_an_older_version_is_found_by_what_it_says(done, tmp_path):
    """A key that came later has its default, so the run belongs to the same cell."""
    _, *runs = lines(pack(done.study, done.cells)[0])
    for run in runs:
        table = toml.loads(run["cell"])
        del table["evaluate"]["sample"], table["evaluate"]["past_at"]
        run["cell"] = toml.dumps(table)
    there = Study(tmp_path / "there")
    unpack(packed(*runs), there)
    again = Results(done.recipe, there, "cpu", done.seeds)
    assert again.missing == 1
    assert write(again, "mini", tmp_path / "b") == write(done, "mini", tmp_path / "a")


def test_a_run_that_changed_is_not_packed(done):
    path = done.study.path(done.cells[0].experiment)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"best5": 0.99}))
    with pytest.raises(RunError, match=r"summary\.json was changed after the run had finished"):
        pack(done.study, done.cells)


OWN = """
[rows.D.model]
kind = "custom"
factory = "tests.unit.test_archive:none"
"""


def test_code_of_your_own_stays_at_home(results):
    """Who imports a file must not import code that it names."""
    found = results(HEAD + OWN + TABLE, lambda row, column, seed: ends("A", "easy", seed))
    content, count = pack(found.study, found.cells)
    assert (len(found.cells), count) == (12, 9)
    assert b"test_archive" not in lzma.decompress(content)


DAMAGE = {
    "cut": lambda content: content[:-20],
    "no archive": lambda content: b"PK\x03\x04",
    "other format": lambda content: lzma.compress(b'{"chronofed paper": 2}\n'),
    "a key more": lambda content: packed({"cell": "", "x": 1}),
    "no run": lambda content: packed(lines(content)[1] | {"files": {"../../evil": "x"}}),
    "a bad line": lambda content: packed(
        lines(content)[1] | {"files": dict.fromkeys(FILES, "{not JSON}\n")}
    ),
    "a bad spec": lambda content: packed({"cell": "rounds = 'many'", "refused": "no"}),
    "own code in the run": lambda content: packed(
        lines(content)[1] | {"spec": 'loss = "tests.unit.test_archive:Own"'}
    ),
    "own code": lambda content: packed(
        {"cell": '[model]\nkind = "tests.unit.test_archive:Own"', "refused": "no"}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_line_and_writes_nothing(done, tmp_path, damage):
    content, _ = pack(done.study, (c for c in done.cells if c.row == "A"))
    there = tmp_path / "there"
    with pytest.raises(RunError) as caught:
        unpack(damage(content), Study(there))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert not [p for p in Path(there).rglob("*") if p.is_file()]


def test_a_run_that_is_there_wins(done, tmp_path):
    content, _ = pack(done.study, done.cells)
    there = Study(tmp_path / "there")
    first = done.cells[0].experiment
    RunDirectory.create(there.path(first), first.resolved(), {})
    assert unpack(content, there).known == 1
    assert RunDirectory(there.path(first)).state == "stopped"

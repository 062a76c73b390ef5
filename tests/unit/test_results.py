"""Tables and verdicts from records alone; the records here are made by hand."""

import json
import shutil

import pytest

from chronofed.core.errors import SpecError
from chronofed.reports.claims import evidence, findings_table
from chronofed.reports.paper import applicability, table, write
from chronofed.reports.results import Results
from chronofed.runs import RunDirectory
from chronofed.studies.load_recipe import load
from chronofed.studies.study import Study
from chronofed.training.paired import Paired, paired, student

HEAD = """
title = "Mini"
label = "mini"
order = 1
[base]
rounds = 3
[scales.cpu]
hours = 0.1
[rows.A]
[rows.B.train]
lr = 0.2
[rows.C.train]
lr = 0.3
"""
COLUMNS = """
[columns.easy.scenario]
kind = "subsets"
client_alpha = 5.0
[columns.hard.scenario]
kind = "subsets"
client_alpha = 0.1
"""
TABLE = '[view]\nkind = "summary-table"\n'
ENVIRONMENT = {
    "python": "3",
    "machine": "abacus",
    "cores": 2,
    "packages": {"torch": "2", "chronofed": "0"},
}


@pytest.fixture
def results(tmp_path):
    """Make the results of a recipe; a function of row, column and seed gives the end of each run."""

    def make(text, ends, seeds=(0, 1, 2)):
        path = tmp_path / "mini.toml"
        path.write_text(text)
        recipe, study = load(str(path)), Study(tmp_path / "runs")
        for cell in recipe.cells("cpu", seeds):
            summary = ends(cell.row, cell.column, cell.seed)
            if isinstance(summary, str):
                note = tmp_path / "runs" / "refused" / f"{cell.experiment.fingerprint()}.txt"
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(summary)
            elif summary is not None:
                directory = RunDirectory.create(
                    study.path(cell.experiment), cell.experiment.resolved(), ENVIRONMENT
                )
                curve = [{"round": r, **_measures(summary, r)} for r in (1, 2, 3)]
                for line in curve:
                    directory.append(line, {"total": 20.0}, {})
                directory.finish({"rounds": 3, "seconds": 60.0, **summary})
        return Results(recipe, study, "cpu", seeds)

    return make


def _measures(summary, round_):
    accuracy = summary["best5"] * round_ / 3
    return {
        "test_accuracy": accuracy,
        "test_loss": 1 - accuracy,
        "seen_accuracy": accuracy + 0.01,
        "seen_loss": 0.9 - accuracy,
    }


def claim(kind, **settings):
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join(["[[claims]]", f'kind = "{kind}"', 'says = "so"', *lines]) + "\n"


LEVEL = {"A": 0.50, "B": 0.60, "C": 0.605}
NOISE = [0.0, 0.01, -0.01]


def ends(row, column, seed):
    gain = 0.1 if (row, column) == ("B", "hard") else 0.0
    wobble = {"C": 3 * NOISE[seed], "B": 0.2 * NOISE[seed]}.get(row, 0.0)
    best = LEVEL[row] + gain + wobble
    return {
        "best5": best,
        "last": best,
        "noisy": best + 0.003 + NOISE[seed],
        "last_test_loss": 1 - best,
        "last_seen_loss": 0.98 - best,
    }


def verdict(results, text, ends=ends):
    (finding,) = results(HEAD + COLUMNS + TABLE + text, ends).findings()
    return finding.verdict


@pytest.mark.some(9)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (claim("beats", better=["B"], worse=["A"]), "holds"),
        (claim("beats", better=["A"], worse=["B"]), "does not hold"),
        (claim("beats", better=["B"], worse=["A"], lower_is_better=True), "does not hold"),
        (claim("beats", better=["C"], worse=["B"], columns=["easy"]), "not resolved"),
        # 10 points in one column are fewer than 15, beyond chance
        (claim("beats", better=["B"], worse=["A"], margin=15.0), "does not hold"),
        # 10.5 points on average, but not beyond chance more than 8
        (claim("beats", better=["C"], worse=["A"], margin=8.0, columns=["easy"]), "not resolved"),
        (claim("beats", better=["C"], worse=["A"], columns=["easy"]), "holds"),
        (claim("beats", better=["B"], worse=["A"], margin=15.0, columns=["hard"]), "holds"),
        (claim("beats", better=["B"], worse=["A", "C"], columns=["easy"]), "not resolved"),
        (claim("ordered", rows=["B", "A"]), "holds"),
        (claim("ordered", rows=["B", "C", "A"], columns=["easy"]), "not resolved"),
        (claim("ordered", rows=["A", "B"]), "does not hold"),
        # p = 0.026 of one difference alone, 0.104 as the least of four
        (claim("ordered", rows=["A", "C", "B"]), "not resolved"),
        (claim("beats", better=["A"], worse=["C"], columns=["easy"]), "does not hold"),
        (claim("grows", better="B", worse="A", larger_in="hard", smaller_in="easy"), "holds"),
        (claim("grows", better="B", worse="A", larger_in="easy", smaller_in="hard"), "does not hold"),
        (claim("grows", better="C", worse="A", larger_in="hard", smaller_in="easy"), "not resolved"),
        (claim("refused", rows=["A"]), "does not hold"),
        (
            claim("alike", rows=["A"], measure="last_test_loss", other="last_seen_loss",
                  factor=1.0, tolerance=0.03),
            "holds",
        ),
        (
            claim("alike", rows=["A"], measure="last_test_loss", other="last_seen_loss",
                  factor=1.0, tolerance=0.01),
            "does not hold",
        ),
        # a mean of 0.3 is within 0.5, but three seeds do not exclude more
        (claim("alike", rows=["C"], other="noisy", tolerance=0.5), "not resolved"),
    ],
)  # fmt: skip
def test_verdicts(results, text, expected):
    assert verdict(results, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        claim("beats", better=["B"], worse=["A"]),
        claim("grows", better="B", worse="A", larger_in="hard", smaller_in="easy"),
        claim("refused", rows=["A"]),
        claim("alike", rows=["A"], other="last", tolerance=1.0),
    ],
)
def test_without_runs_nothing_is_said(results, text):
    assert verdict(results, text, lambda *_: None) == "not run"


def test_a_refusal_is_a_result(results):
    text = HEAD + TABLE + claim("refused", rows=["C"])
    found = results(text, lambda row, *_: "cannot work" if row == "C" else ends(row, "", 0))
    (finding,) = found.findings()
    assert (finding.verdict, evidence(finding)) == ("holds", "cannot work")
    assert [row[1] for row in table(found).rows] == ["50.00 ± 0.00", "60.00 ± 0.00", "refused"]
    assert found.missing == 0


def test_one_pair_alone_resolves_nothing(results):
    text = HEAD + TABLE + claim("beats", better=["B"], worse=["A"])
    (finding,) = results(text, ends, seeds=[1]).findings()
    assert finding.verdict == "not resolved"
    assert "+10.20 (1 pair, no test)" in evidence(finding)


def test_seeds_are_compared_with_themselves(results):
    """A difference that is the same for every seed is seen, however much seeds differ."""

    def swinging(row, column, seed):
        return {"best5": 0.2 * seed + {"A": 0.1, "B": 0.101 + 0.0001 * seed, "C": 0.1}[row]}

    text = HEAD + TABLE + claim("beats", better=["B"], worse=["A"])
    (finding,) = results(text, swinging).findings()
    assert finding.verdict == "holds"


def test_the_table_has_the_papers_numbers_beside_ours(results):
    text = HEAD + COLUMNS + TABLE + "[paper]\nB = [70.0, 71.5]\n"
    shown = table(results(text, ends))
    assert shown.headings == ["method", "easy", "easy (paper)", "hard", "hard (paper)"]
    assert shown.rows[1] == ["B", "60.00 ± 0.20", "70.00", "70.00 ± 0.20", "71.50"]
    assert shown.best == {(1, 3)}  # C leads by 0.5 ± 2.8 in the first column, which chance explains


def test_what_is_missing_is_counted(results):
    found = results(HEAD + TABLE, lambda r, c, s: None if (r, s) == ("C", 2) else ends(r, c, s))
    assert found.missing == 1
    assert table(found).rows[0][1] == "50.00 ± 0.00"
    assert table(found).rows[2][1].endswith("(2 of 3)")


def test_a_part_of_the_test_rows_is_said_to_be_one(results, tmp_path):
    found = results(HEAD + TABLE, ends)
    assert "test rows" not in write(found, "mini", tmp_path / "out")
    for runs in found.runs.values():
        for view in runs.values():
            for line in view.history:
                line["test_samples"] = 10_000 if line["round"] == 3 else 2000
    page = write(found, "mini", tmp_path / "out")
    assert "on 2000 test rows, the same for all methods of a seed, and on all 10000 after" in page


def test_runs_that_could_not_go_on_are_said_to_have_failed(results, tmp_path):
    found = results(HEAD + TABLE, lambda row, *_: {"best5": 0.5} if row == "A" else None)
    for cell in found.cells:
        if cell.row == "B":
            path = found.study.path(cell.experiment)
            RunDirectory.create(path, cell.experiment.resolved(), ENVIRONMENT).fail("it diverged")
    assert [row[1] for row in table(found).rows] == ["50.00 ± 0.00", "failed", "-"]
    assert found.missing == 3
    assert "3 runs of up to 3 rounds, 3 failed, 3 missing" in write(found, "mini", tmp_path / "out")


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("view", "drawn"),
    [
        (TABLE, False),
        ('[view]\nkind = "curves"\nwindow = 3\nzoom = [1, 2]\n', True),
    ],
)
def test_files_of_a_recipe(results, tmp_path, view, drawn):
    found = results(HEAD + COLUMNS + view + claim("beats", better=["B"], worse=["A"]), ends)
    page = write(found, "mini", tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    pictures = ["mini.png", "mini.svg"] if drawn else []
    assert files == sorted(["mini.csv", "mini.md", "mini.tex", *pictures])
    assert "18 runs of up to 3 rounds, seeds 0, 1, 2, 18 minutes of running" in page
    assert "2 cores (abacus)" in page
    assert "| so | holds | B - A, easy: +10.00" in page
    assert ("![Mini](mini.png)" in page) is drawn
    lines = (tmp_path / "out" / "mini.csv").read_text().splitlines()
    assert lines[0].startswith("column,row,measure" if drawn else "method,easy")
    if drawn:
        assert lines[1] == "easy,A,test_accuracy,1,0.166667,0"


def test_one_seed_has_no_deviation_in_any_file(results, tmp_path):
    for name, view in (("mini", TABLE), ("curves", '[view]\nkind = "curves"\n')):
        write(results(HEAD + view, ends, seeds=[1]), name, tmp_path / "out")
        shutil.rmtree(tmp_path / "runs")
    lines = (tmp_path / "out" / "curves.csv").read_text().splitlines()
    assert lines[1] == ",A,test_accuracy,1,0.166667,"
    for ending in ("csv", "md", "tex"):
        text = (tmp_path / "out" / f"mini.{ending}").read_text()
        assert "60.20" in text
        assert "±" not in text
        assert "pm" not in text


NUMBERS = (
    HEAD.replace("rows.A", "rows.10").replace("rows.B", "rows.20").replace("rows.C", "rows.40")
)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("text", "heading"),
    [
        (
            NUMBERS + '[view]\nkind = "two-axes"\nleft = "last_test_loss"\nright = "best5"\n'
            'label = "size"\nlabels = ["loss", "accuracy"]\nfactors = [1.0, 100.0]\n',
            ["size", "loss", "accuracy"],
        ),
        (HEAD + '[view]\nkind = "pairs"\n', ["method", "mean of best 5 %", "last %"]),
    ],
)
def test_figures_of_one_column(results, tmp_path, text, heading):
    names = {"10": "A", "20": "B", "40": "C"}
    found = results(text, lambda row, column, seed: ends(names.get(row, row), column, seed))
    write(found, "mini", tmp_path / "out")
    assert (tmp_path / "out" / "mini.png").read_bytes()[:4] == b"\x89PNG"
    assert list(table(found).headings[: len(heading)]) == heading


def test_many_differences_are_shortened_to_the_extremes(results):
    text = HEAD + COLUMNS + TABLE + claim("beats", better=["B", "C"], worse=["A"])
    (finding,) = results(text, ends).findings()
    told = evidence(finding)
    assert told.endswith("(4 differences)")
    assert told.count("(3 pairs, p < 0.001)") == 2
    assert findings_table([finding]).rows[0][:2] == ["so", "holds"]


def test_applicability_is_computed_from_what_methods_declare():
    shown = applicability(load("table-applicability"))
    verdicts = {row[0]: [cell[:3] for cell in row[1:]] for row in shown.rows}
    paper = {
        "FedAvg": ["yes", "yes"],
        "FedProx": ["yes", "yes"],
        "SCAFFOLD": ["no:", "no:"],
        "MimeLite": ["yes", "yes"],
        "CFL-Regularization": ["yes", "yes"],
        "CFL-Core-Set": ["yes", "no:"],
    }
    assert {row: verdicts[row] for row in paper} == paper
    assert verdicts["Ditto"] == ["yes", "no:"]


def test_student_against_printed_tables():
    for t, freedom, p in [
        (12.706, 1, 0.05), (4.3027, 2, 0.05), (3.1824, 3, 0.05), (2.7764, 4, 0.05),
        (9.9248, 2, 0.01), (5.8409, 3, 0.01), (1.8125, 10, 0.10), (2.0423, 30, 0.05),
    ]:  # fmt: skip
        assert student(t, freedom) == pytest.approx(p, rel=2e-4)
        assert student(-t, freedom) == student(t, freedom)
    assert student(0.0, 5) == 1.0


def test_pairs():
    found = paired([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    assert (found.mean, found.pairs) == (pytest.approx(7 / 3), 3)
    # t = mean / (s / sqrt 3) with s^2 = 7/3: sqrt 7; with two degrees of freedom p = 1 - t / sqrt(2 + t^2)
    assert found.p() == pytest.approx(1 - (7 / 9) ** 0.5)
    assert paired([2.0, 2.0], [2.0, 2.0]).p() == 1.0
    assert paired([3.0, 3.0], [2.0, 2.0]).p() == 0.0
    assert paired([3.0], [2.0]) == Paired(1.0, None, 1)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired([1.0], [1.0, 2.0])


def test_a_scale_that_is_not_there(results):
    found = results(HEAD + TABLE, ends)
    found.scale = "huge"
    with pytest.raises(SpecError, match="no scale 'huge'"):
        _ = found.cells

"""A number is the same to its last digit in the terminal, on a page, in JSON, and in files for papers."""

import csv
import io
import json
import re

import pytest
from rich.console import Console

from chronofed.reports.groups import groups
from chronofed.reports.result_columns import measured
from chronofed.reports.runs import read_runs
from chronofed.reports.terminal.comparison import comparison
from chronofed.reports.verdict import verdict
from chronofed.training.measure import decimals
from tests.helpers.pages import content_of
from tests.helpers.scenes import write_run


@pytest.fixture
def folder(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, rounds=40)
        write_run(tmp_path / f"b{seed}", "Core", seed, rounds=40, memory=7)
    write_run(tmp_path / "c", "Alone", 0, rounds=40, memory=9)
    return tmp_path


def from_json(row, column):
    """Round the numbers of a JSON row as its column says."""
    mean, deviation = (row[name].get(column.key) for name in ("mean", "deviation"))
    if mean is None:
        return None
    digits = decimals(column.scale * mean, column.digits)
    texts = [f"{column.scale * v:.{digits}f}" for v in (mean, deviation) if v is not None]
    return " ± ".join(texts)


def test_every_number_is_the_same_everywhere(cli, folder):
    found = groups(read_runs([folder]))
    columns = measured(found)
    rows = json.loads(cli("compare", folder, "--json")[1])
    for kind in ("csv", "tex", "md"):
        assert cli("compare", folder, "--table", folder / f"all.{kind}")[0] == 0
    cli("report", folder, "-o", folder / "report.html")
    page = (folder / "report.html").read_text()
    content = content_of(page)
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(comparison(found, width=400))
    in_terminal = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in console.export_text().splitlines()
        if line.startswith("│")
    ]
    latex = [
        [re.sub(r"\\textbf{(.*)}", r"\1", cell.strip()).replace(r"$\pm$", "±").replace("$-$", "−")
         for cell in line.removesuffix(r" \\").split("&")]
        for line in (folder / "all.tex").read_text().splitlines() if " & " in line
    ][1:]  # fmt: skip
    marked = [
        [cell.strip().strip("*") for cell in line.strip("| ").split(" | ")]
        for line in (folder / "all.md").read_text().splitlines()[2:]
    ]
    without_scripts = [
        re.findall(r"<t[hd]>(.*?)</t[hd]>", row)
        for row in re.findall(r"<tr>(.*?)</tr>", page.partition("<noscript>")[2])[1:4]
    ]
    in_csv = list(csv.reader(io.StringIO((folder / "all.csv").read_text())))[1:]
    checked = 0
    for place, (group, row) in enumerate(zip(found, rows, strict=True)):
        cells = content["groups"][place]["cells"]
        for k, column in enumerate(columns):
            expected = from_json(row, column)
            if expected is None:
                continue  # traffic, which is a sum of two numbers of the summary
            texts = {
                group.text(column), cells[column.key]["text"], in_terminal[place][2 + k],
                latex[place][2 + k], marked[place][2 + k], in_csv[place][2 + k],
                without_scripts[place][2 + k],
            }  # fmt: skip
            assert texts == {expected}, column.key
            checked += 1
    assert checked >= 15


def test_the_verdict_is_the_same_everywhere(cli, folder):
    judged = verdict(groups(read_runs([folder])))
    assert len(judged.lines) >= 2
    printed = " ".join(cli("compare", folder)[1].split())
    cli("report", folder, "-o", folder / "report.html")
    page = (folder / "report.html").read_text()
    content = content_of(page)
    about = content["overview"]
    shown = [about["verdict"][name] for name in ("headline", "clear", "unresolved")]
    assert [line for line in shown if line] + about["verdict"]["failures"] + about["verdict"][
        "remarks"
    ] == judged.lines
    drawn = {(one["row"], one["key"]): (one["text"], one["p"]) for one in about["differences"]}
    for d in judged.differences:
        assert drawn[d.row, d.column.key] == (d.signed, d.p_text)
    for line in judged.lines:
        assert " ".join(line.split()) in printed

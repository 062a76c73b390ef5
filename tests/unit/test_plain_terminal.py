"""Terminals that are narrow, show ASCII alone or have no colours; tables for papers."""

import os
import re
import subprocess
import sys

import pytest

from chronofed.cli.main import main
from chronofed.reports.groups import groups
from chronofed.reports.runs import read_runs
from chronofed.reports.verdict import verdict
from tests.helpers.scenes import write_run


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for seed in (0, 1, 2):
        write_run(folder / f"plain-{seed}", "FedAvg", seed, periods=False)
        write_run(folder / f"core-{seed}", "Core", seed, memory=20, periods=False)
    return folder


@pytest.fixture
def compare(runs, monkeypatch, capsys):
    """What a terminal of some width shows."""

    def compare(width, *options):
        monkeypatch.setattr("chronofed.cli.compare.width", lambda: width)
        monkeypatch.setattr("chronofed.cli.output.width", lambda: width)
        assert main(["compare", str(runs), *options]) == 0
        return capsys.readouterr().out

    return compare


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_and_ends_with_the_verdict(compare, runs, width):
    shown = compare(width)
    assert all(len(line) <= width for line in shown.splitlines())
    words = " ".join(shown.split())
    found = verdict(groups(read_runs([runs])))
    assert re.match(
        r"Core forgets [\d.]+ points less than FedAvg and is [\d.]+ points better over time",
        found.headline,
    )
    assert words.endswith(" ".join([f"{found.headline}.", *found.lines[1:]]))
    for heading in ("test loss", "traffic", "seconds", "anytime"):
        assert heading in words


def test_ascii_and_no_colours(runs):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "COLUMNS": "60"}
    done = subprocess.run(
        [sys.executable, "-m", "chronofed", "compare", str(runs)],
        capture_output=True, env=environment, check=True,
    )  # fmt: skip
    text = done.stdout.decode("ascii")
    assert "?" not in text
    assert "+-" in text
    assert "\x1b" not in text
    assert "Curves are drawn in a terminal with Unicode" in text


@pytest.mark.parametrize(
    ("ending", "start"), [("tex", "% Results"), ("csv", "experiment,"), ("md", "| e")]
)
def test_the_table_for_a_paper(compare, tmp_path, ending, start):
    compare(120, "--table", str(tmp_path / f"t.{ending}"))
    assert (tmp_path / f"t.{ending}").read_text().startswith(start)


def test_a_table_of_another_kind_is_refused(runs, tmp_path, capsys):
    assert main(["compare", str(runs), "--table", str(tmp_path / "t.doc")]) != 0
    assert "use a file ending of .tex, .csv, .md" in capsys.readouterr().err

"""From a CSV file in an empty folder to a file of predictions, with the README's four commands."""

import csv
import datetime
import random
import subprocess
import sys

import pytest


def write_shops(path, first, days, target=True):
    """Three shops with a row a day; busy when it is warm, or on Saturdays."""
    chance = random.Random(first.toordinal())
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["shop", "date", "temperature", "weekday", *(["busy"] if target else [])])
        for day in range(days):
            date = first + datetime.timedelta(day)
            for shop in ("north", "south", "west"):
                warm = round(chance.gauss(8 * (date.month % 2), 3), 1)
                busy = "yes" if warm > 6 or date.weekday() == 5 else "no"
                row = [shop, date, "NA" if chance.random() < 0.03 else warm, f"{date:%a}"]
                table.writerow([*row, *([busy] if target else [])])


@pytest.fixture
def type_in(tmp_path):
    """Type a command in the folder of the table, as a user does; return what it prints."""

    def type_in(command):
        program = [sys.executable, "-m", "chronofed", *command.split()[1:]]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return type_in


@pytest.mark.slow
def test_from_a_table_to_predictions(tmp_path, type_in):
    write_shops(tmp_path / "shops.csv", datetime.date(2024, 1, 1), 180)
    write_shops(tmp_path / "new.csv", datetime.date(2024, 6, 29), 10, target=False)
    write_shops(tmp_path / "newer.csv", datetime.date(2024, 6, 29), 40)

    assert "shops.toml" in type_in("chronofed init shops.csv")
    said = type_in("chronofed run shops.toml -o shops -q")
    assert "majority class" in said
    assert "persistence" in said
    type_in("chronofed predict shops new.csv -o out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert {row["shop"] for row in rows} == {"north", "south", "west"}
    before = (tmp_path / "shops" / "metrics.jsonl").read_text()
    type_in("chronofed extend shops --data newer.csv -q")
    after = (tmp_path / "shops" / "metrics.jsonl").read_text()
    assert after.startswith(before)
    assert after != before

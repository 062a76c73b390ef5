"""From a file that nobody has described to a run: ``chronofed init``, then ``chronofed run``."""

import datetime
import json
import tomllib

import numpy as np
import pytest

from chronofed.data.proposal.findings import REGRESSION, Wishes, look_at
from chronofed.data.proposal.period_choice import propose_period


def shops(days=120, form="%Y-%m-%d"):
    """A table of three shops, with an identifier, a constant and gaps."""
    lines = ["number,shop,date,temperature,weekday,comment,currency,busy"]
    for shop in ("north", "south", "west"):
        for day in range(days):
            date = datetime.date(2024, 1, 1) + datetime.timedelta(day)
            degrees = "NA" if day % 17 == 3 else f"{day / 10 + day % 5:.1f}"
            busy = "yes" if day % 3 else "no"
            lines.append(
                f"{len(lines)},{shop},{date:{form}},{degrees},{date:%a},text {len(lines)},EUR,{busy}"
            )
    return "\n".join(lines) + "\n"


@pytest.fixture
def table(workdir):
    (workdir / "shops.csv").write_text(shops())
    return workdir / "shops.csv"


def test_init_writes_a_spec_that_runs_unchanged(cli, workdir, table):
    code, out, err = cli("init", "shops.csv")
    assert code == 0
    spec = tomllib.loads((workdir / "shops.toml").read_text())
    data = spec["data"]
    assert (data["client"], data["time"], data["target"]) == ("shop", "date", "busy")
    assert (data["path"], data["period"], data["classes"]) == ("shops.csv", "week", ["no", "yes"])
    assert data["features"] == ["temperature", "weekday"]
    assert data.get("task") == ("classification" if REGRESSION else None)
    for line in (
        "shops.csv: 360 rows, 8 columns",
        "client    shop (a usual name for clients): 3 clients",
        "target    busy (the last column): classification, 2 classes: yes 66.7%, no 33.3%",
        "features  2: temperature (numbers, 5.8% missing), weekday (7 categories)",
        "left out  number: numbers every row: an identifier",
        "left out  comment: 360 different texts: names or prose",
        "left out  currency: a single value",
    ):
        assert line in out
    assert "wrote shops.toml; next: chronofed scenario shops.toml, chronofed run shops.toml" in err
    code, _, _ = cli("run", "shops.toml", "-s", "scenario.rounds_per_period=1", "-q")
    assert code == 0


def test_init_never_overwrites_without_force(cli, workdir, table):
    (workdir / "shops.toml").write_text("mine")
    code, _, err = cli("init", "shops.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "shops.toml: exists already; choose another name with -o, or --force" in err
    assert (workdir / "shops.toml").read_text() == "mine"
    assert cli("init", "shops.csv", "--force")[0] == 0
    assert "shops.csv" in (workdir / "shops.toml").read_text()


def test_choices_override_guesses_and_paths_start_at_the_spec(cli, workdir, table):
    (workdir / "specs").mkdir()
    options = ["--client", "weekday", "--target", "shop", "--period", "30 days", "--json"]
    code, out, _ = cli("init", "shops.csv", "-o", "specs/own.toml", *options)
    assert code == 0
    data = tomllib.loads((workdir / "specs" / "own.toml").read_text())["data"]
    assert (data["client"], data["target"], data["period"]) == ("weekday", "shop", "30 days")
    assert data["path"] == "../shops.csv"
    found = json.loads(out)
    assert found["reasons"]["client"] == "given"
    assert len(found["clients"]) == 7
    assert found["missing"] == {"temperature": 21}


def test_data_show_writes_nothing(cli, workdir, table):
    code, out, _ = cli("data", "show", "shops.csv")
    assert code == 0
    assert "period    week (18 periods, 7 rows of a client in each (median))" in out
    assert json.loads(cli("data", "show", "shops.csv", "--json")[1])["rows"] == 360
    assert not (workdir / "shops.toml").exists()


def test_dates_in_doubt_are_said(workdir):
    dates = (f"{k % 9 + 1:02}/{k % 3 + 1:02}/2013 10:00" for k in range(90))
    lines = (f"{date},{k % 7}.5,{k % 2}\n" for k, date in enumerate(dates))
    (workdir / "doubt.csv").write_text("day,f,y\n" + "".join(lines))
    found = look_at(workdir / "doubt.csv", Wishes())
    assert found.table.date_format == "%d/%m/%Y %H:%M"
    assert "check it" in found.reasons["date_format"]
    assert found.table.client == ""


def test_a_column_that_cannot_be_used_is_left_out_and_said(workdir):
    lines = [f"{k},{k % 2},{k % 7},{'x' if k == 90 else k % 5}" for k in range(100)]
    (workdir / "mixed.csv").write_text("time,y,f,g\n" + "\n".join(lines) + "\n")
    found = look_at(workdir / "mixed.csv", Wishes())
    assert found.table.features == ("f",)
    assert found.left_out["g"] == "cells that do not fit together"


@pytest.mark.parametrize(
    ("days", "step", "clients", "period"),
    [
        (365 * 4, 1, 3, "month"),
        (365 * 10, 1, 3, "quarter"),
        (120, 1, 3, "week"),
        (365 * 40, 7, 2, "year"),
        (30, 0.1, 2, "day"),
    ],
)
def test_proposed_periods_of_dates(days, step, clients, period):
    seconds = np.repeat(np.arange(0, days, step) * 86400, clients).astype("timedelta64[s]")
    when = np.datetime64("2010-01-01T00:00:00", "us") + seconds
    client = np.arange(len(when)) % clients
    assert propose_period(when, client).value == period


def test_proposed_periods_of_numbers_and_of_rows():
    client = np.arange(2400) % 2
    assert propose_period(np.arange(2400.0), client).value == "100"
    assert propose_period(np.zeros(2400), client).value == "50 rows"
    assert propose_period(np.zeros(1), np.zeros(1, np.int64)).value == "5 rows"


def test_names_that_are_not_words_reach_the_spec_unharmed(cli, workdir):
    lines = [f'{k},"a\n{k % 2}",{k % 3},{k % 2}' for k in range(60)]
    (workdir / "odd.csv").write_text('time,"cli""ent",f#,y\n' + "\n".join(lines) + "\n")
    assert cli("init", "odd.csv", "--client", 'cli"ent')[0] == 0
    data = tomllib.loads((workdir / "odd.toml").read_text())["data"]
    assert (data["client"], data["features"]) == ('cli"ent', ["f#"])
    assert cli("scenario", "odd.toml")[0] == 0

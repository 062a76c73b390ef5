"""``chronofed paper``: list, run and report recipes; a grid that is killed goes on where it was."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from chronofed.studies.load_recipe import shipped

MINI = """
title = "Mini"
label = "mini"
order = 1

[base]
rounds = 6
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
[columns.stateless.scenario]
kind = "stateless"

[view]
kind = "summary-table"

[paper]
FedAvg = [70.5, 78.07]

[[claims]]
kind = "refused"
says = "core sets need clients that come back"
rows = ["CFL-Core-Set"]
columns = ["stateless"]
"""


@pytest.fixture(autouse=True)
def spec(workdir):
    (workdir / "mini.toml").write_text(MINI)


@pytest.fixture
def call(cli):
    return partial(cli, "paper")


def test_the_list_names_every_table_and_figure_with_its_price(call):
    code, out, _ = call("list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == shipped()
    costs = {row["name"]: (row["runs"], row["cpu"], row["paper"]) for row in rows}
    assert costs["table-applicability"] == ("-", "seconds", "seconds")
    assert costs["table-baselines"][0] == "54"
    assert costs["table-baselines"][2].endswith("days")
    assert "table-overlap" in call("list")[1]


def test_run_and_report(call, tmp_path):
    code, out, err = call("run", "mini.toml", "--seeds", "0,1", "--jobs", 1)
    assert code == 0
    assert "refused" in out
    assert "holds" in out
    assert "1 of 8 runs; FedAvg, stateful, seed 0: " in err
    assert "6 of 7 runs; " in err  # a refused run is no longer counted
    assert err.count("refused: CFL-Core-Set, stateless: method.memory") == 1
    before = sorted((tmp_path / "runs" / "paper").rglob("metrics.jsonl"))
    assert len(before) == 6
    stamps = [path.stat().st_mtime_ns for path in before]

    code, again, err = call("run", "mini.toml", "--seeds", "0,1", "-q")  # nothing is done twice
    assert (code, again) == (0, out)
    assert [path.stat().st_mtime_ns for path in before] == stamps

    assert call("report", "mini.toml", "--seeds", "0,1", "-o", "out")[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "claims.md", "mini.csv", "mini.md", "mini.tex",
    ]  # fmt: skip
    assert (
        "core sets need clients that come back | holds" in (tmp_path / "out/claims.md").read_text()
    )
    assert "6 runs of up to 6 rounds, seeds 0, 1" in (tmp_path / "out/mini.md").read_text()

    code, out, _ = call("run", "mini.toml", "--seeds", "0,1", "--json")
    (found,) = json.loads(out)
    assert found["missing"] == 0
    assert found["table"][1]["stateless"] == "refused"
    (claim,) = found["claims"]
    assert claim["claim"] == "core sets need clients that come back"
    assert claim["verdict"] == "holds"
    assert "a client never comes back" in claim["evidence"]


def test_finished_cells_are_carried_to_another_machine(call, tmp_path):
    run = ("mini.toml", "--seeds", "0", "--jobs", 1)
    code, out, _ = call("run", *run)
    assert code == 0
    code, _, err = call("export", *run, "-o", "kept/cells.jsonl.xz")
    assert code == 0
    assert err.startswith("chronofed: 4 runs and refusals, ")
    code, _, err = call("import", "kept/cells.jsonl.xz", "--runs", "there")
    assert (code, err) == (
        0, "chronofed: kept/cells.jsonl.xz: 3 runs added, 0 known already, 1 refusals: there\n",
    )  # fmt: skip
    stamps = [path.stat().st_mtime_ns for path in (tmp_path / "there").rglob("summary.json")]
    code, again, err = call("run", *run, "--runs", "there")
    assert (code, again) == (0, out)
    assert " runs; " not in err
    assert stamps == [p.stat().st_mtime_ns for p in (tmp_path / "there").rglob("summary.json")]


@pytest.mark.slow
def test_a_recipe_may_want_other_seeds(call, tmp_path):
    (tmp_path / "one.toml").write_text(MINI.replace("hours = 0.01", "hours = 0.01\nseeds = [7]"))
    code, out, _ = call("run", "one.toml", "--json", "--jobs", 1)
    assert (code, json.loads(out)[0]["missing"]) == (0, 0)
    assert call("report", "one.toml", "-o", "out")[0] == 0
    assert "3 runs of up to 6 rounds, seeds 7," in (tmp_path / "out/one.md").read_text()
    assert json.loads(call("run", "one.toml", "--seeds", "7", "--json")[1]) == json.loads(out)
    assert json.loads(call("list", "--json")[1])[6]["runs"] == "25"  # five sizes, five seeds


def test_a_cell_that_fails_is_reported_and_stops_nothing(call, tmp_path):
    wild = MINI.replace("[columns.stateful", "[rows.Wild.train]\nlr = 1e30\n[columns.stateful")
    (tmp_path / "wild.toml").write_text(wild)
    code, out, err = call("run", "wild.toml", "--seeds", "0", "--jobs", 1)
    assert code == 1
    assert "failed: Wild, stateful, seed 0: round 0: the model is no longer finite" in err
    assert "to retry what failed" in err
    table = [line for line in out.splitlines() if "Wild" in line]
    assert "failed" in table[0]
    assert "FedAvg" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run"], "paper run: name one or more of"),
        (["run", "tabel"], "no recipe 'tabel'"),
        (["import"], "paper import: name one or more exported files"),
        (
            ["run", "mini.toml", "--seeds", "a"],
            "--seeds: expected numbers such as 0,1,2 or 0-4, not 'a'",
        ),
        (["run", "mini.toml", "--seeds", "1,1"], "--seeds: expected different numbers"),
        (["run", "mini.toml", "--seeds=-1"], "--seeds: expected different numbers"),
        (["run", "mini.toml", "--scale", "huge"], "no scale 'huge'; there are: cpu"),
        (["run", "mini.toml", "--jobs", "-1"], "--jobs: expected a number >= 1"),
        (["run", "absent.toml"], "no recipe 'absent.toml'"),
    ],
)
def test_what_is_wrong_is_one_line(call, arguments, complaint):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_missing_data_fail_the_cells_that_need_them(call, tmp_path):
    text = MINI.replace(
        "[base.model]", '[base.data]\nkind = "images"\nname = "cifar10"\n[base.model]'
    )
    (tmp_path / "far.toml").write_text(text)
    code, _, err = call("run", "far.toml", "--seeds", "0", "--data", tmp_path)
    assert code == 1
    assert "failed: FedAvg, stateful, seed 0:" in err
    assert "cifar10" in err


def test_a_report_without_runs_says_how_to_get_them(call, tmp_path):
    code, _, err = call(
        "report", "table-overlap", "table-applicability", "table-rates", "-o", "out"
    )
    assert code == 0
    assert (
        "table-overlap: nothing in runs/paper; run it with: chronofed paper run table-overlap"
        in err
    )
    assert "table-rates: nothing" in err
    assert (tmp_path / "out/table-applicability.md").exists()


@pytest.mark.parametrize("action", [["run", "table-weights", "--runs"], ["report", "all", "-o"]])
def test_a_folder_that_cannot_be_made_is_one_line(call, tmp_path, action):
    (tmp_path / "file").write_text("in the way")
    code, _, err = call(*action, tmp_path / "file" / "below")
    assert code == 5
    assert "cannot write" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_tables_that_other_commands_make(call, tmp_path):
    code, out, _ = call("run", "table-weights", "figure-drift")
    assert code == 0
    for weight in ("0.1818", "0.4545", "0.2857", "0.6842", "-0.2077", "0.6436"):
        assert weight in out
    assert call("report", "table-weights", "figure-drift")[0] == 0
    report = tmp_path / "runs/paper/report"
    assert "0.6436" in (report / "table-weights.md").read_text()
    assert (report / "figure-drift.png").read_bytes()[:4] == b"\x89PNG"
    assert "![Local data that change" in (report / "figure-drift.md").read_text()


@pytest.mark.slow
def test_a_grid_that_is_killed_five_times_ends_as_if_it_never_was(call, tmp_path):
    slow = MINI.replace("rounds = 6", "rounds = 20")
    (tmp_path / "mini.toml").write_text(slow)
    command = [sys.executable, "-m", "chronofed", "paper", "run", "mini.toml", "--seeds", "0,1",
               "--jobs", "2", "--runs", "killed"]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    moments = random.Random(0)
    for _ in range(5):
        process = subprocess.Popen(
            command, start_new_session=True, env=environment, stderr=subprocess.PIPE, text=True
        )
        _wait_for_a_record(tmp_path / "killed", process)
        time.sleep(moments.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    assert (
        call("run", "mini.toml", "--seeds", "0,1", "--jobs", 1, "--runs", "straight", "-q")[0] == 0
    )
    for runs in ("killed", "straight"):
        call("report", "mini.toml", "--seeds", "0,1", "--runs", runs, "-o", f"{runs}-out")
    for name in ("mini.csv", "mini.tex", "claims.md"):
        straight = (tmp_path / "straight-out" / name).read_bytes()
        assert (tmp_path / "killed-out" / name).read_bytes() == straight
    for path in (tmp_path / "straight").rglob("metrics.jsonl"):
        same = tmp_path / "killed" / path.relative_to(tmp_path / "straight")
        assert same.read_bytes() == path.read_bytes()


def _wait_for_a_record(folder, process):
    """Until the grid writes something new, or is done."""
    before = _size(folder)
    while _size(folder) == before and process.poll() is None:
        time.sleep(0.01)


def _size(folder):
    return sum(path.stat().st_size for path in folder.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["import", "none.xz"], "none.xz: there is no such file"),
        (["import", "mini.toml"], "mini.toml: not an archive of runs, or damaged"),
        (["export", "mini.toml"], "nothing to export: none of these runs is finished in runs/"),
    ],
)
def test_a_file_that_cannot_be_carried_is_one_line(call, arguments, complaint):
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert complaint in err

"""The status of a run: what it has seen, how it went, whether newer data wait, and what to do next."""

import json

import pytest

from tests.corpus.runs_helper import SPEC, call, make_run, rows, tree

HEAD = "client,time,u,v,kind\n"


def write(folder, months):
    (folder / "rows.csv").write_text(HEAD + rows(40 * months))
    (folder / "spec.toml").write_text(SPEC.replace("rounds = 6\n", ""))
    return folder / "spec.toml"


def status(run):
    before = tree(run.path)
    code, out, _ = call("status", run.path, "--json")
    assert code == 0
    assert tree(run.path) == before
    return json.loads(out)


@pytest.fixture
def run(tmp_path):
    return make_run(write(tmp_path, 3), tmp_path / "run")


def test_what_it_has_seen(run):
    found = status(run)
    assert found["state"] == "finished"
    assert found["clients"] == 3
    assert found["periods"] == {f"2024-0{k}": 40 for k in (1, 2, 3)}
    assert (found["rounds"], found["checkpoint"]) == (3, 3)
    assert found["waiting"] == found["extensions"] == []
    assert found["next"].startswith("nothing, until later rows come")


def test_the_headline_by_period(run):
    found = status(run)
    lines = {line["round"]: line[found["measure"]] for line in run.history()}
    assert found["by_period"] == {f"2024-0{round_}": value for round_, value in lines.items()}


def test_later_periods_wait_and_are_extended(run, tmp_path):
    write(tmp_path, 5)
    found = status(run)
    assert found["waiting"] == ["2024-04", "2024-05"]
    assert found["next"] == f"train on the new periods with: chronofed extend {run.path}"
    assert call("extend", run.path, "-q")[0] == 0
    code, out, _ = call("status", run.path)
    assert code == 0
    assert "periods" in out
    assert "5, 2024-01 to 2024-05; 200 rows" in out
    assert ": 2024-04, 2024-05\n" in out
    assert status(run)["extensions"][0]["rows"] == 80


def test_an_obstacle_is_named(run, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(path.read_text() + "c0,2024-02-28,1,1,a\n")
    found = status(run)
    assert found["waiting"] is None
    assert "period 2024-02 has changed" in found["next"]
    path.unlink()
    assert "no file" in status(run)["next"]


def test_a_stopped_run(tmp_path):
    run = make_run(write(tmp_path, 3), tmp_path / "run", stop_after=2)
    found = status(run)
    assert (found["state"], found["waiting"]) == ("stopped", None)
    assert found["next"] == f"continue it with: chronofed resume {run.path}"


@pytest.mark.slow
def test_without_periods(tmp_path):
    (tmp_path / "spec.toml").write_text(
        'rounds = 2\n[model]\nkind = "linear"\n[train]\nsteps = 1\n'
    )
    run = make_run(tmp_path / "spec.toml", tmp_path / "run")
    found = status(run)
    assert found["periods"] == {}
    assert list(found["by_period"]) == ["round 1", "round 2"]
    assert found["next"] == f"go on with: chronofed extend {run.path} --rounds N"


def test_not_a_run(tmp_path):
    code, _, err = call("status", tmp_path)
    assert code == 4
    assert "is not a run directory" in err

"""Going on from a finished run: month by month equals all months at once, bit for bit."""

import json

import pytest

from chronofed.core import toml
from chronofed.core.errors import DataError, RunError, SpecError
from chronofed.runs import RunDirectory, extension
from chronofed.runs.checkpoint import encode, load_latest
from chronofed.runs.extend import Request, extend
from tests.corpus.runs_helper import SPEC as SHORT
from tests.corpus.runs_helper import Stop, call, finish, make_run, results, rows, tree

HEAD = "client,time,u,v,kind\n"
MONTH = 40
# Two months hold fewer than the 100 rows that scaling is fitted on by default.
SPEC = SHORT.replace("[model]", "fit_periods = 1\n[model]")
# Counted over the test rows of all periods, which are more in a longer run.
ON_ALL_TEST_ROWS = ("test_accuracy", "test_loss")


def write(folder, months, spec=SPEC, first=0):
    """Write the rows of some months."""
    text = rows(months * MONTH).splitlines(keepends=True)[first * MONTH :]
    (folder / "rows.csv").write_text(HEAD + "".join(text))
    (folder / "spec.toml").write_text(spec.replace("rounds = 6\n", ""))
    return folder / "spec.toml"


def state(run):
    """Everything that training has left: parameters, buffers, client states, learned weights, traffic."""
    return encode(load_latest(run.checkpoints)[0])


def lines(run, name="metrics"):
    """All lines of a record; where test rows are held out, without what is counted over all of them."""
    protocol = toml.load(run.spec_path)["evaluate"]["protocol"]
    dropped = ON_ALL_TEST_ROWS if protocol == "holdout" else ()
    kept = run.lines(f"{name}.jsonl")
    return [{k: v for k, v in line.items() if k not in dropped} for line in kept]


def assert_same(run, straight):
    assert state(run) == state(straight)
    for name in ("metrics", "period_accuracy", "round_weights"):
        assert lines(run, name) == lines(straight, name)
    assert (run.path / "periods.json").read_bytes() == (straight.path / "periods.json").read_bytes()
    prepared = "preparation.json"
    assert (run.path / prepared).read_bytes() == (straight.path / prepared).read_bytes()


METHODS = {
    "core-set": SPEC,
    "server memory": SPEC.replace('"core-set"\nsize = 4', '"taylor"'),
    "adaptive": SPEC + '[method.weights]\nkind = "adaptive"\n',
    "window": SPEC.replace(
        'kind = "periods"', 'kind = "periods"\nwindow = 2\nrounds_per_period = 3'
    ),
    "evaluated seldom": SPEC.replace("seen = 20", "every = 2"),
    "threads": SPEC.replace("serial", "threads"),
    "batched": SPEC.replace("serial", "batched"),
    "scaffold": SPEC + '[method.backbone]\nkind = "scaffold"\n',
    "deletions": SPEC + "[[deletions]]\nround = 1\nrows = [3, 4]\nclients = [1]\n",
    "random": SPEC.replace("[model]", 'holdout = "random"\nvalidation = 0.1\n[model]'),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("protocol", ["next", "holdout"])
@pytest.mark.slow
def test_month_by_month_is_all_at_once(name, protocol, tmp_path):
    """On the next period, all records are the same; the evaluation that was pending is made up for."""
    text = METHODS[name].replace('protocol = "holdout"', f'protocol = "{protocol}"')
    spec = write(tmp_path, 3, text)
    run = make_run(spec, tmp_path / "run")
    assert toml.load(run.spec_path)["evaluate"]["protocol"] == protocol
    for months in (4, 6):
        write(tmp_path, months, text)
        done = extend(run, Request())
        assert run.state == "finished"
    assert done.periods == ("2024-05", "2024-06")
    assert_same(run, make_run(spec, tmp_path / "straight"))
    assert done.summary == run.summary()


def test_the_new_rows_alone(tmp_path):
    """A file with the newer rows only is added; the specification of the run says so, and can be run again."""
    spec = write(tmp_path, 2)
    run = make_run(spec, tmp_path / "run")
    for first, last in ((2, 3), (3, 5)):
        (tmp_path / f"new{first}").mkdir()
        write(tmp_path / f"new{first}", last, first=first)
        extend(run, Request(tmp_path / f"new{first}" / "rows.csv"))
    straight = make_run(run.spec_path, tmp_path / "again")
    assert_same(run, straight)
    write(tmp_path, 5)
    assert_same(run, make_run(spec, tmp_path / "straight"))
    files = [str(tmp_path / name / "rows.csv") for name in ("", "new2", "new3")]
    assert [line["files"] for line in run.extensions()] == [files[:2], files]
    assert [list(line["periods"]) for line in run.extensions()] == [
        ["2024-03"],
        ["2024-04", "2024-05"],
    ]
    assert [(e["round"], e["rounds"], e["rows"]) for e in run.extensions()] == [
        (2, 3, 40),
        (3, 5, 80),
    ]


@pytest.mark.slow
def test_the_whole_table_in_another_file(tmp_path):
    spec = write(tmp_path, 2)
    run = make_run(spec, tmp_path / "run")
    (tmp_path / "newer").mkdir()
    newer = write(tmp_path / "newer", 4)
    extend(run, Request(tmp_path / "newer" / "rows.csv"))
    assert_same(run, make_run(newer, tmp_path / "straight"))
    assert run.extensions()[0]["files"] == [str(tmp_path / "newer" / "rows.csv")]


def test_new_clients_get_new_numbers(tmp_path):
    spec = write(tmp_path, 2)
    run = make_run(spec, tmp_path / "run")
    new = "".join(f"b{k % 2},2024-03-{k:02d},{k},1,a\n" for k in range(1, 9))
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text() + new)
    extend(run, Request())
    assert run.scenario()["client_names"] == ["c0", "c1", "c2", "b0", "b1"]
    assert_same(run, make_run(spec, tmp_path / "straight"))


@pytest.mark.slow
def test_a_cohort_does_not_depend_on_clients_that_come_later(tmp_path):
    text = SPEC.replace('kind = "periods"', 'kind = "periods"\ncohort = 2')
    spec = write(tmp_path, 2, text)
    run = make_run(spec, tmp_path / "run")
    new = "".join(f"b{k % 9},2024-03-{k:02d},{k},1,a\n" for k in range(1, 28))
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text() + new)
    extend(run, Request())
    assert_same(run, make_run(spec, tmp_path / "straight"))


@pytest.mark.slow
def test_scaffold_counts_the_clients_that_have_joined(tmp_path):
    spec = write(tmp_path, 2, METHODS["scaffold"])
    run = make_run(spec, tmp_path / "run")
    assert load_latest(run.checkpoints)[0].server["clients"].item() == 3
    new = "".join(f"b{k % 2},2024-03-{k:02d},{k},1,a\n" for k in range(1, 9))
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text() + new)
    extend(run, Request())
    assert load_latest(run.checkpoints)[0].server["clients"].item() == 5


# --- stopped at any moment -------------------------------------------------------------------------


def stopped_at(step, monkeypatch):
    """Let writing the extension down end before its n-th write."""
    count = iter(range(100))

    def dying(inner):
        def write_or_die(*arguments, **options):
            if next(count) == step:
                raise Stop
            return inner(*arguments, **options)

        return write_or_die

    for name in ("write_atomic", "remove", "save", "append_line"):
        monkeypatch.setattr(extension, name, dying(getattr(extension, name)))


@pytest.mark.some(2)
@pytest.mark.parametrize("again", ["extend", "resume"])
@pytest.mark.parametrize("step", range(7))
def test_a_crash_while_the_extension_is_written_down(step, again, tmp_path, monkeypatch):
    spec = write(tmp_path, 3, METHODS["evaluated seldom"])
    run = make_run(spec, tmp_path / "run")
    write(tmp_path, 5, METHODS["evaluated seldom"])
    before = tree(run.path)
    with monkeypatch.context() as patch:
        stopped_at(step, patch)
        with pytest.raises(Stop):
            extend(run, Request())
    if step == 0:
        assert tree(run.path) == before
    if not (run.path / "extending.json").exists() or again == "extend":
        extend(run, Request())
    else:
        assert call("resume", run.path, "-q")[0] == 0
    assert not (run.path / "extending.json").exists()
    assert_same(run, make_run(spec, tmp_path / "straight"))
    assert len(run.extensions()) == 1


@pytest.mark.some(1)
@pytest.mark.parametrize("again", ["extend", "resume"])
def test_a_crash_in_training(again, tmp_path):
    spec = write(tmp_path, 2)
    run = make_run(spec, tmp_path / "run")
    write(tmp_path, 5)

    def stop(progress):
        if progress.round == 4:
            raise Stop

    with pytest.raises(Stop):
        extend(run, Request(), stop)
    assert run.state == "stopped"
    # Meanwhile the next months have come: they wait until what was begun is finished.
    write(tmp_path, 6)
    if again == "resume":
        finish(run)
        assert run.summary()["rounds"] == 5
    assert extend(run, Request()).periods == ("2024-06",)
    assert_same(run, make_run(spec, tmp_path / "straight"))


def test_a_stopped_run_resumes_on_the_periods_it_knows(tmp_path):
    spec = write(tmp_path, 4)
    straight = make_run(spec, tmp_path / "straight")
    run = make_run(spec, tmp_path / "run", stop_after=3)
    write(tmp_path, 6)
    finish(run)
    assert_same(run, straight)
    for name in ("metrics.jsonl", "spec.toml"):
        assert (run.path / name).read_bytes() == (straight.path / name).read_bytes()


# --- more rounds -----------------------------------------------------------------------------------

SUBSETS = """
rounds = 4
[data]
kind = "images"
name = "fashion-mnist-mini"
[model]
kind = "linear"
[scenario]
kind = "subsets"
clients = 2
subsets = 3
[method.memory]
kind = "core-set"
size = 3
[train]
steps = 1
[evaluate]
every = 3
"""


@pytest.mark.slow
def test_more_rounds_equal_a_run_with_more_rounds(tmp_path):
    (tmp_path / "spec.toml").write_text(SUBSETS)
    run = make_run(tmp_path / "spec.toml", tmp_path / "run")
    assert [line["round"] for line in run.history()] == [3, 4]
    assert extend(run, Request(rounds=5)).rounds == 5
    straight = make_run(tmp_path / "spec.toml", tmp_path / "straight", rounds=9)
    assert state(run) == state(straight)
    # Here the test set stays as it is.
    assert results(run.path) == results(straight.path)
    assert [line["round"] for line in run.history()] == [3, 6, 9]


@pytest.mark.slow
def test_more_rounds_do_not_count_twice_after_a_crash(tmp_path):
    (tmp_path / "spec.toml").write_text(SUBSETS)
    run = make_run(tmp_path / "spec.toml", tmp_path / "run")

    def stop(progress):
        if progress.round == 5:
            raise Stop

    with pytest.raises(Stop):
        extend(run, Request(rounds=2), stop)
    done = extend(run, Request(rounds=2))
    assert (done.rounds, done.finished, done.summary["rounds"]) == (0, True, 6)


# --- refusals --------------------------------------------------------------------------------------


def edited(folder, change):
    path = folder / "rows.csv"
    path.write_text(change(path.read_text()))


CHANGES = {
    "a value": (
        lambda t: t.replace("c1,2024-02-03,", "c1,2024-02-03,9", 1),
        "period 2024-02 has changed",
    ),
    "a class": (lambda t: t.replace(",b\n", ",a\n", 1), "period 2024-01 has changed"),
    "a late row": (
        lambda t: t + "c0,2024-02-28,1,1,a\n",
        r"period 2024-02 has changed .*\(it had 40 rows, now 41\)",
    ),
    "a lost row": (
        lambda t: t.replace(HEAD, "").split("\n", 1)[1].join([HEAD, ""]),
        "period 2024-01",
    ),
    "an earlier month": (lambda t: t + "c0,2023-12-28,1,1,a\n", "period 2023-12 has changed"),
    "a new class": (
        lambda t: t + "c0,2024-04-28,1,1,z\n",
        "row 162, column 'kind': 'z' is not a known class",
    ),
    "a new column": (
        lambda t: "".join(
            f"{line},1\n" for line in t.replace("kind\n", "kind,w\n").split("\n") if line
        ).replace("kind,w,1", "kind,w"),
        "feature 'w' is new; the model was trained on u, v",
    ),
    "a lost column": (lambda t: t.replace(",v,", ",t,", 1), "feature 't' is new"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CHANGES)
def test_earlier_rows_must_stay(name, tmp_path):
    spec = write(tmp_path, 2)
    run = make_run(spec, tmp_path / "run")
    write(tmp_path, 4)
    before = tree(run.path)
    change, message = CHANGES[name]
    edited(tmp_path, change)
    with pytest.raises(DataError, match=message):
        extend(run, Request())
    assert tree(run.path) == before


@pytest.mark.slow
def test_rounds_that_end_before_the_data_cannot_be_followed_by_later_periods(tmp_path):
    spec = write(tmp_path, 3)
    run = make_run(spec, tmp_path / "run", rounds=2)
    write(tmp_path, 4)
    with pytest.raises(SpecError, match="its 2 rounds did not end with its periods"):
        extend(run, Request())
    # But it may go on to their end, and from there with later ones.
    assert extend(run, Request(rounds=1)).rounds == 1
    assert extend(run, Request()).periods == ("2024-04",)
    assert_same(run, make_run(spec, tmp_path / "straight"))


@pytest.mark.slow
def test_without_periods_rounds_must_be_given(tmp_path):
    (tmp_path / "spec.toml").write_text(SUBSETS)
    run = make_run(tmp_path / "spec.toml", tmp_path / "run")
    with pytest.raises(SpecError, match="go on with --rounds N"):
        extend(run, Request())


def test_numbers_keep_their_scale(tmp_path):
    """A regression: the target is scaled as it was at first."""
    text = SPEC.replace('"holdout"', '"next"').replace(
        'target = "kind"', 'target = "u"\nfeatures = ["v"]'
    )
    spec = write(tmp_path, 3, text)
    run = make_run(spec, tmp_path / "run")
    write(tmp_path, 5, text)
    assert extend(run, Request()).rounds == 2
    assert "rmse" in run.history()[-1]
    assert_same(run, make_run(spec, tmp_path / "straight"))


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[model]", 'holdout = "latest"\n[model]'), "its test rows are the latest"),
        (
            ("[model]", "validation = 0.2\n[stop]\npatience = 1\nmin_delta = 9\n[model]"),
            "stopped early",
        ),
    ],
)
def test_runs_that_later_periods_cannot_follow(change, message, tmp_path):
    spec = write(tmp_path, 4, SPEC.replace(*change))
    run = make_run(spec, tmp_path / "run")
    write(tmp_path, 5, SPEC.replace(*change))
    before = tree(run.path)
    with pytest.raises(SpecError, match=message):
        extend(run, Request())
    assert tree(run.path) == before


def test_it_needs_the_last_checkpoint(tmp_path):
    run = make_run(write(tmp_path, 2), tmp_path / "run")
    write(tmp_path, 3)
    for path in run.checkpoints.glob("00000002-*"):
        path.unlink()
    with pytest.raises(RunError, match="needs the checkpoint of its last round, 2"):
        extend(run, Request())
    assert run.state == "finished"


def test_one_at_a_time(tmp_path):
    run = make_run(write(tmp_path, 2), tmp_path / "run")
    write(tmp_path, 3)
    with run.lock():
        code, out, err = call("extend", run.path, "-q")
    assert (code, out) == (4, "")
    assert "another process is using this run" in err


@pytest.mark.slow
def test_a_period_that_is_still_growing_waits(tmp_path):
    text = SPEC.replace("[model]", "growing = true\n[model]")
    spec = write(tmp_path, 3, text)
    run = make_run(spec, tmp_path / "run")
    assert run.scenario()["period_names"] == ["2024-01", "2024-02"]
    write(tmp_path, 5, text)
    assert extend(run, Request()).periods == ("2024-03", "2024-04")


# --- the command -----------------------------------------------------------------------------------


def test_the_command(tmp_path):
    run = make_run(write(tmp_path, 2), tmp_path / "run")
    code, out, err = call("extend", run.path)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == f"chronofed: {run.path}: nothing new"
    assert call("extend", run.path, "-q") == (0, "", "")
    write(tmp_path, 4)
    code, out, err = call("extend", run.path)
    assert code == 0
    assert f"{run.path}: 2 more rounds for 2024-03, 2024-04" in err
    assert "run: " in out
    write(tmp_path, 5)
    found = json.loads(call("extend", run.path, "--json")[1])
    assert (found["new_rounds"], found["new_periods"], found["rounds"]) == (1, ["2024-05"], 5)
    assert call("extend", run.path, "--data", tmp_path / "no.csv", "-q")[0] == 3
    assert call("extend", run.path, "--rounds", "0", "-q")[0] == 2
    assert RunDirectory(run.path).state == "finished"

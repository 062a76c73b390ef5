"""Grids of runs: parsing, combinations, names; and the table of the user's own runs."""

import json
from functools import partial

import pytest

from chronofed.cli.options import parse_seeds
from chronofed.core.errors import RunError, SpecError
from chronofed.reports.groups import Group
from chronofed.reports.runs import RunView
from chronofed.reports.user_table import user_table
from chronofed.runs import runner
from chronofed.studies.vary import Grid, Varied

SPEC = """
name = "tiny"
rounds = 2
[data]
kind = "images"
[model]
kind = "linear"
[train]
steps = 1
[evaluate]
seen = 0
"""


@pytest.fixture
def spec(workdir):
    (workdir / "spec.toml").write_text(SPEC)
    return workdir / "spec.toml"


def names(spec, *texts, seeds=None):
    return [cell.name for cell in Grid(spec, [Varied.parse(t) for t in texts]).cells(seeds)]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0-4", [0, 1, 2, 3, 4]), ("7", [7]), ("0,2,5-6", [0, 2, 5, 6]), (" 1 , 3-3", [1, 3])],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "4-0", "0-", "-1", "a", "0-4,2", "0-99999999", "1.5"])
def test_bad_seeds(text):
    with pytest.raises(SpecError, match="--seeds: expected"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,2", ("1", "2")),
        ("a=[1,2],[3]", ("[1,2]", "[3]")),
        ("a={kind='x', k=[1,2]}, none", ("{kind='x', k=[1,2]}", "none")),
        ("a='x,y',z", ("'x,y'", "z")),
    ],
)
def test_values(text, values):
    assert Varied.parse(text) == Varied("a", values)


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=1,,2", "a..b=1", "a=1,1"])
def test_bad_values(text):
    with pytest.raises(SpecError, match="--vary"):
        Varied.parse(text)


def test_all_combinations_seed_by_seed(spec):
    found = names(spec, "train.lr=0.03,0.1", "method.memory=none,core-set", seeds=[0, 5])
    one = [f"lr={lr}, memory={memory}" for lr in (0.03, 0.1) for memory in ("none", "core-set")]
    assert found == [f"{name}, seed {seed}" for seed in (0, 5) for name in one]


def test_a_setting_of_one_kind_does_not_multiply_the_others(spec):
    found = names(spec, "method.memory.size=5,20", "method.memory=forget,core-set")
    assert found == [
        "memory=forget, seed 0",
        "memory=core-set, size=5, seed 0",
        "memory=core-set, size=20, seed 0",
    ]


def test_values_reach_the_settings(spec):
    varied = [Varied.parse(t) for t in ("method.memory=core-set", "model={kind='mlp', hidden=[4]}")]
    (cell,) = Grid(spec, [*varied, Varied("train.lr", ("0.5",))], ["train.steps=7"]).cells([3])
    experiment = cell.experiment
    assert type(experiment.method.memory).__name__ == "CoreSet"
    assert (experiment.model.hidden, experiment.train.lr, experiment.train.steps) == ((4,), 0.5, 7)
    assert experiment.seed == 3


def test_without_values_only_seeds_differ(spec):
    assert names(spec, seeds=[1, 2]) == ["tiny, seed 1", "tiny, seed 2"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["train.lr=0.1,x"], "lr=x: .*train.lr: expected float"),
        (["method.memory=nope"], "memory=nope: .*method.memory.kind: unknown value"),
        (["train.lrr=1"], "unknown key; did you mean"),
        (["seed=0,1"], "use --seeds"),
        (["train.lr=1", "train.lr=2"], "given twice"),
        (["rounds.x=1"], "rounds is not a table"),
    ],
)
def test_what_cannot_be_varied_is_refused_before_anything_runs(texts, message, spec):
    with pytest.raises(SpecError, match=message):
        names(spec, *texts)


def test_too_many_runs(spec):
    with pytest.raises(SpecError, match="20000 runs are too many"):
        names(spec, "train.lr=0.1,0.2", seeds=range(10_000))


# --- the command -------------------------------------------------------------------------------------


def test_the_grid_goes_on_where_it_was_stopped(cli, spec, workdir, monkeypatch):
    """One run fails: the others go on, and the same command again runs that one alone."""
    command = partial(
        cli, "run", spec, "--seeds", "0-1", "--vary", "train.lr=0.03,0.1", "-o", "grid"
    )
    trained, whole = [], runner.run

    def failing(experiment, *arguments, **options):
        trained.append((experiment.name, experiment.seed))
        if (experiment.name, experiment.seed) == ("lr=0.1", 0) and len(trained) < 5:
            raise RunError("no")
        return whole(experiment, *arguments, **options)

    monkeypatch.setattr(runner, "run", failing)
    code, out, err = command("--jobs", "1")
    assert code == 1
    assert "failed: lr=0.1, seed 0: no" in err
    assert "run the same command again" in err
    assert "lr=0.03" in out
    assert len(trained) == 4
    code, out, err = command("--jobs", "1", "--json")
    assert code == 0
    assert trained[4:] == [("lr=0.1", 0)]
    assert [(row["experiment"], row["seeds"]) for row in json.loads(out)] == [
        ("lr=0.03", 2),
        ("lr=0.1", 2),
    ]
    assert "In the paper" not in out
    assert len(list((workdir / "grid").glob("lr=0.1-*-s?"))) == 2
    monkeypatch.setattr(runner, "run", None)
    assert command("--jobs", "1", "-q")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "2"], "--jobs: a single run is one job"),
        (["--seeds", "0-1", "--jobs", "0"], "--jobs: expected a number >= 1"),
        (["--seeds", "0-1", "--samples", "a.png"], "--samples: draws the samples of one run"),
    ],
)
def test_options_that_do_not_go_together(arguments, message, cli, spec):
    code, _, err = cli("run", spec, *arguments)
    assert code == 2
    assert message in err


# --- the table ---------------------------------------------------------------------------------------


def group(name, values, state="finished", **spec):
    """Make an experiment with one number for every seed."""
    runs = [
        RunView(
            f"{name}{k}",
            {"name": name, "seed": k, **spec},
            state,
            [],
            {"last": v, "anytime": v / 2},
        )
        for k, v in enumerate(values)
    ]
    return Group(name, tuple(runs), name, len(runs))


ROWS = [
    group("a", [0.1, 0.2, 0.3], train={"lr": 0.1}, method={"memory": {"kind": "forget"}}),
    group(
        "b", [0.6, 0.7, 0.81], train={"lr": 0.2}, method={"memory": {"kind": "core-set", "size": 5}}
    ),
]


def test_rows_by_what_differs():
    table = user_table(ROWS, ["last"]).text()
    assert table.headings == ["lr", "memory", "seeds", "last %"]
    assert table.rows == [
        ["0.1", "forget", "3", "20.00 ± 10.00"],
        ["0.2", "core-set", "3", "70.33 ± 10.50"],
    ]
    # The differences are 0.5, 0.5, 0.51: beyond chance.
    assert table.best == {(1, 3)}
    assert "bold: b in last: the lead" in table.caption


def test_a_setting_that_varies_among_one_kind_is_shown():
    other = group("c", [0.1], train={"lr": 0.1}, method={"memory": {"kind": "core-set", "size": 9}})
    table = user_table([*ROWS, other], ["last"]).text()
    assert table.headings[:3] == ["lr", "memory", "size"]
    assert [row[2] for row in table.rows] == ["-", "5", "9"]


def test_many_differences_are_told_by_names():
    rows = [group(name, [0.1], train=dict.fromkeys("abcde", name)) for name in ("one", "two")]
    assert user_table(rows).text().headings[:2] == ["experiment", "seeds"]


def test_all_columns_that_fit():
    table = user_table(ROWS)
    assert [column.key for column in table.shown] == ["last", "anytime"]
    assert (table.fitting(200), table.fitting(50)) == (2, 1)


def test_runs_that_are_not_finished_do_not_count():
    stopped = group("c", [0.9], "stopped")
    assert user_table([*ROWS, stopped]).groups == tuple(ROWS)
    with pytest.raises(RunError, match="none of these runs is finished"):
        user_table([stopped])


def test_files(tmp_path):
    table = user_table(ROWS, ["last"])
    for suffix in ("md", "csv", "tex"):
        table.write(tmp_path / f"table.{suffix}", "Mine")
    md, text, tex = ((tmp_path / f"table.{s}").read_text() for s in ("md", "csv", "tex"))
    assert "| 0.2 | core-set | 3 | **70.33 ± 10.50** |\n\nbold: b in last" in md
    assert (
        text == "lr,memory,seeds,last %\n0.1,forget,3,20.00 ± 10.00\n0.2,core-set,3,70.33 ± 10.50\n"
    )
    assert tex.startswith("% Mine\n")
    assert r"0.2 & core-set & 3 & \textbf{70.33 $\pm$ 10.50} \\" in tex


def test_the_table_command(cli, spec, workdir):
    assert cli("run", spec, "--seeds", "0-1", "-o", "grid", "-q", "--jobs", "1")[0] == 0
    code, out, _ = cli("table", "grid", "--measures", "last,forgetting", "--title", "My runs")
    assert code == 0
    assert "My runs" in out
    assert "forgetting %" in out
    assert cli("table", "grid", "-o", "t.xls")[0] == 2
    code, _, err = cli("table", "grid", "--measures", "nope")
    assert (code, "--measures: no 'nope' in these runs; there are: best5, last" in err) == (2, True)

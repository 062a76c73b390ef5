"""The command line as a user and as a script meet it."""

import json
import subprocess
import sys

import pytest

from chronofed.cli.main import commands, main

SPEC = """
name = "tiny"
rounds = 4
[model]
kind = "mlp"
hidden = [8]
[train]
steps = 2
[evaluate]
every = 2
seen = 100
"""


@pytest.fixture(autouse=True)
def spec(workdir):
    (workdir / "spec.toml").write_text(SPEC)


@pytest.fixture
def call(cli):
    return cli


def test_run_compare_and_resume(call, tmp_path):
    code, out, _ = call("run", "spec.toml", "-o", "one", "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["run"] == "one"
    assert summary["rounds"] == 4
    assert 0 <= summary["best5"] <= 1
    files = {path.name for path in (tmp_path / "one").iterdir()}
    assert files == {
        "spec.toml",
        "environment.json",
        "metrics.jsonl",
        "period_accuracy.jsonl",
        "times.jsonl",
        "scenario.json",
        "engines.jsonl",
        "checkpoints",
        "summary.json",
        "lock",
    }

    code, out, _ = call("run", "spec.toml", "-s", "seed=1", "-o", "two", "--quiet")
    assert code == 0
    assert "tiny" in out

    code, out, err = call("compare", "one", "two", "--html", "report.html")
    assert code == 0
    assert "±" in out
    assert "report: report.html" in err
    assert '"name":"tiny"' in (tmp_path / "report.html").read_text()
    assert "⠀" in out  # a small curve

    code, out, _ = call("compare", "one", "two", "--json")
    (group,) = json.loads(out)
    assert [run["seed"] for run in group["runs"]] == [0, 1]
    assert group["mean"]["rounds"] == 4

    code, out, _ = call("resume", "one", "--json")
    assert code == 0
    assert json.loads(out) == summary


def test_equal_experiments_meet_in_one_directory(call, tmp_path):
    assert call("run", "spec.toml", "--quiet")[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("tiny-")
    assert run.name.endswith("-s0")
    code, _, err = call("run", "spec.toml", "--quiet")
    assert code == 4
    assert "holds a run already: continue it with 'chronofed resume runs/tiny-" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "no.toml"], 2, "no.toml: no such file"),
        (
            ["run", "spec.toml", "-s", "train.lrr=1"],
            2,
            "train.lrr: unknown key; did you mean 'lr'?",
        ),
        (
            ["run", "spec.toml", "-s", "data={kind='images',name='cifar10'}"],
            3,
            "chronofed data get cifar10",
        ),
        (
            [
                "run",
                "spec.toml",
                "-s",
                "scenario.kind='stateless'",
                "-s",
                "method.memory.kind='core-set'",
            ],
            2,
            "method.memory: CoreSet keeps its state on the client",
        ),
        (
            ["run", "spec.toml", "-s", "train.lr=1e30"],
            7,
            "no longer finite; try a smaller train.lr",
        ),
        (["resume", "nowhere"], 4, "nowhere is not a run directory"),
        (["compare", "nowhere"], 4, "nowhere is not a run directory"),
        (["data", "get"], 2, "data get: name a data set; known: "),
        (
            ["data", "where", "cifar10"],
            3,
            "cifar10 is not on this machine; online: chronofed data get cifar10",
        ),
        (["data", "where", "cifar11"], 2, "did you mean 'cifar10'?"),
        (
            ["spec", "method.memry"],
            2,
            "spec method.memry: no such section; did you mean method.memory",
        ),
        (["spec", "zzz"], 2, "spec zzz: no such section; known: data, "),
        (["demo", "--seeds", "0"], 2, "--seeds: expected a number >= 1, not 0"),
    ],
)
def test_a_mistake_gets_one_line_and_an_exit_code(call, tmp_path, arguments, code, message):
    got, out, err = call(*arguments)
    assert got == code
    assert err.count("\n") == 1
    assert err.startswith("chronofed: ")
    assert message in err
    assert out == ""


def test_a_refused_run_leaves_nothing_behind(call, tmp_path):
    call(
        "run", "spec.toml", "-s", "scenario.kind='stateless'", "-s", "method.memory.kind='core-set'"
    )
    assert not (tmp_path / "runs").exists()


def test_wrong_usage():
    with pytest.raises(SystemExit) as stop:
        main(["fly"])
    assert stop.value.code == 2


def test_interruption(call, monkeypatch):
    from chronofed.runs import runner

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "proceed", interrupted)
    code, _, err = call("run", "spec.toml")
    assert code == 130
    assert "chronofed resume" in err


def test_methods(call):
    code, out, _ = call("methods", "--json")
    rows = {row["kind"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["core-set"]["needs"] == "state on the client"
    assert not rows["core-set"]["stateless"]
    assert rows["fedprox"]["settings"]["mu"] == 0.1
    assert rows["optimal"]["settings"]["time_drift_sq"] == "required"
    assert all(row["about"] for row in rows.values())
    table = call("methods")[1]
    assert all(kind in table for kind in ("fedavg", "fedprox", "forget", "core-set", "uniform"))


def test_doctor(call):
    report = json.loads(call("doctor", "--json")[1])
    assert report["machine"]["torch threads"] >= 1
    assert "fashion-mnist-mini" in report["data"]
    assert report["data"]["cifar10"].startswith("missing: chronofed data get")
    assert "package: torch" in call("doctor")[1]


def test_data(call):
    code, out, _ = call("data", "list")
    assert code == 0
    assert "fashion-mnist-mini" in out
    found = {row["name"]: row["found"] for row in json.loads(call("data", "list", "--json")[1])}
    assert found["cifar10"] == ""
    assert call("data", "where", "fashion-mnist-mini")[1].strip() == found["fashion-mnist-mini"]
    assert "chronofed" in call("data", "where")[1]
    assert json.loads(call("data", "where", "--json")[1])
    code, _, err = call("data", "get", "fashion-mnist-mini")
    assert code == 0
    assert "fashion-mnist-mini is in" in err
    assert json.loads(call("data", "get", "fashion-mnist-mini", "--json")[1])["name"]


def test_scenario(call, tmp_path):
    code, out, _ = call("scenario", "spec.toml", "--rounds", "3", "--plot", "balls.png")
    assert code == 0
    assert "7 clients, 4 rounds, 10 classes" in out
    assert (tmp_path / "balls.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads(call("scenario", "spec.toml", "--json")[1])
    assert len(content["plans"]) == 4
    first = content["plans"][0]["clients"][0]
    assert sum(first["by_class"]) == first["samples"] == 50


def test_demo(call, tmp_path):
    code, out, _ = call("demo", "--rounds", "3", "--seeds", "2", "-o", "demo", "--quiet")
    assert code == 0
    assert "CFL-Core-Set" in out
    assert (tmp_path / "demo" / "report.html").exists()
    code, out, _ = call("demo", "--rounds", "2", "--seeds", "1", "-o", "again", "--json")
    assert [e["experiment"] for e in json.loads(out)["experiments"]] == ["FedAvg", "CFL-Core-Set"]


def imported(tmp_path, *arguments: str) -> set[str]:
    """Heavy packages that a call of the command line imports, in a process of its own."""
    code = (
        "import sys; from chronofed.cli.main import main\n"
        f"try: main({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "sys.stdout = sys.__stdout__\n"
        "print(*sys.modules, sep='\\n', end='')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    return HEAVY & set(done.stdout.splitlines())


HEAVY = {"torch", "numpy", "msgspec", "rich", "matplotlib", "optuna", "flwr"}
QUICK = [["--help"], ["--version"], ["fly"], ["run"], ["run", "--fly"], ["run", "no.toml"]]


@pytest.mark.parametrize(
    "arguments", [*QUICK, *([name, "--help"] for name in commands())], ids=" ".join
)
def test_help_and_usage_errors_import_nothing_heavy(tmp_path, arguments):
    assert imported(tmp_path, *arguments) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        "weights --correlation 0.8 --client-drift 1",
        "rates",
        "privacy --noise 1 --rounds 3 --sampling 0.1",
        "resume nowhere",
        "compare nowhere",
        "scenario no.toml",
        "profile no.toml",
        "sweep no.toml --vary train.lr=0.1:1",
        "flower local no.toml",
    ],
)
def test_theory_and_missing_files_do_not_wait_for_torch(tmp_path, arguments):
    assert "torch" not in imported(tmp_path, *arguments.split())


def test_every_module_is_a_command():
    import chronofed.cli.main as module

    assert module.main is main
    for name, command in commands().items():
        assert command.GROUP in module.GROUPS, name
        assert command.HELP[0].islower() or command.HELP.split()[0].isupper(), name
        assert not command.HELP.endswith("."), name
        assert len(command.HELP) <= 66, name


def test_help_fits_a_terminal(capsys):
    for name in commands():
        with pytest.raises(SystemExit):
            main([name, "--help"])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert out.isascii()


def test_spec(call):
    code, out, _ = call("spec", "train")
    assert code == 0
    assert "  lr            number > 0; default: 0.05\n" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = call("spec", "scenario.subsets")
    assert out.startswith('[scenario]  kind = "subsets"\n')
    assert call("spec", "[scenario]")[1].startswith('[scenario]  kind = "periods"')
    (train,) = json.loads(call("spec", "train", "--json")[1])
    assert (train["section"], train["kind"], train["keys"][0]["key"]) == ("train", None, "lr")
    whole = call("spec")[1]
    assert max(map(len, whole.splitlines())) <= 80
    assert "`" not in whole
    assert "[[claims]]" in call("spec", "--recipe")[1]


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m chronofed data list --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""

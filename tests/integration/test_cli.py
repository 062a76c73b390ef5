"""The command line as a user and as a script meet it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from chronofed.cli.main import commands, main

pytestmark = pytest.mark.usefixtures("tiny_spec")


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
        "digests.json",
        "model",
        "lock",
        "running",
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

    code, out, err = call("resume", "one", "--json")
    assert code == 0
    assert json.loads(out) == summary
    assert err == "chronofed: one is finished; nothing to do\n"


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


def test_calls_in_one_process_add_the_working_folder_once(call, tmp_path, monkeypatch):
    """Its path is part of a command line that starts worker processes, which has a limit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for _ in range(3):
        call("run", "nope.toml")
    assert sys.path.count(str(tmp_path)) == 1


def test_wrong_usage(call):
    code, out, err = call("fly")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'fly'" in err


def test_interruption(call, monkeypatch):
    """The line that is printed can be copied: it continues the run."""
    from chronofed.runs import runner

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def terminated(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "proceed", interrupted)
        code, _, err = call("run", "spec.toml", "-o", "my run")
    assert (code, err) == (
        130,
        "\nchronofed: interrupted; continue with: chronofed resume 'my run'\n",
    )
    with monkeypatch.context() as patch:
        patch.setattr(runner, "resume", terminated)
        code, _, err = call("resume", "my run", "-q")
    assert code == 143
    assert err.startswith("\nchronofed: terminated; continue with: ")
    assert call(*shlex.split(err.partition("with: ")[2])[1:])[0] == 0


def test_methods(call):
    code, out, _ = call("methods", "--json")
    rows = {row["kind"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["core-set"]["needs"] == "state on the client"
    assert not rows["core-set"]["stateless"]
    assert rows["fedprox"]["settings"]["mu"] == 0.1
    assert rows["optimal"]["settings"]["time_drift_sq"] == "required"
    assert all(row["about"] for row in rows.values())
    assert rows["ewc"]["costs"]["client_models"] == pytest.approx(2.0, abs=0.3)
    table = call("methods")[1]
    assert all(kind in table for kind in ("fedavg", "fedprox", "forget", "core-set", "uniform"))
    (line,) = [line for line in table.splitlines() if line.startswith("scaffold")]
    assert line.split()[:3] == ["scaffold", "no", "Stochastic"]
    for kind, stateless in (("fedopt", "as inner"), ("scores", "no"), ("loss-jump", "as holder")):
        (line,) = [line for line in table.splitlines() if line.startswith(f"{kind} ")]
        assert line.split(maxsplit=1)[1].startswith(stateless)


def test_one_method(call):
    code, out, _ = call("methods", "fedcurv")
    assert code == 0
    assert out.startswith("backbone fedcurv\n  FedAvg whose clients")
    for line in ("needs      state on the client", "stateless  no: clients must", "Shoham et al."):
        assert line in out
    assert "costs      3.1 down and 3 up a round, 2.1 on a client" in out
    assert "strength   number >= 0; default: 0.001\n      Weight lambda of the penalty" in out
    found = json.loads(call("methods", "fedcurv", "--json")[1])
    assert found["settings"] == {"strength": 0.001, "server_lr": 1.0}
    assert "no settings" in call("methods", "forget")[1]
    assert "required" in call("methods", "optimal")[1]
    code, _, err = call("methods", "fedcrv")
    assert code == 2
    assert "methods fedcrv: no such part of a method; did you mean fedcurv" in err
    assert "list all with: chronofed methods" in call("methods", "zzzz")[2]


def test_methods_fit_into_sixty_columns(call, monkeypatch):
    """Every part: what it is, and its settings; costs, which take long to measure, are the same few words."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("chronofed.cli.methods._costs", lambda *_: None)
    shown = {"": call("methods")[1]}
    kinds = [line.split()[0] for line in shown[""].splitlines() if line[:1].islower()]
    assert {"gem", "distil", "adaptive", "beta-ratio", "scores"} <= set(kinds)
    families = {"backbone", "memory", "weights", "detector", "assignment"}
    shown |= {kind: call("methods", kind)[1] for kind in kinds if kind not in families}
    assert max(len(line) for text in shown.values() for line in text.splitlines()) <= 60
    # No formula is left as it was, and a setting is where this part has it.
    assert not [kind for kind, text in shown.items() if "\\" in text or "_ " in text]
    assert "[method.memory.curvature]" in shown["ewc"]
    assert "[method.backbone.backbone]" in shown["gem"]
    assert "[method.backbone.assign.detector]" in shown["scores"]
    assert "stateless  as the part is that holds it" in shown["loss-jump"]
    assert "needs      state on the client" in shown["block"]


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


@pytest.mark.slow
def test_scenario(call, tmp_path):
    code, out, _ = call("scenario", "spec.toml", "--rounds", "3", "--plot", "balls.png")
    assert code == 0
    assert "7 clients, 4 rounds, 10 classes" in out
    assert (tmp_path / "balls.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads(call("scenario", "spec.toml", "--json")[1])
    assert len(content["plans"]) == 4
    first = content["plans"][0]["clients"][0]
    assert sum(first["by_class"]) == first["samples"] == 50


@pytest.mark.slow
def test_demo(call, tmp_path):
    code, out, _ = call("demo", "--rounds", "3", "--seeds", "2", "-o", "demo", "--quiet")
    assert code == 0
    assert "CFL-Core-Set" in out
    assert (tmp_path / "demo" / "report.html").exists()
    code, out, _ = call("demo", "--rounds", "2", "--seeds", "1", "-o", "again", "--json")
    assert [e["experiment"] for e in json.loads(out)["experiments"]] == ["FedAvg", "CFL-Core-Set"]


def imported(tmp_path, *calls: list[str]) -> dict[str, set[str]]:
    """Heavy packages after each of some calls of the command line, in a process of their own."""
    code = (
        "import sys; from chronofed.cli.main import main\n"
        f"for arguments in {list(calls)!r}:\n"
        "    try: main(arguments)\n"
        "    except SystemExit: pass\n"
        f"    if found := {HEAVY!r} & set(sys.modules):\n"
        "        print('FOUND', ' '.join(arguments), *sorted(found), sep='|', file=sys.__stdout__)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("FOUND|")]
    return {call: set(found) for call, *found in lines}


HEAVY = {"torch", "numpy", "msgspec", "rich", "matplotlib", "optuna", "flwr"}
QUICK = [["--help"], ["--version"], ["fly"], ["run"], ["run", "--fly"], ["run", "no.toml"]]


def test_help_and_usage_errors_import_nothing_heavy(tmp_path):
    assert imported(tmp_path, *QUICK, *([name, "--help"] for name in commands())) == {}


@pytest.mark.slow
def test_theory_and_missing_files_do_not_wait_for_torch(tmp_path):
    calls = [
        "weights --correlation 0.8 --client-drift 1",
        "rates",
        "privacy --noise 1 --rounds 3 --sampling 0.1",
        "resume nowhere",
        "compare nowhere",
        "scenario no.toml",
        "profile no.toml",
        "sweep no.toml --vary train.lr=0.1:1",
        "flower local no.toml",
    ]
    found = imported(tmp_path, *(call.split() for call in calls))
    assert {call for call, packages in found.items() if "torch" in packages} == set()
    # The check itself works.
    assert "torch" in imported(tmp_path, ["methods"])["methods"]


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
    assert re.search(r"^  lr +number > 0; default: 0.05$", out, re.MULTILINE)
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

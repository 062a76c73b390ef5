"""Reports, figures, the live page and trackers from the command line."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from chronofed.cli.main import main
from chronofed.reports.run_index import RunIndex
from tests.helpers.pages import content_of
from tests.helpers.scenes import write_run

SPEC = """
name = "tiny"
rounds = 4
[model]
kind = "linear"
[method.memory]
kind = "core-set"
size = 3
[train]
steps = 1
[evaluate]
every = 2
seen = 0
past = 2
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two seeds of a real run."""
    folder = tmp_path_factory.mktemp("grid")
    (folder / "spec.toml").write_text(SPEC)
    for seed in (0, 1):
        call = [
            "run",
            folder / "spec.toml",
            "-s",
            f"seed={seed}",
            "-o",
            folder / "runs" / f"{seed}",
            "-q",
        ]
        assert main([str(word) for word in call]) == 0
    return folder / "runs"


@pytest.fixture
def call(cli):
    return cli


def test_a_report_of_a_folder(call, grid, tmp_path):
    code, out, err = call("report", grid, "-o", "r.html", "--title", "<b>Mine")
    assert (code, out) == (0, "")
    assert "2 runs; report:" in err
    page = (tmp_path / "r.html").read_text()
    assert "<title>&lt;b&gt;Mine</title>" in page
    content = content_of(page)
    assert [m["key"] for m in content["measures"]] == [
        "test_accuracy",
        "forgetting",
        "test_loss",
        "information_loss",
        "client_drift_sq",
        "time_drift_sq",
        "backward_transfer",
        "bytes_up",
        "bytes_down",
    ]
    assert len(content["periods"]) == 2
    assert len(content["scenarios"]) == 2
    assert content["weights"]
    code, out, _ = call("report", grid, "--json")
    assert json.loads(out)["runs"] == 2
    assert json.loads(out)["bytes"] == (tmp_path / "report.html").stat().st_size


def test_a_report_of_nothing(call, tmp_path):
    code, _, err = call("report", tmp_path)
    assert code == 4
    assert "no run is below it" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("width", [60, 100])
def test_a_terminal_says_what_it_leaves_out(call, tmp_path, monkeypatch, width):
    """Columns for which there is no room, curves of many experiments, and curves without Unicode."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    paths = [write_run(tmp_path / f"{k}", f"run {k}", memory=k + 1) for k in range(10)]
    code, out, err = call("compare", *paths)
    assert code == 0, err
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= width
    text = " ".join(out.split())
    assert (
        "8 of 10 experiments are drawn, finished ones first, and the best; all of them: --html"
        in text
    )
    assert ("no room for:" in text) == (width == 60)
    assert text.count("━━━ run") + text.count("━ ━ run") == 8
    assert "8 of" not in call("compare", *paths[:8])[1]


def test_a_narrow_terminal_shows_the_last_value_and_forgetting(call, tmp_path, monkeypatch):
    """What the package is about is not the first to go; at 80 columns there is room for three."""
    paths = [write_run(tmp_path / f"{k}", "run", k) for k in range(2)]
    for width, wanted in ((52, ["last", "forgetting"]), (80, ["last", "anytime", "forgetting"])):
        monkeypatch.setenv("COLUMNS", str(width))
        head = " ".join(call("compare", *paths)[1].split("┡")[0].split())
        assert [word for word in ("last", "anytime", "forgetting") if word in head] == wanted


def test_a_scenario_says_which_clients_it_shows(call, grid, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_run(tmp_path / "many", "run")
    about = json.loads((path / "scenario.json").read_text())
    (path / "scenario.json").write_text(json.dumps(about | {"clients": 49}))
    (path / "digests.json").unlink()
    code, _, err = call("plot", "scenario", path, "-o", "a.svg")
    assert code == 0
    assert "only the first 5 of 49 clients are recorded; all: chronofed scenario" in err
    assert "clients are recorded" not in call("plot", "scenario", grid, "-o", "b.svg")[2]


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["curves", "heatmap", "weights", "information-loss", "scenario"])
def test_figures(call, grid, tmp_path, kind):
    pytest.importorskip("matplotlib")
    code, _, err = call("plot", kind, grid, "-o", f"{kind}.svg")
    assert code == 0, err
    assert (tmp_path / f"{kind}.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["curves", "-o", "a.gif"], 2, "use a file ending"),
        (["curves", "-o", "a.png", "--measure", "x"], 2, "--measure x: not measured in these runs"),
        (["heatmap", "-o", "a.png", "--round", "0"], 2, "was first evaluated after round 2"),
    ],
)
def test_figures_that_cannot_be_drawn(call, grid, arguments, code, words):
    pytest.importorskip("matplotlib")
    got, _, err = call("plot", arguments[0], grid, *arguments[1:])
    assert got == code
    assert words in err


def test_information_loss_that_was_not_measured(call, grid, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "spec.toml").write_text(SPEC)
    assert call("run", "spec.toml", "-s", "evaluate.past=0", "-o", "one", "-q")[0] == 0
    code, _, err = call("plot", "information-loss", "one", "-o", "a.png")
    assert code == 2
    assert "set evaluate.past" in err


def test_a_tracker_from_the_command_line(call, tmp_path, monkeypatch):
    (tmp_path / "spec.toml").write_text(SPEC)
    own = "class Own:\n" + "".join(
        f"    def {name}(self, *given):\n        with open('heard', 'a') as file:\n"
        f"            file.write('{name}\\n')\n"
        for name in ("start", "log", "finish")
    )
    (tmp_path / "own_tracker.py").write_text(own)
    assert call("run", "spec.toml", "-o", "one", "-q", "--track", "own_tracker:Own")[0] == 0
    assert (tmp_path / "heard").read_text().split() == ["start", "log", "log", "finish"]
    assert 'track = "own_tracker:Own"' in (tmp_path / "one" / "spec.toml").read_text()
    code, _, err = call("run", "spec.toml", "-o", "two", "--track", "nobody")
    assert code == 2
    assert "track: unknown value 'nobody'" in err
    sys.modules.pop("own_tracker")


OWN_MEASURE = """
from chronofed import Measure

MARGIN = Measure(
    key="margin",
    title="Mean margin",
    label="margin",
    better="higher",
    compute=lambda evaluation: float(evaluation.logits.topk(2).values.diff().abs().mean()),
)
"""


def test_an_own_measure_from_the_command_line(call, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC + 'measures = ["own_margin:MARGIN"]\n')
    (tmp_path / "own_margin.py").write_text(OWN_MEASURE)
    code, out, err = call("run", "spec.toml", "-o", "runs/one", "-q", "--json")
    assert code == 0, err
    margin = json.loads(out)["last_margin"]
    assert margin > 0
    sys.modules.pop("own_margin")
    (tmp_path / "own_margin.py").unlink()  # readers of a run need its directory only
    assert " margin ┃" in call("compare", "runs")[1]
    assert json.loads(call("compare", "runs", "--json")[1])[0]["mean"]["last_margin"] == margin
    assert call("report", "runs", "-o", "r.html")[0] == 0
    page = (tmp_path / "r.html").read_text()
    content = content_of(page)
    live = RunIndex(tmp_path / "runs").payload(["one"])
    for payload in (content, live):
        (own,) = [one for one in payload["measures"] if one["key"] == "margin"]
        assert (own["title"], own["topic"]) == ("Mean margin", "results")
        assert payload["groups"][0]["cells"]["last_margin"]["mean"] == margin


def test_watching_until_interrupted(grid):
    command = [sys.executable, "-m", "chronofed", "watch", str(grid), "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{url}api/runs", timeout=30) as answer:
                assert len(json.load(answer)["runs"]) == 2
        finally:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped; the runs go on" in err


def test_watching_what_is_no_folder(call):
    code, _, err = call("watch", "nowhere")
    assert code == 4
    assert "nowhere is not a folder" in err

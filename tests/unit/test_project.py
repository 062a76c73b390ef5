"""What holds for the project as a whole: exports, direction of imports, packaging."""

import ast
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import chronofed

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "chronofed"

# A module may import from its own room and from those before it.
ROOMS = [
    "core",
    "data",
    "scenarios",
    "methods",
    "models",
    "clients",
    "engines",
    "training",
    "runs",
    "studies",
    "flower",
    "theory",
    "reports",
    "cli",
]
RANK = {name: rank for rank, name in enumerate(ROOMS)}


def test_rooms():
    found = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert found == {*ROOMS, "__init__.py", "__init__.pyi", "__main__.py", "py.typed"}


def test_public_names():
    for name in chronofed.__all__:
        assert getattr(chronofed, name) is not None
    assert set(dir(chronofed)) == {*chronofed.__all__, "__version__"}
    assert {"Method", "run", "load_data"} <= set(chronofed.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = chronofed.Nothing


def test_no_marks_of_merges():
    marks = r"^ *(<<<<<<<|=======|>>>>>>>)( |$)"
    found = subprocess.run(["git", "grep", "-nE", marks], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1, found.stdout


def imports(path: Path):
    """Rooms that a file imports from, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("chronofed."):
                yield name.split(".")[1]


FILES = [
    p
    for p in SOURCE.rglob("*.py")
    if p.name not in ("__init__.py", "__main__.py") or p.parent != SOURCE
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    above = {name for name in imports(path) if RANK[name] > RANK[room]}
    assert not above, f"{room} must not import from {above}"


def test_reports_do_not_need_torch():
    rooms = ", ".join(
        f"chronofed.reports.{name}"
        for name in ("web.page", "web.live", "terminal.sparklines", "terminal.comparison")
    )
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_version():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chronofed.__version__ == declared
    assert f"## {declared}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {declared}" in (ROOT / "CITATION.cff").read_text()


def tracked_text():
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for name in names.stdout.split():
        path = ROOT / name
        if path.is_file() and path.suffix not in (".gz", ".png", ".xz"):
            yield path, path.read_text(encoding="utf-8")


def test_torch_is_pinned_without_a_local_version():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()
    suffix = "+" + "cpu"
    assert not [path for path, text in tracked_text() if suffix in text]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "torch>=2.4,<3" in wanted


def test_readme_shows_the_two_commands_and_ci_calls_the_second():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme[:2500]
    assert "make test" in readme[:2500]
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_only_shared_memory_pickles():
    """No pickle across a trust boundary: one module pickles, for a parent and the workers that it started."""
    modules = (
        r"\b(from|import)\s+(_?pickle|cloudpickle|shelve|dill|joblib|marshal)\b|\bForkingPickler\b"
    )
    calls = r"(?<!safetensors\.)\btorch\.(load|save)\(|allow_pickle=True"
    found = {p for p in SOURCE.rglob("*.py") if re.search(f"{modules}|{calls}", p.read_text())}
    assert {str(path.relative_to(SOURCE)) for path in found} == {"engines/shared_memory.py"}
    importing = [p for p in SOURCE.rglob("*.py") if "engines.shared_memory" in p.read_text()]
    users = {str(path.relative_to(SOURCE / "engines")) for path in importing}
    # Ray pickles between machines that must all be trusted, and nothing chooses it by itself.
    assert users == {"processes.py", "ray/pool.py", "ray/worker.py"}


def commands(target: str) -> list[str]:
    """Return the commands of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.M)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]


def test_hooks_are_the_commands_of_lint_and_types():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"entry: (.*)", hooks) == commands("lint") + commands("types")
    # A hook from another repository would be downloaded at commit time.
    assert re.findall(r"repo: (.*)", hooks) == ["local"]
    assert set(re.findall(r"language: (.*)", hooks)) == {"system"}


def test_lower_bounds():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "oldest.py", "torch==2.13.0"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.split()
    assert "torch==2.13.0" in lines
    assert {line.split("==")[0] for line in lines} >= {"numpy", "msgspec", "rich", "pytest"}
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in lines)


# One part of every sort, in a module that the package does not know.
OWN_PARTS = """
    import numpy as np

    from chronofed import Backbone, Everyone, Memory, RoundWeights, Scenario, ScenarioSettings
    from chronofed import Surrogate, Visit


    class Slower(Backbone):
        share: float = 0.5

        def direction(self, grad, params, server, client):
            return self.share * grad


    class Nothing(Memory):
        location = "client"

        def observe(self, objective, params, samples, generator):
            return {"y": samples.y[:1].clone()}

        def recall(self, kept, weights, moment):
            return Surrogate()


    class Last(RoundWeights):
        def __call__(self, timeline):
            return np.eye(len(timeline.rounds) + 1)[-1]


    class Stream:
        clients, rounds, persistent = 3, 5, True

        def candidates(self, round_):
            return np.arange(self.clients)

        def visit(self, client, round_):
            return Visit(np.arange(50) + 60 * client + round_, round_)


    class Rolling(ScenarioSettings):
        def on(self, dataset, seed):
            return self._scenario(Stream(), seed)
"""
OWN_SPEC = """
rounds = 4
model = {kind = "linear"}
scenario = {kind = "own_parts:Rolling", cohort = 2}
train = {steps = 1}
[method]
backbone = {kind = "own_parts:Slower", share = 0.25}
memory = {kind = "own_parts:Nothing"}
weights = {kind = "own_parts:Last"}
[evaluate]
every = 2
seen = 0
[checkpoint]
every = 2
"""


@pytest.fixture
def own_parts(workdir, monkeypatch):
    (workdir / "own_parts.py").write_text(textwrap.dedent(OWN_PARTS))
    (workdir / "own.toml").write_text(OWN_SPEC)
    monkeypatch.syspath_prepend(workdir)
    yield workdir
    sys.modules.pop("own_parts", None)


def test_parts_from_outside_train_and_resume_without_registration(own_parts, cli):
    code, out, err = cli("run", "own.toml", "-o", "whole", "--json")
    assert (code, err.count("Traceback")) == (0, 0)
    assert json.loads(out)["rounds"] == 4
    written = tomllib.loads((own_parts / "whole" / "spec.toml").read_text())
    kinds = {name: part["kind"] for name, part in written["method"].items() if name != "average"}
    assert kinds == {
        "backbone": "own_parts:Slower",
        "memory": "own_parts:Nothing",
        "weights": "own_parts:Last",
    }
    assert written["method"]["backbone"]["share"] == 0.25
    assert written["scenario"]["kind"] == "own_parts:Rolling"

    # A run that stopped half-way ends with the same bits.
    assert cli("run", "own.toml", "-o", "part", "-q")[0] == 0
    (own_parts / "part" / "summary.json").unlink()
    for path in (own_parts / "part" / "checkpoints").glob("00000004*"):
        path.unlink()
    assert cli("resume", "part", "-q")[0] == 0
    one, other = (
        sorted((own_parts / run / "checkpoints").iterdir())[-1] for run in ("whole", "part")
    )
    assert one.read_bytes() == other.read_bytes()


def test_a_part_that_is_not_there_is_an_error_of_one_line(own_parts, cli):
    code, _, err = cli("run", "own.toml", "-s", "method.backbone.kind=own_parts:Missing")
    assert code == 2
    assert "Missing" in err
    assert err.count("\n") == 1

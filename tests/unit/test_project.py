"""What holds for the project as a whole: exports, direction of imports, packaging."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import chronofed

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "chronofed"

# A module may import from its own row and from those above it.
LAYERS = [
    ["errors"],
    ["clock", "config", "safefile", "seeds", "stacking", "types"],
    ["flat", "privacy", "surrogate", "theory", "weights"],
    ["local"],
    ["tasks"],
    ["scenarios", "sources"],
    ["curvature"],
    ["backbones", "memories"],
    ["probe"],
    ["protocol"],
    ["deletion", "engines", "screening", "traffic"],
    ["loop"],
    ["nqm"],
    ["metrics"],
    ["records", "vault"],
    ["experiments"],
    ["flower"],
    ["reports"],
    ["cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

PUBLIC = [
    "Fixed",
    "Covariance",
    "Correlated",
    "Bounded",
    "Adaptive",
    "Backbone",
    "Calendar",
    "ChronofedError",
    "Classification",
    "Clipped",
    "Cnn",
    "Cnn1d",
    "CoreSet",
    "Dataset",
    "Ditto",
    "Elsewhere",
    "Exact",
    "Experiment",
    "FedAvg",
    "FedNova",
    "FedOpt",
    "FedProx",
    "Fisher",
    "Forget",
    "Fresh",
    "Generative",
    "Hutchinson",
    "Linear",
    "Memory",
    "Merged",
    "Method",
    "Mime",
    "MimeLite",
    "Mlp",
    "Optimal",
    "Private",
    "ResNet18",
    "RoundWeights",
    "Samples",
    "Scaffold",
    "Scenario",
    "Snapshot",
    "SquaredGradient",
    "Subsets",
    "Table",
    "Taylor",
    "Train",
    "Uniform",
    "Window",
    "load_data",
    "run",
]


def test_public_names():
    assert sorted(PUBLIC) == chronofed.__all__
    for name in PUBLIC:
        assert getattr(chronofed, name) is not None
    assert set(dir(chronofed)) == {*PUBLIC, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = chronofed.Nothing


def test_what_type_checkers_see_is_what_there_is():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        a.asname: (n.module, a.name)
        for n in guarded.body
        if isinstance(n, ast.ImportFrom)
        for a in n.names
    }
    assert sorted(seen) == sorted(PUBLIC)
    for name, (module, inner) in seen.items():
        assert getattr(chronofed, name) is getattr(import_module(module), inner)


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
        f"chronofed.reports.{name}" for name in ("html", "live", "sparks", "terminal")
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
        if path.is_file() and path.suffix not in (".gz", ".png"):
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


def test_nothing_is_unpickled():
    """No pickle across a trust boundary: neither the module nor the doors to it."""
    doors = r"import (pickle|shelve|dill|joblib)|(?<!safetensors\.)torch\.(load|save)\(|allow_pickle=True"
    assert [p.name for p in SOURCE.rglob("*.py") if re.search(doors, p.read_text())] == []

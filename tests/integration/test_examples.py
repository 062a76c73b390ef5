"""The example programs run, and print what they promise."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# A pattern of the output of every program.
OUTPUT = {
    "figure": r"^figure: accuracy\.pdf$",
    "own_backbone": r"^FedAvg: accuracy 0\.\d+\nSignTie: accuracy 0\.\d+$",
    "own_memory": r"^Forget: accuracy 0\.\d+\nPrototypes: accuracy 0\.\d+$",
    "own_round_weights": r"^weights: \[0\.067 0\.133 0\.267 0\.533\]\nUniform: .*\nFading: accuracy 0\.\d+$",
    "own_scenario": r"^Forget: accuracy 0\.\d+\nCoreSet: accuracy 0\.\d+$",
    "own_table": r"^round 1: .*\n(.*\n){6}round 8: accuracy 0\.[89]\d$",
    "stateless_clients": r"Taylor: accuracy 0\.\d+\n.*core set: refused: .*\nScaffold: refused: .*$",
}


def test_every_program_is_run_and_listed():
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == set(OUTPUT)
    listed = re.findall(r"^\| `([\w.]+)` \|", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(
        p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".toml")
    )


@pytest.mark.some(3)
@pytest.mark.parametrize("name", OUTPUT)
def test_program(name, workdir, capsys, monkeypatch):
    if name == "figure" and not find_spec("matplotlib"):
        pytest.skip("no matplotlib: pip install 'chronofed[plot]'")
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(OUTPUT[name], capsys.readouterr().out.strip())
    if name == "figure":
        assert (workdir / "accuracy.pdf").read_bytes().startswith(b"%PDF")

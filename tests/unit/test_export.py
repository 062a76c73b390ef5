"""Exported models are used by a process that cannot import chronofed, and compute the same."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chronofed.core import safetensors_io
from chronofed.core.errors import SpecError, UserCodeError
from chronofed.data.encoding import encode_features
from chronofed.data.in_memory import to_columns
from chronofed.data.preparation import Feature, Preparation
from chronofed.models.exporting import DESCRIBED, example, export
from chronofed.models.model_source import MARK, source_path
from chronofed.models.onnx_export import rounding
from chronofed.models.trained import TrainedModel
from chronofed.models.zoo import Custom
from tests.helpers.trained import ABOUT, trained

# Sizes of batches; a form must not remember the one that it was traced with.
COUNTS = (1, 3, 6)
PROGRAM = """
import importlib.util, sys
from pathlib import Path

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "chronofed":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())
sys.path.append(sys.argv[1])
try:
    import chronofed
except ModuleNotFoundError:
    pass
else:
    sys.exit("chronofed can be imported")
import torch

def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def onnx(path):
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["outputs"], {"x": x.numpy()})[0])

LOAD = {
    ".safetensors": lambda path: imported(path.with_suffix(".py")).load(),
    ".pt": lambda path: torch.jit.load(path),
    ".pt2": lambda path: torch.export.load(path).module(),
    ".onnx": onnx,
}
for path in map(Path, sys.argv[4:]):
    cases = imported(Path(sys.argv[2])).read_safetensors(Path(sys.argv[3]) / f"{path.stem}.cases")
    model = LOAD[path.suffix](path)
    for key in [key for key in cases if key[0] == "x"]:
        error = (model(cases[key]) - cases["y" + key[1:]]).abs().max().item()
        # onnxruntime sums in another order, which GroupNorm amplifies as much as torch's own rounding.
        allowed = 1e-6 + 4 * cases["rounding"].item() * (path.suffix == ".onnx")
        if not error <= allowed:
            sys.exit(f"{path.name}, {len(cases[key])} samples: wrong by {error}")
print("same")
"""


def write_cases(folder: Path, names) -> dict[str, TrainedModel]:
    """Write samples and outputs of every model."""
    models = {name: trained(name, folder) for name in names}
    for name, model in models.items():
        cases = {"rounding": torch.tensor(rounding(model.network, example(model.about, 6)))}
        with torch.no_grad():
            for count in COUNTS:
                cases[f"x{count}"] = example(model.about, count)
                cases[f"y{count}"] = model(cases[f"x{count}"])
        (folder / f"{name}.cases").write_bytes(b"".join(safetensors_io.save(cases, {})))
    export(models[next(iter(models))], folder / "reader.safetensors", "safetensors")
    return models


def compare(folder: Path, files) -> str:
    """Compare exported models with their cases in a process without chronofed; return its complaint."""
    packages = Path(torch.__file__).parents[1]
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", PROGRAM, packages]
    done = subprocess.run(
        [*command, folder / "reader.py", folder, *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return (done.stdout + done.stderr).strip()


@pytest.mark.slow
def test_safetensors_and_torchscript(tmp_path):
    files = []
    for name, model in write_cases(tmp_path, ABOUT).items():
        files += [tmp_path / f"{name}.safetensors", tmp_path / f"{name}.pt"]
        export(model, files[-2], "safetensors")
        export(model, files[-1], "torchscript")
    assert compare(tmp_path, files) == "same"
    # The comparison finds the smallest real difference.
    content = bytearray(files[0].read_bytes())
    content[-2] ^= 0x40
    files[0].write_bytes(content)
    assert "linear.safetensors, 1 samples: wrong by" in compare(tmp_path, files[:1])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_traced_programs(form, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="needs: pip install 'chronofed[onnx]'")
        pytest.importorskip("onnxscript", reason="needs: pip install 'chronofed[onnx]'")
    files = []
    for name, model in write_cases(tmp_path, ABOUT).items():
        files.append(tmp_path / f"{name}.{form}")
        export(model, files[-1], form)
    assert compare(tmp_path, files) == "same"


def test_onnx_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("chronofed.models.onnx_export.find_spec", lambda name: None)
    with pytest.raises(Exception, match=r"ONNX needs onnx and onnxscript: pip install .*\[onnx\]"):
        export(trained("linear", tmp_path), tmp_path / "m.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FEATURES = (
    Feature("a", mean=2.0, deviation=4.0),
    Feature("b", mean=1.0, deviation=2.0, fill=5.0, gaps=True),
    Feature("flat", deviation=0.0, gaps=True),
    Feature("sky", categories=("fog", "sun"), gaps=True, other=True),
    Feature("soil", categories=("clay",), other=True),
    Feature("kind", categories=("u", "v")),
)
ROWS = [
    {"a": 10.0, "b": 3, "flat": 9, "sky": "sun", "soil": "clay", "kind": "u"},
    {"a": None, "b": None, "flat": None, "sky": None, "soil": None, "kind": None},
    {"a": "-2", "b": "", "flat": "", "sky": "snow", "soil": "sand", "kind": "v"},
]


def test_preparation_without_chronofed(tmp_path):
    """The generated file encodes rows as the package does; the first row by hand."""
    files = export(trained("linear", tmp_path), tmp_path / "m.safetensors", "safetensors")
    module = imported(files[2])
    table = json.loads(Preparation(FEATURES, ("n", "y")).to_json())
    found = module.prepare(ROWS, table)
    by_hand = [2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert found[0].tolist() == by_hand
    expected = encode_features(to_columns(ROWS), FEATURES, torch.arange(3).numpy())
    assert torch.equal(found, torch.from_numpy(expected))
    with pytest.raises(ValueError, match="'kind': 'w' is not a known category"):
        module.prepare([{**ROWS[0], "kind": "w"}], table)


def test_outputs_in_units_without_chronofed(tmp_path):
    for name in ("mlp", "number"):
        model = trained(name, tmp_path)
        _, described, source = export(model, tmp_path / f"{name}.safetensors", "safetensors")
        module, about = imported(source), json.loads(described.read_text())
        x = example(model.about)
        with torch.no_grad():
            assert torch.equal(module.in_units(module.load()(x), about), model.predict(x))
        assert about["task"] == model.about.task


def test_weights_of_another_model_are_refused(tmp_path):
    files = export(trained("linear", tmp_path), tmp_path / "m.safetensors", "safetensors")
    other = export(trained("mlp", tmp_path), tmp_path / "n.safetensors", "safetensors")
    with pytest.raises(ValueError, match=r"another model; they differ in features\.fc1\.bias"):
        imported(files[2]).load(other[0])


def test_generated_file(tmp_path):
    path = tmp_path / "2 core-set.safetensors"
    _, described, source = export(trained("mlp", tmp_path), path, "safetensors")
    assert source == source_path(path) == tmp_path / "model_2_core_set.py"
    text = source.read_text()
    assert text.startswith(MARK)
    assert "import chronofed" not in text
    assert "from chronofed" not in text
    assert described.read_text().startswith(DESCRIBED)
    assert isinstance(imported(source).load(), torch.nn.Module)
    # Again, over its own files.
    export(trained("mlp", tmp_path), path, "safetensors")


@pytest.mark.parametrize(("name", "form"), [("m.json", "safetensors"), ("m.py", "safetensors")])
def test_a_name_of_two_files(name, form, tmp_path):
    with pytest.raises(SpecError, match=r"use m\.safetensors"):
        export(trained("linear", tmp_path), tmp_path / name, form)


@pytest.mark.parametrize("name", ["m.json", "m.py"])
def test_files_of_the_user_stay(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(SpecError, match=f"{name} is in the way"):
        export(trained("linear", tmp_path), tmp_path / "m.safetensors", "safetensors")
    assert [path.name for path in tmp_path.iterdir()] == [name]


OWN = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(5, classes)
        self.register_buffer("shift", torch.ones(classes), persistent=False)

    def forward(self, x):
        return self.fc(x.float()) + self.shift

class Fails(Odd):
    def forward(self, x):
        raise ValueError("not today")

def build(shape, classes, kind="Odd"):
    return globals()[kind](classes)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Make a model that code of the user builds."""
    (tmp_path / "own_network.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_network", raising=False)

    def own(kind: str) -> TrainedModel:
        settings = Custom("own_network:build", {"kind": kind})
        network = settings.build((5,), 3)
        about = ABOUT["linear"].__class__(model=settings, shape=(5,), classes=("a", "b", "c"))
        return TrainedModel(network, about, tmp_path)

    yield own
    sys.modules.pop("own_network", None)


def test_own_code_is_imported_by_the_generated_file(own, tmp_path):
    model = own("Odd")
    model.network.shift.fill_(3.0)
    files = export(model, tmp_path / "m.safetensors", "safetensors")
    x = example(model.about)
    with torch.no_grad():
        assert torch.equal(imported(files[2]).load()(x), model(x))


def test_a_module_that_cannot_be_traced(own, tmp_path):
    with pytest.raises(
        UserCodeError, match=r"cannot trace Fails, use --to safetensors: .*not today"
    ):
        export(own("Fails"), tmp_path / "m.pt", "torchscript")
    assert not (tmp_path / "m.pt").exists()

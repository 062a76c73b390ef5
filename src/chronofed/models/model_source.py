"""Python source that rebuilds a trained model without chronofed."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

from torch import nn

from chronofed.core.errors import SpecError
from chronofed.core.spec_io import to_table
from chronofed.models import layers, standalone
from chronofed.models.description import ModelDescription
from chronofed.models.layers import Classifier, ResNet, Transpose
from chronofed.models.zoo import Custom, ModelSettings, ResNet18, ResNetCifar

OWN = "own_model"
"""Name of the user's own function or class in a generated file."""
MARK = '"""A model that was trained with chronofed'
"""Beginning of a generated file, by which it is known."""

HEAD = (
    MARK
    + """; generated, do not edit. It needs torch, and nothing of chronofed.

    from {stem} import load
    model = load()                    # a torch.nn.Module in evaluation mode
    outputs = model(x)                # x: {dtype} of shape (n, {shape})

The JSON file beside it has the names of inputs and classes, and the preparation: ``prepare(rows, preparation)``
encodes rows of a table, ``in_units(outputs, about)`` makes probabilities or numbers of outputs.
\"\"\"
"""
)
TAIL = '''

def load(path: str | Path | None = None) -> nn.Module:
    """Return the trained model in evaluation mode; by default its weights are beside this file."""
    return fill(build(), read_safetensors(path or Path(__file__).with_name({weights!r})))
'''


def source_path(weights: Path) -> Path:
    """Return the Python file beside a file of weights, under a name that can be imported.

    >>> source_path(Path("out/2-core set.safetensors")).as_posix()
    'out/model_2_core_set.py'
    """
    stem = re.sub(r"\W", "_", weights.stem, flags=re.ASCII)
    return weights.with_name(f"{stem if stem.isidentifier() else f'model_{stem}'}.py")


def model_source(about: ModelDescription, network: nn.Module, path: Path) -> str:
    """Write a Python file that builds a model and loads its weights from a file beside it.

    Args:
        about: The description of the model.
        network: Its module.
        path: The file of weights.
    """
    stem = source_path(path).stem
    shape = ", ".join(map(str, about.shape))
    head = HEAD.format(stem=stem, dtype=about.dtype, shape=shape)
    copied = [standalone] if about.own_code else [layers, standalone]
    imports, bodies = zip(*(_split(module) for module in copied), strict=True)
    lines = sorted({line for part in imports for line in part}, key=_import_order)
    own = _import_own(about.model)
    body = "\n\n".join(text.strip("\n") + "\n" for text in (*bodies, _build(about, network)))
    return "\n".join([head, *lines, *own, "", ""]) + body + TAIL.format(weights=path.name)


def _split(module: ModuleType) -> tuple[list[str], str]:
    """Return the imports of a module, and what follows them."""
    source = inspect.getsource(module)
    imports = [
        node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    lines = source.splitlines()
    return [ast.unparse(node) for node in imports], "\n".join(lines[imports[-1].end_lineno or 0 :])


def _import_order(line: str) -> tuple[bool, bool, str]:
    """Sort imports: the standard library first."""
    return "torch" in line, line.startswith("from"), line


def _import_own(model: ModelSettings) -> list[str]:
    """Import the user's own function or class."""
    path = model.factory if isinstance(model, Custom) else str(to_table(model)["kind"])
    module, colon, name = path.partition(":")
    return ["", f"from {module} import {name} as {OWN}"] if colon else []


def _build(about: ModelDescription, network: nn.Module) -> str:
    return (
        "def build() -> nn.Module:\n"
        '    """Build the module, with weights that mean nothing yet."""\n'
        f"    return {_expression(about, network)}\n"
    )


def _expression(about: ModelDescription, network: nn.Module) -> str:
    """Return an expression that makes the module."""
    model = about.model
    if isinstance(model, Custom):
        options = {"shape": about.shape, "classes": about.outputs, **model.options}
        return f"{OWN}(**{options!r})"
    if about.own_code:
        fields = {name: getattr(model, name) for name in model.__struct_fields__}
        return f"{OWN}(**{fields!r}).build({about.shape!r}, {about.outputs})"
    if isinstance(model, ResNet18 | ResNetCifar) and isinstance(network, ResNet):
        blocks = len(network.get_submodule("layer1"))  # type: ignore[arg-type]
        sizes = f"{len(network.stages)}, {blocks}, {network.conv1.stride[0]}"
        return f"ResNet({about.shape[0]}, {model.width}, {model.norm!r}, {about.outputs}, {sizes})"
    if isinstance(network, Classifier):
        return _classifier(network)
    raise SpecError(f"cannot write the source of a {type(network).__name__}; use another format")


def _classifier(network: Classifier) -> str:
    layers = {name: _layer(layer) for name, layer in network.features.named_children()}
    lines = "".join(f"        {name!r}: {layer},\n" for name, layer in layers.items())
    sizes = f"{network.fc.in_features}, {network.fc.out_features}"
    return f"Classifier({{\n{lines}    }}, {sizes})"


def _layer(layer: nn.Module) -> str:
    """Return an expression that makes one layer."""
    if isinstance(layer, nn.Linear):
        return f"nn.Linear({layer.in_features}, {layer.out_features})"
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        sizes = f"{layer.in_channels}, {layer.out_channels}, {layer.kernel_size[0]}"
        return f"nn.{type(layer).__name__}({sizes}, padding={layer.padding[0]})"
    if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d):
        return f"nn.{type(layer).__name__}({layer.kernel_size})"
    if isinstance(layer, nn.Flatten | nn.ReLU):
        return f"nn.{type(layer).__name__}()"
    if isinstance(layer, Transpose):
        return "Transpose()"
    raise SpecError(f"cannot write the source of a {type(layer).__name__}; use another format")

"""Functions for a file that uses an exported model without chronofed: it needs nothing but torch.

:mod:`chronofed.models.model_source` copies this module into that file, so it imports only torch and the
standard library.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SAFETENSORS_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
}


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file."""
    content = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        first, last = (start + offset for offset in about["data_offsets"])
        dtype = SAFETENSORS_TYPES[about["dtype"]]
        flat = torch.frombuffer(bytearray(content[first:last]) or bytearray(8), dtype=dtype)
        found[name] = flat[: math.prod(about["shape"])].reshape(about["shape"])
    return found


def fill(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Copy named weights and buffers into a module; return it in evaluation mode."""
    own = {**module.state_dict(), **dict(module.named_buffers())}
    own = {name: tensor for name, tensor in own.items() if isinstance(tensor, Tensor)}
    if set(own) != set(weights):
        names = ", ".join(sorted(set(own) ^ set(weights)))
        raise ValueError(f"the weights belong to another model; they differ in {names}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
    return module.eval()


def prepare(rows: Sequence[Mapping[str, Any]], preparation: Mapping[str, Any]) -> Tensor:
    """Encode rows of a table, one mapping from columns to cells each, as they were encoded for training.

    A gap is ``None``, NaN or an empty text.

    Args:
        rows: The rows.
        preparation: The entry ``preparation`` of the model's JSON file.

    Returns:
        The samples, ``(n, inputs)``.
    """
    encoded = [
        [number for feature in preparation["features"] for number in _encoded(row, feature)]
        for row in rows
    ]
    return torch.tensor(encoded, dtype=torch.float64).to(torch.float32)


def _encoded(row: Mapping[str, Any], feature: Mapping[str, Any]) -> list[float]:
    """Encode one cell."""
    cell = row[feature["name"]]
    gap = cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    marks = [float(gap)] * bool(feature["gaps"])
    if feature["categories"] or feature["other"]:
        return _one_hot("" if gap else str(cell).strip(), feature, gap, marks)
    fill = feature["mean"] if feature["fill"] == [] else feature["fill"]
    value = fill if gap else float(cell)
    scaled = (value - feature["mean"]) / feature["deviation"] if feature["deviation"] else 0.0
    return [scaled, *marks]


def _one_hot(text: str, feature: Mapping[str, Any], gap: bool, marks: list[float]) -> list[float]:
    """Encode a category: a number for each, then for a gap and for other texts, where these are wanted."""
    known = [float(text == category and not gap) for category in feature["categories"]]
    if not feature["other"]:
        if not gap and not any(known):
            raise ValueError(f"{feature['name']!r}: {text!r} is not a known category")
        return [*known, *marks]
    other = not any(known) and not (gap and feature["gaps"])
    return [*known, *marks, float(other)]


def in_units(outputs: Tensor, about: Mapping[str, Any]) -> Tensor:
    """Turn outputs of the module into probabilities, or into numbers in the target's own units."""
    if about["classes"]:
        return outputs.softmax(-1)
    scale = about["scale"] or {"mean": 0.0, "deviation": 1.0}
    numbers: Tensor = outputs.reshape(len(outputs)).double() * scale["deviation"] + scale["mean"]
    return numbers

"""Export a trained model for programs that do not have chronofed.

Every form takes encoded samples ``(n, ...)``, for any *n*, and returns the outputs of the module. ``NAME.json``
beside it says what these are: the classes, the names of the inputs, and the preparation of a table.
"""

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import SpecError, UserCodeError
from chronofed.core.seeds import torch_generator
from chronofed.core.spec_io import to_table
from chronofed.core.user_code import in_one_line, user_traceback
from chronofed.models.description import ModelDescription
from chronofed.models.model_source import MARK, model_source, source_path
from chronofed.models.onnx_export import to_onnx
from chronofed.models.trained import TrainedModel
from chronofed.models.weights import named_weights, write_weights

SAMPLES = 3
"""Samples that a model is traced with, and checked with; more than one, since 1 is a special size to torch."""
DESCRIBED = '{\n "task": "'
"""Beginning of a description beside an exported model, by which it is known."""
LEFT_OUT = ("model", "personal", "digest", "clients")
"""Entries of a description that an exported model does not need."""

Exporter = Callable[[TrainedModel, Path], None]


def export(model: TrainedModel, path: Path, form: str) -> list[Path]:
    """Write a model in one of the forms of :data:`EXPORTERS`, and its description beside it.

    Args:
        model: The model.
        path: The file.
        form: The form.

    Returns:
        The files that were written.

    Raises:
        MissingExtraError: If an optional dependency is missing.
        SpecError: If the model cannot be written in this form.
        StorageError: If a file cannot be written.
    """
    described = path.with_suffix(".json")
    files = [path, described, *([source_path(path)] if form == "safetensors" else [])]
    if len(set(files)) < len(files):
        raise SpecError(f"{path}: the name is that of a file beside it; use {path.stem}.{form}")
    for file, mark in zip(files[1:], (DESCRIBED, MARK), strict=False):
        _check_ours(file, mark)
    EXPORTERS[form](model, path)
    write_atomic(described, _described(model.about))
    return files


def example(about: ModelDescription, count: int = SAMPLES) -> Tensor:
    """Make up some samples; always the same."""
    shape, generator = (count, *about.shape), torch_generator(0, "example samples")
    if about.dtype == "uint8":
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return torch.randn(shape, generator=generator)


def _safetensors(model: TrainedModel, path: Path) -> None:
    """Write named weights, and Python code that builds the module and loads them."""
    metadata = {"task": model.about.task, "spec": model.about.spec}
    source = model_source(model.about, model.network, path)
    write_weights(path, named_weights(model.network), metadata)
    write_atomic(source_path(path), source.encode())


def _check_ours(file: Path, mark: str) -> None:
    """Refuse to overwrite a file of the user that happens to have this name."""
    if file.is_dir() or (file.exists() and not file.read_text(errors="replace").startswith(mark)):
        raise SpecError(f"{file} is in the way, and not of chronofed; choose another -o")


def _pt2(model: TrainedModel, path: Path) -> None:
    """Write a program of ``torch.export``."""
    batch = {0: torch.export.Dim("batch")}
    with _traced(model.network):
        program = torch.export.export(
            model.network, (example(model.about),), dynamic_shapes=(batch,)
        )
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    write_atomic(path, buffer.getvalue())


def _torchscript(model: TrainedModel, path: Path) -> None:
    """Write a trace. TorchScript is deprecated, but programs in C++ that read it will be around for long."""
    with _traced(model.network):
        trace: Any = torch.jit.trace
        traced = trace(model.network, example(model.about))
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
    write_atomic(path, buffer.getvalue())


def _onnx(model: TrainedModel, path: Path) -> None:
    """Write an ONNX graph; checked against torch if onnxruntime is installed."""
    with _traced(model.network):
        content = to_onnx(model.network, example(model.about), example(model.about, SAMPLES + 2))
    write_atomic(path, content)


EXPORTERS: dict[str, Exporter] = {
    "safetensors": _safetensors,
    "pt2": _pt2,
    "torchscript": _torchscript,
    "onnx": _onnx,
}
"""Exporters by the name of their form."""


@contextmanager
def _traced(network: nn.Module) -> Iterator[None]:
    """Silence warnings of torch about itself; explain the failure of a module that cannot be traced."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError) as error:
        name = type(network).__name__
        msg = f"model: torch cannot trace {name}, use --to safetensors: {in_one_line(error):.200}"
        raise UserCodeError(msg, user_traceback(error)) from error


def _described(about: ModelDescription) -> bytes:
    table = {name: value for name, value in to_table(about).items() if name not in LEFT_OUT}
    return json.dumps({"task": about.task, **table}, indent=1).encode() + b"\n"

"""Starting from a model that was trained before: its parameters, its buffers and its preparation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from chronofed.core import toml
from chronofed.core.errors import ChronofedError, RunError, SpecError
from chronofed.core.safetensors_io import OpenFile, numbers, read_tensors
from chronofed.core.types import Vector
from chronofed.data.preparation import Preparation
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import SupervisedTask
from chronofed.models.trained import DESCRIPTION
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.digests import digest
from chronofed.runs.directory import RunDirectory
from chronofed.runs.json_files import read_bytes, read_json


@dataclass(frozen=True, slots=True)
class StartModel:
    """A model to start from.

    Attributes:
        path: Where it was found, for messages.
        tensors: Its parameters and buffers by the names of their layers; of a checkpoint, two flat vectors.
        flat: Whether it comes from a checkpoint.
        digest: Digest of its numbers.
        model: For a checkpoint: the settings of its model.
        preparation: How the columns of its table became features and classes, if it was trained on one.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    flat: bool
    digest: str
    model: Mapping[str, object] = field(default_factory=dict)
    preparation: Preparation | None = None

    def values(self, task: SupervisedTask) -> tuple[Vector, Vector]:
        """Return parameters and buffers for a task.

        Raises:
            SpecError: If a layer has another name or shape there.
        """
        objective = task.objective()
        if self.flat:
            return self._flat_values(objective)
        module, expected = objective.flat.module, objective.flat.spans
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        self._check(held, module.state_dict())
        buffers = [self.tensors[name] for name, _ in module.named_buffers()]
        like = objective.flat.read()
        return _joined([self.tensors[name] for name in expected], like), _joined(buffers, like)

    def _check(self, here: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
        """Compare layers with those of this model, in its order."""
        for name, tensor in here.items():
            if name not in self.tensors:
                raise SpecError(f"start: {self.path} has no layer {name!r}, which this model has")
            if self.tensors[name].shape != tensor.shape:
                there, shape = tuple(self.tensors[name].shape), tuple(tensor.shape)
                complaint = f"layer {name!r} has shape {shape} in this model, and {there}"
                raise SpecError(f"start: {complaint} in {self.path}; data and model must be alike")
        extra = [name for name in self.tensors if name not in here and name not in known]
        if extra:
            raise SpecError(
                f"start: {self.path} has a layer {extra[0]!r}, which this model has not"
            )

    def _flat_values(self, objective: TorchObjective) -> tuple[Vector, Vector]:
        expected = {"parameters": objective.flat.read(), "buffers": objective.buffers}
        for name, like in expected.items():
            if self.tensors[name].shape != like.shape:
                there, here = self.tensors[name].numel(), like.numel()
                raise SpecError(
                    f"start: {self.path} has {there} {name}, and this model {here}; data and model must be "
                    "alike"
                )
        parameters, buffers = (self.tensors[name].to(like) for name, like in expected.items())
        return parameters.clone(), buffers.clone()

    def check_settings(self, model: Mapping[str, object]) -> None:
        """Compare the model's settings with those of the run, where only flat vectors are known.

        Raises:
            SpecError: With the first setting that differs.
        """
        for key in model if self.flat else ():
            if model[key] != self.model.get(key, model[key]):
                complaint = f"model.{key} is {model[key]} here, and {self.model[key]}"
                raise SpecError(f"start: {complaint} in {self.path}")


def load_start(name: str) -> StartModel:
    """Load a model: of a run directory, of its ``model`` folder, or of a safetensors file.

    Raises:
        SpecError: If there is none, or it is damaged.
    """
    path = Path(name)
    try:
        if (path / "spec.toml").is_file() and not (path / "model").is_dir():
            return _from_checkpoint(RunDirectory(path))
        return _from_file(path)
    except SpecError:
        raise
    except ChronofedError as error:
        raise SpecError(f"start: {error}") from error


def _from_file(path: Path) -> StartModel:
    folder = path / "model" if (path / "model").is_dir() else path
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    if len(files) != 1:
        raise SpecError(f"start: {path} holds no model; name a run, its model folder, or a file")
    try:
        tensors = read_tensors(OpenFile(files[0]))
    except (OSError, ValueError) as error:
        raise SpecError(f"start: {files[0]} is not a safetensors file ({error})") from error
    found = _described(files[0].parent / DESCRIPTION)
    return StartModel(path, tensors, False, _digest(tensors), preparation=found)


def _described(path: Path) -> Preparation | None:
    """Read the preparation in the description of a model; the model's own code is not needed."""
    preparation = (read_json(path) or {}).get("preparation")
    if preparation is None:
        return None
    return Preparation.from_json(json.dumps(preparation).encode(), str(path))


def _from_checkpoint(directory: RunDirectory) -> StartModel:
    snapshot, complaints = load_latest(directory.checkpoints)
    if snapshot is None:
        raise RunError(complaints[0] if complaints else f"{directory.path} has no checkpoint yet")
    tensors = {"parameters": snapshot.params, "buffers": snapshot.buffers}
    model = toml.load(directory.spec_path).get("model", {})
    found = _preparation(directory.path)
    return StartModel(directory.path, tensors, True, _digest(tensors), model, found)


def _preparation(folder: Path) -> Preparation | None:
    path = folder / "preparation.json"
    content = read_bytes(path)
    return None if content is None else Preparation.from_json(content, str(path))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    names = json.dumps(sorted(tensors)).encode()
    return digest(names + b"".join(bytes(numbers(tensors[name])) for name in sorted(tensors)))


def _joined(parts: list[Tensor], like: Vector) -> Vector:
    return torch.cat([part.reshape(-1).to(like) for part in parts]) if parts else like[:0].clone()

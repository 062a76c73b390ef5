"""Unlabelled samples of the server, for backbones that refine the model with them.

They come from a source of their own (``server_data``), never from clients, and are there from the first round
on. Of that source only the inputs of training samples are used. Samples that are also evaluated on are left
out, so nothing of the test set can leak into training.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from chronofed.core.errors import SpecError
from chronofed.core.safetensors_io import numbers
from chronofed.core.types import Samples
from chronofed.data.dataset import Dataset
from chronofed.data.preparation import Settled
from chronofed.runs.spec import Experiment


def load_server_samples(
    experiment: Experiment, dataset: Dataset, data: Path | None
) -> Tensor | None:
    """Load the server's unlabelled samples; ``None`` if the experiment has none.

    Args:
        experiment: The settings.
        dataset: The clients' data.
        data: Folder of data files.

    Raises:
        SpecError: If they do not fit the clients' data, or nobody uses them.
    """
    settings = experiment.server_data
    if settings is None:
        return None
    if not experiment.method.backbone.needs_samples:
        name = type(experiment.method.backbone).__name__
        raise SpecError(f"server_data: {name} does not use samples on the server; remove the table")
    if settings == experiment.data and dataset.origin is not None:
        raise SpecError("server_data: it is the clients' own table; name another source")
    found = settings.load_settled(data, experiment.seed, Settled(dataset.preparation))
    problem = _problem(found, dataset)
    if problem is not None:
        raise SpecError(f"server_data: {problem}")
    return found.train.x


def digest_samples(samples: Tensor | None) -> str:
    """Hash the samples; empty if there are none."""
    if samples is None:
        return ""
    digest = hashlib.blake2b(f"{samples.dtype}{tuple(samples.shape)}".encode(), digest_size=16)
    digest.update(numbers(samples))
    return digest.hexdigest()


def _problem(found: Dataset, dataset: Dataset) -> str | None:
    """Say why samples cannot go through the clients' model."""
    if (found.train.x.dtype, found.shape) != (dataset.train.x.dtype, dataset.shape):
        kinds = [f"{d.train.x.dtype} {d.shape}".removeprefix("torch.") for d in (found, dataset)]
        return f"its samples are {kinds[0]}, those of the clients {kinds[1]}"
    if found.preparation != dataset.preparation:
        return "its columns are scaled or coded in another way than those of data"
    return None


def without_held_out(x: Tensor | None, held_out: Iterable[Samples | None]) -> Tensor | None:
    """Leave out samples that are equal to some that the model is evaluated on, or settings are chosen by.

    Raises:
        SpecError: If nothing is left.
    """
    if x is None:
        return None
    held = {_bytes(row) for samples in held_out if samples is not None for row in samples.x}
    stay = torch.tensor([_bytes(row) not in held for row in x], dtype=torch.bool)
    if not stay.any():
        raise SpecError("server_data: all of its samples are evaluated on; name another source")
    return x[stay]


def _bytes(row: Tensor) -> bytes:
    return bytes(numbers(row))

"""The few types that every module shares.

Shapes are written in comments: ``(d,)`` parameters, ``(n, ...)`` samples, ``(b, ...)`` a mini-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Vector: TypeAlias = Tensor  # (d,) all trainable parameters, flattened once
Record: TypeAlias = Mapping[str, Tensor]  # what may be sent, stored and checkpointed


@dataclass(frozen=True, slots=True)
class Samples:
    """Labelled samples as they are stored: images stay ``uint8`` until a model sees them."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, pick: Tensor) -> "Samples":
        return Samples(self.x[pick], self.y[pick])


@dataclass(frozen=True, slots=True)
class Batch:
    r"""A weighted mini-batch: it stands for :math:`\sum_j a_j\, \ell(w; x_j, y_j)`."""

    x: Tensor  # (b, ...)
    y: Tensor  # (b,)
    weight: Tensor  # (b,) float64

    @classmethod
    def mean(cls, samples: Samples) -> "Batch":
        """All samples with equal weights that sum to one."""
        n = len(samples)
        return cls(samples.x, samples.y, torch.full((n,), 1 / n, dtype=torch.float64))


class Objective(Protocol):
    """A local objective: anything with a gradient in a flat parameter vector."""

    buffers: Vector
    """State that is not trained (BatchNorm's running statistics), flattened; often empty."""

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Gradient of the weighted loss at ``params``; the caller owns the result."""
        ...

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """A random view of samples to train on; the samples themselves where there is none."""
        ...


class Task(Protocol):
    """What is learned: samples to hand out, and a model to start from."""

    def objective(self) -> Objective:
        """A new objective; every worker has its own."""
        ...

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        """Parameters and buffers to start from."""
        ...

    def samples(self, indices: NDArray[np.int64]) -> Samples:
        """Training samples by position."""
        ...

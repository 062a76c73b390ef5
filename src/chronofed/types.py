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
Spans: TypeAlias = tuple[slice, ...]  # parts of a flat vector, ascending


@dataclass(frozen=True, slots=True)
class Samples:
    """Labelled samples as they are stored: images stay ``uint8`` until a model sees them."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,) int64
    rows: Tensor | None = (
        None  # (n,) int64: where each came from, so that it can be deleted on request
    )

    def __len__(self) -> int:
        return self.y.shape[0]

    def __getitem__(self, pick: Tensor) -> "Samples":
        """The samples at some positions, counted from 0, or those where a mask is true."""
        if pick.dtype == torch.bool:
            pick = pick.nonzero().flatten()
        x, y = (
            self.x.index_select(0, pick),
            self.y.index_select(0, pick),
        )  # much faster than x[pick]
        return Samples(x, y, None if self.rows is None else self.rows.index_select(0, pick))


@dataclass(frozen=True, slots=True)
class Batch:
    r"""A weighted mini-batch: it stands for :math:`\sum_j a_j\, \ell(w; x_j, y_j)`."""

    x: Tensor  # (b, ...)
    y: Tensor  # (b,)
    weight: Tensor  # (b,) float64

    @classmethod
    def mean(cls, samples: Samples) -> "Batch":
        """All samples with equal weights that sum to one; those of every client, if there are several."""
        shape = samples.y.shape  # (n,) or (clients, n)
        return cls(samples.x, samples.y, torch.full(shape, 1 / shape[-1], dtype=torch.float64))


class Objective(Protocol):
    """A local objective as a function of a flat parameter vector.

    ``spans`` are slices of that vector: the parameters that a computation is about.
    """

    buffers: Vector
    """State that is not trained (BatchNorm's running statistics), flattened; often empty."""

    @property
    def names(self) -> Mapping[str, slice]:
        """The slice of the flat vector that each named parameter occupies."""
        ...

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Gradient of the weighted loss as in training; the caller owns the result."""
        ...

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """A random view of samples to train on; the samples themselves where there is none."""
        ...

    def features(self, params: Vector, x: Tensor, layer: str | None = None) -> Tensor:
        """What a named layer sees of the samples, by default the last one, ``(n, k)``."""
        ...

    def loss_gradient(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Gradient of the weighted loss as in use (fixed BatchNorm), of the parameters in ``spans``."""
        ...

    def squared_gradients(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Weighted sum of the squared gradients of the single samples, as in use."""
        ...

    def gradient_moments(self, params: Vector, batch: Batch, spans: Spans) -> tuple[Vector, Vector]:
        """What ``loss_gradient`` and ``squared_gradients`` say, together."""
        ...

    def hessian_product(self, params: Vector, batch: Batch, spans: Spans, v: Vector) -> Vector:
        """Hessian of the weighted loss in ``spans``, times ``v``, as in use."""
        ...

    def input_gradient(self, params: Vector, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of every sample's own loss in its (encoded) input, as in use."""
        ...

    def encode(self, x: Tensor) -> Tensor:
        """Samples as the model's first layer sees them: floating point."""
        ...

    def decode(self, z: Tensor, like: Tensor) -> Tensor:
        """The samples that :meth:`encode` would turn into ``z``, in the dtype of ``like``."""
        ...

    def refresh(self, params: Vector, samples: Samples) -> None:
        """Compute the buffers anew from these samples alone."""
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

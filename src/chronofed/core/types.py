"""The types that all modules share.

Shapes are written in comments: ``(d,)`` parameters, ``(n, ...)`` samples, ``(b, ...)`` a mini-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

# (d,): all trainable parameters, flattened.
Vector: TypeAlias = Tensor
# Named tensors that can be sent, stored and checkpointed.
Record: TypeAlias = Mapping[str, Tensor]
# Parts of a flat vector, ascending.
Spans: TypeAlias = tuple[slice, ...]
# The way in which outputs become probabilities: of one class among all, or of each class by itself; or, with
# probabilities of each class by itself, in place of the labels. ``part`` compares the probabilities of some
# classes among all, ``not-true`` those of all classes but the sample's own, ``logits`` the outputs themselves.
OutputForm: TypeAlias = Literal["softmax", "sigmoid", "targets", "part", "not-true", "logits"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Labelled samples as they are stored: images stay ``uint8`` until a model sees them.

    Attributes:
        x: Inputs, ``(n, ...)``.
        y: Labels, ``(n,)`` of int64; of a regression scaled targets, float32.
        rows: Row of each sample in its source, ``(n,)`` of int64, so that it can be deleted on request.
        outputs: Outputs of an earlier model for each sample, ``(n, classes)``, that training is to keep; NaN
            for samples without.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    outputs: Tensor | None = None

    def __len__(self) -> int:
        return self.y.shape[0]

    def __getitem__(self, pick: Tensor) -> "Samples":
        """Select samples by position, counted from 0, or by a mask."""
        if pick.dtype == torch.bool:
            pick = pick.nonzero().flatten()
        # index_select is much faster than x[pick].
        x, y = self.x.index_select(0, pick), self.y.index_select(0, pick)
        rows, outputs = (
            None if extra is None else extra.index_select(0, pick)
            for extra in (self.rows, self.outputs)
        )
        return Samples(x, y, rows, outputs)


@dataclass(frozen=True, slots=True)
class Batch:
    r"""A weighted mini-batch, which represents :math:`\sum_j a_j\, \ell(w; x_j, y_j)`.

    Attributes:
        x: Inputs, ``(b, ...)``.
        y: Labels, ``(b,)``.
        weight: Weights :math:`a_j`, ``(b,)`` of float64.
        offset: Numbers that are added to every sample's logits before the loss, ``(classes,)``; minus infinity
            leaves a class out.
        scale: Factors of every sample's logits before the offset, ``(classes,)``.
        outputs: Outputs of an earlier model, ``(b, classes)``, that training is to keep; NaN for samples
            without.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    offset: Tensor | None = None
    scale: Tensor | None = None
    outputs: Tensor | None = None

    @classmethod
    def mean(cls, samples: Samples) -> "Batch":
        """Return all samples with equal weights that sum to one; also for ``(clients, n)`` samples."""
        shape = samples.y.shape
        return cls(samples.x, samples.y, torch.full(shape, 1 / shape[-1], dtype=torch.float64))


class Objective(Protocol):
    """A local objective as a function of a flat parameter vector.

    ``spans`` are slices of that vector: derivatives are taken with respect to these parameters only. "In
    evaluation mode" means that dropout is off and BatchNorm uses its running statistics.
    """

    buffers: Vector
    """State that is not trained (BatchNorm's running statistics), flattened; often empty."""
    uses_batch_statistics: bool
    """True if a sample's loss in training mode depends on the others in its batch (BatchNorm)."""

    @property
    def names(self) -> Mapping[str, slice]:
        """The slice of the flat vector that each named parameter occupies."""
        ...

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of each named parameter, under the same names."""
        ...

    def logits(self, params: Vector, x: Tensor) -> Tensor:
        """Return the model's outputs in evaluation mode, ``(n, classes)``."""
        ...

    def losses(self, params: Vector, batch: Batch) -> Tensor:
        """Return the loss of every sample in evaluation mode, ``(n,)``; weights do not matter."""
        ...

    def distilled(
        self,
        params: Vector,
        batch: Batch,
        logits: Tensor,
        temperature: float = 2.0,
        classes: Tensor | None = None,
        form: OutputForm = "softmax",
    ) -> Vector:
        r"""Compute the gradient of a distillation loss in training mode; the buffers stay as they are.

        .. math:: -\sum_j a_j \sum_c q_{jc} \log p_{jc}, \qquad
            q_j = \mathrm{softmax}(z^*_j / T), \quad p_j = \mathrm{softmax}(z_j / T)

        Its derivative in the logits :math:`z_j` is :math:`a_j (p_j - q_j) / T`, also for the form ``sigmoid``,
        where every class has a cross-entropy of its own. There is no factor :math:`T^2` (Hinton et al., 2015,
        have it; LwF has not): multiply the weight by it, if you want gradients whose size does not depend
        on *T*. With the form ``targets`` the sigmoids replace the labels, which must have one cross-entropy a
        class: the derivative is :math:`a_j (e_{y_j} - q_j)`, and *T* is 1. With ``part`` the softmax is over
        all classes and the sum over ``classes``; with ``not-true`` both leave out the sample's own class. With
        ``logits`` it is the mean squared difference of the outputs. A single output is a number: the loss is
        half the squared difference, and *T* does not matter.

        Args:
            params: The student.
            batch: Samples and weights :math:`a_j`; labels matter for ``targets`` and ``not-true`` only, offset
                and scale never.
            logits: The teacher's outputs :math:`z^*` for these samples, ``(b, classes)``.
            temperature: :math:`T`.
            classes: Positions of the outputs to compare; the softmax is over these alone. By default all.
            form: The way in which outputs become probabilities.
        """
        ...

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Compute the gradient of the weighted loss in training mode; the caller owns the result."""
        ...

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return randomly augmented samples to train on; the samples themselves if there is no augmentation."""
        ...

    def features(self, params: Vector, x: Tensor, layer: str | None = None) -> Tensor:
        """Return the inputs of a named layer, by default the last one, ``(n, k)``."""
        ...

    def loss_gradient(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Compute the gradient of the weighted loss in evaluation mode."""
        ...

    def squared_gradients(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Sum the squared gradients of the single samples, weighted, in evaluation mode."""
        ...

    def gradient_moments(self, params: Vector, batch: Batch, spans: Spans) -> tuple[Vector, Vector]:
        """Compute ``loss_gradient`` and ``squared_gradients`` together."""
        ...

    def hessian_product(self, params: Vector, batch: Batch, spans: Spans, v: Vector) -> Vector:
        """Multiply the Hessian of the weighted loss by ``v``, in evaluation mode."""
        ...

    def gradient_and_products(
        self, params: Vector, batch: Batch, spans: Spans, vectors: Sequence[Vector]
    ) -> tuple[Vector, list[Vector]]:
        """Compute ``loss_gradient`` and a ``hessian_product`` for each vector together."""
        ...

    def input_gradient(self, params: Vector, x: Tensor, y: Tensor) -> Tensor:
        """Compute the gradient of every sample's loss in its encoded input, in evaluation mode."""
        ...

    def encode(self, x: Tensor) -> Tensor:
        """Convert samples to the floating point input of the first layer."""
        ...

    def decode(self, z: Tensor, like: Tensor) -> Tensor:
        """Convert ``z`` back to samples in the dtype of ``like``: the inverse of :meth:`encode`."""
        ...

    def refresh(self, params: Vector, samples: Samples) -> None:
        """Recompute the buffers from these samples alone."""
        ...


class Task(Protocol):
    """A learning task: training samples and an initial model."""

    def objective(self) -> Objective:
        """Return a new objective; every worker has its own."""
        ...

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        """Return the initial parameters and buffers."""
        ...

    def samples(self, indices: NDArray[np.int64]) -> Samples:
        """Return training samples by position."""
        ...

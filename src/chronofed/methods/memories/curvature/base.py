"""The contract of a curvature."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Generator

from chronofed.core.config import Kind
from chronofed.core.types import Batch, Objective, Samples, Spans, Vector


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """The mean loss of some samples near ``params``, as a function of the parameters in ``spans``.

    The model is in evaluation mode. All vectors have one number per parameter in ``spans``, one span after the
    other.

    Attributes:
        objective: The model.
        params: Where derivatives are taken.
        samples: The samples.
        spans: The parameters that vary.
    """

    objective: Objective
    params: Vector
    samples: Samples
    spans: Spans

    def gradient(self) -> Vector:
        """Compute the gradient."""
        return self.objective.loss_gradient(self.params, Batch.mean(self.samples), self.spans)

    def gradient_moments(self) -> tuple[Vector, Vector]:
        """Compute the gradient, and the mean of the squared gradients of the single samples."""
        return self.objective.gradient_moments(self.params, Batch.mean(self.samples), self.spans)

    def hessian_product(self, v: Vector) -> Vector:
        """Multiply the Hessian by ``v``."""
        batch = Batch.mean(self.samples)
        return self.objective.hessian_product(self.params, batch, self.spans, v)

    def gradient_and_products(self, vectors: Sequence[Vector]) -> tuple[Vector, list[Vector]]:
        """Compute the gradient, and multiply the Hessian by each vector, in one pass over the samples."""
        batch = Batch.mean(self.samples)
        return self.objective.gradient_and_products(self.params, batch, self.spans, vectors)

    @property
    def size(self) -> int:
        """Number of parameters in the spans."""
        return sum(span.stop - span.start for span in self.spans)


class Curvature(Kind):
    r"""Estimates :math:`\mathrm{diag}\,\nabla^2 f(w)` of a mean loss :math:`f`.

    An estimate keeps its sign, so that the errors of many records average out. The memory clamps their sum
    (:class:`~chronofed.methods.memories.taylor.Taylor`).
    """

    nonnegative: ClassVar[bool] = False
    """True if no estimate is ever negative, so that a memory need not keep what clamping takes."""

    @abstractmethod
    def expand(self, loss: MeanLoss, generator: Generator) -> tuple[Vector, Vector]:
        """Compute the gradient and the diagonal together, since they often share most of the work.

        Args:
            loss: The function to expand.
            generator: The only source of randomness.

        Returns:
            The gradient and the diagonal.
        """

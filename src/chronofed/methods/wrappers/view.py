"""An objective of which a client trains a part: every parameter is scaled, or held at a value."""

from collections.abc import Sequence
from copy import copy
from typing import Any, cast

from torch import Tensor

from chronofed.core.flat import take
from chronofed.core.types import Batch, Objective, OutputForm, Samples, Spans, Vector
from chronofed.methods.local import ClientLocal, Local, one_client


class ScaledObjective:
    r"""The function :math:`w \mapsto f(s w + o)` of an objective *f*, with a factor and offset for each entry.

    A factor of 0 holds a parameter at its offset. Derivatives follow by the chain rule: gradients have the
    factor *s*, squares of them :math:`s^2`. Everything else is the objective's own.

    Args:
        objective: The objective *f*.
        scale: The factors, ``(d,)``.
        offset: The offsets, ``(d,)``; by default 0.
    """

    def __init__(self, objective: Objective, scale: Vector, offset: Vector | None = None) -> None:
        self._objective, self._scale, self._offset = objective, scale, offset

    def point(self, params: Vector) -> Vector:
        """Return the parameters that the model has."""
        scaled = params * self._scale
        return scaled if self._offset is None else scaled.add_(self._offset)

    @property
    def buffers(self) -> Vector:
        """The buffers of the model."""
        return self._objective.buffers

    @buffers.setter
    def buffers(self, values: Vector) -> None:
        self._objective.buffers = values

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Compute the gradient in training mode."""
        return self._objective.gradient(self.point(params), batch).mul_(self._scale)

    def distilled(
        self,
        params: Vector,
        batch: Batch,
        logits: Tensor,
        temperature: float = 2.0,
        classes: Tensor | None = None,
        form: OutputForm = "softmax",
    ) -> Vector:
        """Compute the gradient of a distillation loss."""
        at = self.point(params)
        found = self._objective.distilled(at, batch, logits, temperature, classes, form)
        return found * self._scale

    def loss_gradient(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Compute the gradient in evaluation mode."""
        found = self._objective.loss_gradient(self.point(params), batch, spans)
        return found * take(self._scale, spans)

    def squared_gradients(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Sum the squared gradients of the single samples."""
        return self.gradient_moments(params, batch, spans)[1]

    def gradient_moments(self, params: Vector, batch: Batch, spans: Spans) -> tuple[Vector, Vector]:
        """Compute gradients and squared gradients together."""
        first, second = self._objective.gradient_moments(self.point(params), batch, spans)
        scale = take(self._scale, spans)
        return first * scale, second * scale.square()

    def hessian_product(self, params: Vector, batch: Batch, spans: Spans, v: Vector) -> Vector:
        """Multiply the Hessian by ``v``."""
        scale = take(self._scale, spans)
        return scale * self._objective.hessian_product(self.point(params), batch, spans, scale * v)

    def gradient_and_products(
        self, params: Vector, batch: Batch, spans: Spans, vectors: Sequence[Vector]
    ) -> tuple[Vector, list[Vector]]:
        """Compute the gradient and Hessian products together."""
        scale = take(self._scale, spans)
        first, products = self._objective.gradient_and_products(
            self.point(params), batch, spans, [scale * v for v in vectors]
        )
        return scale * first, [scale * product for product in products]

    def logits(self, params: Vector, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self._objective.logits(self.point(params), x)

    def losses(self, params: Vector, batch: Batch) -> Tensor:
        """Return the loss of every sample."""
        return self._objective.losses(self.point(params), batch)

    def features(self, params: Vector, x: Tensor, layer: str | None = None) -> Tensor:
        """Return the inputs of a layer."""
        return self._objective.features(self.point(params), x, layer)

    def input_gradient(self, params: Vector, x: Tensor, y: Tensor) -> Tensor:
        """Compute the gradient in the inputs."""
        return self._objective.input_gradient(self.point(params), x, y)

    def refresh(self, params: Vector, samples: Samples) -> None:
        """Recompute the buffers."""
        self._objective.refresh(self.point(params), samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)


def with_objective(local: Local, objective: ScaledObjective) -> ClientLocal:
    """Return a client's problem with another objective; mini-batches, notes and optimisers are shared."""
    other = copy(one_client(local))
    object.__setattr__(other, "objective", cast(Objective, objective))
    return other

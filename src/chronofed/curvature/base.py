"""The contract of a curvature."""

from abc import abstractmethod

from torch import Generator

from chronofed.config import Kind
from chronofed.types import Batch, Objective, Samples, Spans, Vector


class Curvature(Kind):
    r"""Estimates :math:`\mathrm{diag}\,\nabla^2 f(w)` of the mean loss :math:`f` of some samples."""

    @abstractmethod
    def diagonal(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,
    ) -> Vector:
        """The diagonal at ``params``, of the parameters in ``spans``; the model as in use.

        Args:
            objective: The model.
            params: Where.
            samples: Whose mean loss.
            spans: The parameters that it is about.
            generator: The only source of randomness.

        Returns:
            One number for each parameter in ``spans``, one span after the other.
        """

    def expansion(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,
    ) -> tuple[Vector, Vector]:
        """The gradient and :meth:`diagonal`; together they may be cheaper."""
        gradient = objective.loss_gradient(params, Batch.mean(samples), spans)
        return gradient, self.diagonal(objective, params, samples, spans, generator)

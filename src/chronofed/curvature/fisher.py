"""Curvature from first derivatives: squares of gradients."""

from torch import Generator

from chronofed.curvature.base import Curvature
from chronofed.stacking import stacked
from chronofed.types import Batch, Objective, Samples, Spans, Vector


class Fisher(Curvature, tag="fisher"):
    r"""The empirical Fisher diagonal: the mean of the squared gradients of the single samples.

    .. math:: h = \frac1n \sum_{j=1}^n [\nabla \ell(w; x_j, y_j)]^2

    With labels drawn from the model itself, its expectation is the Hessian's diagonal for softmax
    regression and for networks of ReLU layers; with the labels of the data it is so only where the
    model fits them.
    """

    @stacked
    def diagonal(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,  # noqa: ARG002
    ) -> Vector:
        """Mean over samples of their own squared gradients."""
        return objective.squared_gradients(params, Batch.mean(samples), spans)

    def expansion(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,
    ) -> tuple[Vector, Vector]:
        """Both from the same gradients of single samples."""
        if type(self).diagonal is not Fisher.diagonal:  # a subclass has its own
            return super().expansion(objective, params, samples, spans, generator)
        return objective.gradient_moments(params, Batch.mean(samples), spans)


class SquaredGradient(Curvature, tag="squared-gradient"):
    r"""The square of the mean gradient, which the paper's text calls Fisher information.

    .. math:: h = \Bigl[\frac1n \sum_{j=1}^n \nabla \ell(w; x_j, y_j)\Bigr]^2

    By Jensen's inequality it is never more than :class:`Fisher`, and it vanishes where training ends.
    """

    @stacked
    def diagonal(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,  # noqa: ARG002
    ) -> Vector:
        """Square of the gradient of the mean loss."""
        return objective.loss_gradient(params, Batch.mean(samples), spans).square_()

    def expansion(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,
    ) -> tuple[Vector, Vector]:
        """The gradient and its square."""
        if type(self).diagonal is not SquaredGradient.diagonal:  # a subclass has its own
            return super().expansion(objective, params, samples, spans, generator)
        gradient = objective.loss_gradient(params, Batch.mean(samples), spans)
        return gradient, gradient.square()

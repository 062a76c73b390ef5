"""Curvature from first derivatives: squares of gradients."""

from typing import ClassVar

from torch import Generator

from chronofed.core.stacking import stacked
from chronofed.core.types import Vector
from chronofed.methods.memories.curvature.base import Curvature, MeanLoss


class Fisher(Curvature, tag="fisher"):
    r"""The empirical Fisher diagonal: the mean of the squared gradients of the single samples.

    .. math:: h = \frac1n \sum_{j=1}^n [\nabla \ell(w; x_j, y_j)]^2

    With labels drawn from the model itself, its expectation is the Hessian's diagonal for softmax regression
    and for networks of ReLU layers. With the labels of the data this holds only where the model fits them.

    Of the squared loss, the negative log-likelihood of Gaussian noise with unit variance, this is
    :math:`\frac1n \sum_j r_j^2 [\nabla f(x_j)]^2` with the residuals :math:`r_j`, not the true Fisher diagonal
    :math:`\frac1n \sum_j [\nabla f(x_j)]^2`, which has :math:`E\,r_j^2 = 1`. So it shrinks as the model fits
    better than one deviation of the target. The true one is the Hessian's diagonal of a linear model: use
    ``hutchinson`` or ``exact`` for it.
    """

    nonnegative: ClassVar[bool] = True

    @stacked
    def expand(self, loss: MeanLoss, generator: Generator) -> tuple[Vector, Vector]:
        """Compute both from the same gradients of single samples."""
        return loss.gradient_moments()


class SquaredGradient(Curvature, tag="squared-gradient"):
    r"""The square of the mean gradient, which the paper's text calls Fisher information.

    .. math:: h = \Bigl[\frac1n \sum_{j=1}^n \nabla \ell(w; x_j, y_j)\Bigr]^2

    By Jensen's inequality it is never more than :class:`Fisher`, and it vanishes as training converges.
    """

    nonnegative: ClassVar[bool] = True

    @stacked
    def expand(self, loss: MeanLoss, generator: Generator) -> tuple[Vector, Vector]:
        """Compute the gradient and its square."""
        gradient = loss.gradient()
        return gradient, gradient.square()

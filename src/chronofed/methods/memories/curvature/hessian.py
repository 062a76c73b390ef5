"""Curvature from second derivatives: products of the Hessian with vectors."""

import torch
from torch import Generator

from chronofed.core.config import Count
from chronofed.core.errors import SpecError
from chronofed.core.types import Vector
from chronofed.methods.memories.curvature.base import Curvature, MeanLoss

# Most parameters whose exact diagonal is computed: each costs one Hessian product.
LARGEST = 20_000


class Hutchinson(Curvature, tag="hutchinson"):
    r"""Hutchinson's estimate with random signs, the diagonal that the paper calls PyHessian.

    .. math:: h = \frac1m \sum_{k=1}^m v_k \odot \nabla^2 f(w)\, v_k, \qquad v_k \in \{-1, 1\}^d

    It is unbiased, and exact if the Hessian is diagonal. The variance of an entry is the sum of the squares of
    all others in its row, divided by the number of probes: an entry may be negative, also of a convex loss.

    Attributes:
        probes: Number of random vectors :math:`m`; each costs one Hessian product.
    """

    probes: Count = 1

    def expand(self, loss: MeanLoss, generator: Generator) -> tuple[Vector, Vector]:
        """Average over the probes."""
        drawn = torch.randint(2, (self.probes, loss.size), generator=generator)
        signs = [*drawn.to(loss.params).mul_(2).sub_(1)]
        gradient, products = loss.gradient_and_products(signs)
        total = torch.zeros_like(gradient)
        for sign, product in zip(signs, products, strict=True):
            total.addcmul_(sign, product)
        return gradient, total.div_(self.probes)


class Exact(Curvature, tag="exact"):
    r"""The diagonal itself, one Hessian product for each parameter: for small models, and for tests.

    .. math:: h_k = e_k^\top\, \nabla^2 f(w)\, e_k
    """

    def expand(self, loss: MeanLoss, generator: Generator) -> tuple[Vector, Vector]:
        """Compute the diagonal entry by entry.

        Raises:
            SpecError: For more than 20,000 parameters.
        """
        gradient = loss.gradient()
        result, unit = torch.zeros_like(gradient), torch.zeros_like(gradient)
        if len(result) > LARGEST:
            msg = (
                f"curvature exact: {len(result):,} parameters need as many Hessian products, and more "
                f"than {LARGEST:,} take too long; use hutchinson, or remember fewer layers"
            )
            raise SpecError(msg)
        for k in range(len(result)):
            unit[k] = 1
            result[k] = loss.hessian_product(unit)[k]
            unit[k] = 0
        return gradient, result

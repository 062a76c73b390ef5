"""Curvature from second derivatives: products of the Hessian with vectors."""

import torch
from torch import Generator

from chronofed.config import Count
from chronofed.curvature.base import Curvature
from chronofed.errors import SpecError
from chronofed.flat import take
from chronofed.types import Batch, Objective, Samples, Spans, Vector

LARGEST = 20_000  # parameters whose exact diagonal is computed: one Hessian product for each


class Hutchinson(Curvature, tag="hutchinson"):
    r"""Hutchinson's estimate with random signs, the diagonal that the paper calls PyHessian.

    .. math:: h = \frac1m \sum_{k=1}^m v_k \odot \nabla^2 f(w)\, v_k, \qquad v_k \in \{-1, 1\}^d

    It is unbiased, and exact if the Hessian is diagonal. The variance of an entry is the sum of the squares
    of all others in its row, divided by the number of probes.

    Attributes:
        probes: Random vectors :math:`m`; each costs one Hessian product.
        clamp: Whether negative values become 0, so that no remembered objective is unbounded below. What is
            clamped is no longer unbiased.
    """

    probes: Count = 1
    clamp: bool = True

    def diagonal(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,
    ) -> Vector:
        """Mean over probes."""
        batch, total = Batch.mean(samples), torch.zeros_like(take(params, spans))
        for _ in range(self.probes):
            signs = torch.randint(2, total.shape, generator=generator).to(total).mul_(2).sub_(1)
            total.addcmul_(signs, objective.hessian_product(params, batch, spans, signs))
        total.div_(self.probes)
        return total.clamp_(min=0) if self.clamp else total


class Exact(Curvature, tag="exact"):
    r"""The diagonal itself, one Hessian product for each parameter: for small models, and for tests.

    .. math:: h_k = e_k^\top\, \nabla^2 f(w)\, e_k
    """

    def diagonal(
        self,
        objective: Objective,
        params: Vector,
        samples: Samples,
        spans: Spans,
        generator: Generator,  # noqa: ARG002
    ) -> Vector:
        """Entry by entry.

        Raises:
            SpecError: For more than 20,000 parameters.
        """
        batch, result = Batch.mean(samples), torch.zeros_like(take(params, spans))
        if len(result) > LARGEST:
            msg = (
                f"curvature exact: {len(result):,} parameters need as many Hessian products, and more "
                f"than {LARGEST:,} take too long; use hutchinson, or remember fewer layers"
            )
            raise SpecError(msg)
        unit = torch.zeros_like(result)
        for k in range(len(result)):
            unit[k] = 1
            result[k] = objective.hessian_product(params, batch, spans, unit)[k]
            unit[k] = 0
        return result

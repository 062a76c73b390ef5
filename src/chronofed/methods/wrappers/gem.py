"""GEM."""

from typing import ClassVar

import numpy as np
import torch

from chronofed.core.config import NonNegative
from chronofed.core.types import Batch, Vector
from chronofed.methods.local import ClientLocal
from chronofed.methods.optimal_weights.quadratic_program import Matrix, Weights, minimise
from chronofed.methods.wrappers.projection import Projected, gradient_of

# A condition may be violated by this share of the two lengths.
SLACK = 1e-9
# Bounds of the sum of multipliers to try, of vectors of length one.
BOUNDS = (4.0, 32.0, 256.0, 2048.0, 16384.0)


class Gem(Projected, tag="gem"):
    r"""Local steps that do not raise the loss of any past data set, around any backbone.

    .. math::
        \min_{\tilde g}\; \tfrac12 \|g - \tilde g\|^2 \quad\text{so that}\quad \tilde g^\top r_k \ge 0
        \;\text{for all}\; k, \qquad \tilde g = g + \sum_k v_k r_k,\; v \ge 0

    with the gradient *g* of the present samples alone, and :math:`r_k` of all kept samples of data set *k*. It
    needs a memory that replays samples (``core-set``, ``generative``); with another it is the inner backbone,
    and with one past data set it is A-GEM on all of its samples. The kept samples bound the steps and are not
    trained on; data sets with round weight 0 do not count.

    Nothing more travels or is kept. A step costs a gradient for every past data set, and a small quadratic
    programme if a condition is violated. The batched engine does not serve it. The authors' code hands the
    programme to a solver that fails where gradients are linearly dependent; this one does not.

    Attributes:
        backbone: The inner backbone.
        margin: Least multiplier :math:`v_k` of every data set once a condition is violated, which also lowers
            past losses (``memory_strength`` in the authors' code).
        server_lr: Unused: set that of the inner backbone.
    """

    reference: ClassVar[str] = (
        "Lopez-Paz and Ranzato (2017), Gradient Episodic Memory for Continual Learning"
    )

    margin: NonNegative = 0.0

    def project(self, gradient: Vector, params: Vector, local: ClientLocal) -> Vector:
        """Find the nearest gradient that raises no past loss."""
        assert local.past.replay is not None
        batches = map(Batch.mean, local.past.replay.pieces)
        past = torch.stack([gradient_of(batch, params, local) for batch in batches])
        return projected(gradient, past, self.margin)


def projected(gradient: Vector, past: Vector, margin: float = 0.0) -> Vector:
    """Project a gradient ``(d,)`` onto the directions that have no negative product with ``past``, ``(k, d)``.

    >>> found = projected(torch.tensor([3.0, -1.0]), torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> [round(number, 6) + 0.0 for number in found.tolist()]
    [3.0, 0.0]
    """
    if not _violated(gradient, past):
        return gradient
    if margin:
        gradient = gradient.add(past.sum(0), alpha=margin)
    vectors = torch.cat([gradient[None], past]).double()
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    some = lengths > 0
    if not some[0]:
        return gradient
    unit = vectors[some] / lengths[some, None]
    v = torch.from_numpy(multipliers((unit @ unit.T).numpy()))
    found: Vector = (unit[0] + v @ unit[1:]) * lengths[0]
    return found.to(gradient.dtype)


def _violated(gradient: Vector, past: Vector) -> bool:
    return bool((past.double() @ gradient.double() < 0).any())


def multipliers(products: Matrix) -> Weights:
    r"""Find :math:`v \ge 0` that minimises :math:`\|g + \sum_k v_k r_k\|`, from all products; *g* is the first.

    With a bound *c* on their sum this is the vector of least norm in the convex hull of *g* and all
    :math:`g + c\, r_k`, a case of :func:`~chronofed.methods.optimal_weights.quadratic_program.minimise`. The
    bound does not matter if all products with the result are at least 0; otherwise it is raised.
    """
    ours, among = products[0, 1:], products[1:, 1:]
    v = np.zeros(len(ours))
    for bound in BOUNDS:
        shift = bound * np.concatenate([[0.0], ours])
        hull = products[0, 0] + shift + shift[:, None]
        hull[1:, 1:] += bound**2 * among
        try:
            v = bound * minimise(hull)[0][1:]
        except ArithmeticError:
            break
        if (ours + among @ v).min(initial=0.0) >= -SLACK:
            break
    return v

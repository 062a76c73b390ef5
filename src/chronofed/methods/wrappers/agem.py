"""A-GEM."""

from typing import ClassVar

from chronofed.core.types import Vector
from chronofed.methods.local import ClientLocal
from chronofed.methods.wrappers.projection import Projected, gradient_of


class AGem(Projected, tag="a-gem"):
    r"""Local steps that do not raise the loss of the kept samples, around any backbone.

    .. math:: g \gets g - \frac{g^\top r}{r^\top r}\, r \quad\text{if}\quad g^\top r < 0

    with the gradient *g* of the present samples alone, and *r* of a mini-batch of the kept ones. It needs a
    memory that replays samples (``core-set``, ``generative``); with another it is the inner backbone. The kept
    samples bound the steps and are not trained on. The present has its full weight, and *r* draws samples by
    the round weights. Terms of the inner backbone, such as that of FedProx, come on top.

    Nothing more travels or is kept. A step costs a second gradient, and needs products of whole vectors, so the
    batched engine does not serve it. The mini-batches of the present are drawn anew for every step, without
    epochs.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
    """

    reference: ClassVar[str] = "Chaudhry et al. (2019), Efficient Lifelong Learning with A-GEM"

    def project(self, gradient: Vector, params: Vector, local: ClientLocal) -> Vector:
        """Take away the part of the gradient that would raise the loss of the kept samples."""
        pool, size = local.past.replay, local.train.batch_size
        assert pool is not None
        batch = pool.whole() if size == "full" else next(pool.batches(size, local.generator))
        reference = gradient_of(batch, params, local)
        wide = reference.double()
        product, square = float(gradient.double() @ wide), float(wide @ wide)
        return (
            gradient.sub_(reference, alpha=product / square) if product < 0 < square else gradient
        )

"""Frozen."""

from typing import ClassVar

import torch

from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.local import Local


class Frozen(Backbone, tag="frozen"):
    """No training: the model stays as it is given, or as it was drawn, and only a head learns.

    Its body is that of ``start``, or fixed random features. With a head whose ``decay`` is 1 the model is a
    function of sums over all samples that ever came. So the order of rounds does not matter, and a client, or a
    sample, can be forgotten exactly (``chronofed forget``). Without a head it learns nothing. It has no steps
    and costs a forward pass for the head.
    """

    reference: ClassVar[str] = (
        "Rahimi and Recht (2008), Random Features for Large-Scale Kernel Machines"
    )

    @stacked
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Return no gradient."""
        return torch.zeros_like(params)

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Return no update, whatever weight decay did."""
        return {"delta": torch.zeros_like(params)}, client

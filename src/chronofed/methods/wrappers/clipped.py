"""Clipped."""

import difflib
import math
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from chronofed.core.config import Positive
from chronofed.core.errors import SpecError
from chronofed.core.types import Record
from chronofed.methods.backbones.base import Bench, Upload, Uploads
from chronofed.methods.wrappers.base import Wrapper, parts

# The entry that every backbone uploads.
UPDATE = "delta"


class Clipped(Wrapper, tag="clipped"):
    r"""Clips every client's update to a bound, around any backbone, so that no client can dominate.

    Before the inner backbone sees them, the server scales every vector *v* of an upload separately,

    .. math:: v \gets v \cdot \min(1,\; B / \|v\|),

    with :math:`B` = ``bound`` for the update. Other entries that the inner backbone's clients send have other
    units, so they need their own bounds:

    ========  ==================  ========================================================================
    backbone  entry               bounded quantity
    ========  ==================  ========================================================================
    all       ``bound``           the update; ``fednova``: of one effective step; ``mifa``: its change
    scaffold  ``control``         change of the control; the client's own is not clipped
    mime      ``gradient``        full gradient, in the extra exchange of a round
    mimelite  ``gradient``        full gradient, sent with the update
    fednova   ``steps``           number of effective steps, which multiplies the mean step
    fedlin    ``gradient``        full gradient, in the extra exchange of a round
    fedlin    ``steps``           number of effective steps
    fedcurv   ``fisher``          curvature at the end; the client's own is not clipped
    fedcurv   ``pull``            curvature times the model at the end; likewise
    fedgate   ``per_length``      one over step size times number of steps
    pvi       ``precision``       precision of the product of all factors of a client, ``bound`` is not used
    pvi       ``pull``            precision times mean of the same
    q-ffl     ``loss``            mean loss at the server's model
    q-ffl     ``per_lr``          one over the learning rate
    afl       ``loss``            mean loss at the server's model
    fedglomo  ``change``          difference of the updates of two models
    cwr       ``rows``            rows of the last layer, each times the share of its class
    cwr       ``shares``          share of every class
    additive  ``adaptive``        the client's own part; what it keeps is not clipped
    heterofl  ``classes``         1 for every class that a client has; any bound will do
    ccvr      ``class_counts``    number of samples of every class; whole numbers, so any bound will do
    ccvr      ``class_features``  sum of features of every class, per sample of the client
    ccvr      ``class_products``  sum of products of two features of every class, likewise
    clusters  ``scores``          by ``scores``: one plus the score of every model, in the extra exchange
    clusters  ``baseline``        by ``scores``: one plus the score after training
    clusters  ``votes``           by ``centres``: share of samples near each centre, in the extra exchange
    clusters  ``feature``         by ``centres``: mean feature, in the extra exchange
    ========  ==================  ========================================================================

    Not clipped, because no backbone sees them: the model's buffers, records of a memory on the server, and the
    reports for adaptive weights.

    Attributes:
        backbone: The inner backbone.
        bound: Largest l2 norm :math:`B` of an update; a huge one, such as 1e30, clips nothing.
        bounds: Largest norms of the other entries that clients send, by name, such as ``{ control = 10.0 }``.
        server_lr: Unused: set that of the inner backbone.
    """

    reference: ClassVar[str] = "Sun et al. (2019), Can You Really Backdoor Federated Learning?"

    bound: Positive = 1.0
    bounds: dict[str, Positive] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if any(isinstance(part, Clipped) for part in parts(self.backbone)):
            raise ValueError(f"{name}.backbone: updates are clipped twice; remove one of the two")
        if self.server_lr != 1.0:
            raise ValueError(f"{name}.server_lr: set server_lr of the inner backbone instead")
        inner, others = type(parts(self.backbone)[-1]).__name__, self._others
        for entry in self.bounds:
            if entry not in others:
                raise ValueError(f"{name}.bounds: {_unknown(entry, inner, others)}")
        for entry in others:
            if entry not in self.bounds:
                sender = next(p for p in reversed(parts(self.backbone)) if entry in p.upload_keys)
                what = f"{type(sender).__name__} also sends {entry}"
                raise ValueError(f"{name}.bounds: {what}; bound it: bounds = {{ {entry} = 10.0 }}")

    def __hash__(self) -> int:
        # A dict cannot be hashed.
        bounds = frozenset(self.bounds.items())
        fields = (getattr(self, n) for n in self.__struct_fields__ if n != "bounds")
        return hash((type(self), bounds, *fields))

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Clip the uploads of the extra exchange."""
        return super().begin(server, self._clipped(uploads))

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Clip the uploads, and let the inner backbone aggregate."""
        return self.backbone.aggregate(server, self._clipped(uploads))

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """Clip the uploads, and let the inner backbone refine."""
        return super().refine(server, self._clipped(uploads), bench)

    @property
    def _others(self) -> tuple[str, ...]:
        return tuple(entry for entry in self.upload_keys if entry != UPDATE)

    def _clipped(self, uploads: Uploads) -> Uploads:
        return [
            Upload(upload[0], {n: self._short(n, v) for n, v in upload[1].items()}, upload.sender)
            for upload in uploads
        ]

    def _short(self, entry: str, vector: Tensor) -> Tensor:
        """Clip a vector; whole numbers, which name something, stay as they are."""
        return clip(vector, self._bound(entry)) if vector.is_floating_point() else vector

    def _bound(self, entry: str) -> float:
        """Return the bound of an entry.

        Raises:
            SpecError: If the inner backbone sends an entry that it did not declare.
        """
        if entry not in self.upload_keys:
            inner, name = type(parts(self.backbone)[-1]).__name__, type(self).__name__
            msg = (
                f"{inner} sends {entry}, which {name} does not know; add it to {inner}.upload_keys"
            )
            raise SpecError(f"method.backbone: {msg}")
        return self.bound if entry == UPDATE else self.bounds[entry]


def clip(vector: Tensor, bound: float) -> Tensor:
    """Scale a vector, or a number, to a norm of at most ``bound``; return it unchanged if it is short enough.

    >>> clip(torch.tensor([3.0, 4.0]), bound=1.0)
    tensor([0.6000, 0.8000])
    """
    length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if math.isfinite(length) and length <= bound:
        return vector
    return vector * (bound / length)


def _unknown(entry: str, inner: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(entry, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
    return f"{inner} sends no {entry!r} besides its update; {hint}"

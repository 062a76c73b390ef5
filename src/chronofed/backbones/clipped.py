"""Clipped."""

import difflib
import math
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from chronofed.backbones.base import Uploads
from chronofed.backbones.wrapper import Wrapper, parts
from chronofed.config import Positive
from chronofed.errors import SpecError
from chronofed.types import Record

UPDATE = "delta"  # what every backbone sends


class Clipped(Wrapper, tag="clipped"):
    r"""No client's update is longer than a bound, around any backbone; so none can outweigh the others.

    Before the inner backbone sees them, the server scales every vector *v* of an upload by itself,

    .. math:: v \gets v \cdot \min(1,\; B / \|v\|),

    with :math:`B` = ``bound`` for the update. What else the inner backbone's clients send is in other units,
    and needs bounds of its own:

    ============  ==============  =============================================================
    backbone      entry           what is bounded
    ============  ==============  =============================================================
    all           ``bound``       the update; of ``fednova`` that of one effective step
    scaffold      ``control``     change of the control; the client keeps its own as it is
    mime          ``gradient``    full gradient, in the exchange that begins a round
    mimelite      ``gradient``    full gradient, beside the update
    fednova       ``steps``       number of effective steps, which multiplies the mean step
    ============  ==============  =============================================================

    Not clipped, since no backbone sees it: the model's buffers, records of a memory on the server, and the
    reports for adaptive weights.

    Attributes:
        backbone: The inner backbone.
        bound: Longest update :math:`B`, in the l2 norm; may be ``inf``.
        bounds: Longest of everything else that clients send, by name, such as ``{ control = 10.0 }``.
        server_lr: Not used: the inner backbone's counts.
    """

    reference: ClassVar[str] = "Sun et al. (2019), Can You Really Backdoor Federated Learning?"

    bound: Positive = 1.0
    bounds: dict[str, Positive] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if any(isinstance(part, Clipped) for part in parts(self.backbone)):
            raise ValueError(
                f"{name}.backbone: updates are clipped twice; leave one of the two out"
            )
        if self.server_lr != 1.0:
            raise ValueError(f"{name}.server_lr: set server_lr of the inner backbone instead")
        inner, others = type(parts(self.backbone)[-1]).__name__, self._others
        for entry in self.bounds:
            if entry not in others:
                raise ValueError(f"{name}.bounds: {_unknown(entry, inner, others)}")
        for entry in others:
            if entry not in self.bounds:
                msg = f"{name}.bounds: {inner} also sends {entry}; bound it: bounds = {{ {entry} = 10.0 }}"
                raise ValueError(msg)

    def __hash__(self) -> int:
        bounds = frozenset(self.bounds.items())  # a dict has no hash of its own
        fields = (getattr(self, n) for n in self.__struct_fields__ if n != "bounds")
        return hash((type(self), bounds, *fields))

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Clip what clients send in the exchange that begins a round."""
        return super().begin(server, self._clipped(uploads))

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Clip, and let the inner backbone aggregate."""
        return self.backbone.aggregate(server, self._clipped(uploads))

    @property
    def _others(self) -> tuple[str, ...]:
        return tuple(entry for entry in self.sends if entry != UPDATE)

    def _clipped(self, uploads: Uploads) -> Uploads:
        return [
            (weight, {entry: clip(v, self._bound(entry)) for entry, v in upload.items()})
            for weight, upload in uploads
        ]

    def _bound(self, entry: str) -> float:
        """How long a vector may be.

        Raises:
            SpecError: If the inner backbone sends what it did not declare.
        """
        if entry not in self.sends:
            inner, name = type(parts(self.backbone)[-1]).__name__, type(self).__name__
            msg = f"{inner} sends {entry}, which {name} does not know; name it in {inner}.sends"
            raise SpecError(f"method.backbone: {msg}")
        return self.bound if entry == UPDATE else self.bounds[entry]


def clip(vector: Tensor, bound: float) -> Tensor:
    """A vector, or a number, of length at most ``bound``; the same object if it is not longer.

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
    return f"{inner} sends no {entry!r} beside its update; {hint}"

"""The remembered quadratics of many clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from chronofed.surrogate import Quadratic
from chronofed.tasks.batched_loop import Pull
from chronofed.tasks.batched_mlp import Layout
from chronofed.types import Spans


@dataclass(frozen=True, slots=True)
class Quadratics:
    """A :class:`~chronofed.surrogate.Quadratic` for every client, all of the same parameters.

    Tensors have one row for each client, or a single one that is for all.
    """

    spans: Spans
    scale: Tensor  # (clients, spans)
    linear: Tensor  # (clients, parameters in spans)
    diagonal: Tensor  # likewise

    @classmethod
    def of(cls, each: Sequence[Quadratic | None]) -> Self | None:
        """Those of some clients; none has one, or all have."""
        some = [one for one in each if one is not None]
        if not some:
            return None
        if all(one is some[0] for one in some):
            some = some[:1]
        linear, diagonal = (
            torch.stack([q.linear for q in some]),
            torch.stack([q.diagonal for q in some]),
        )
        return cls(some[0].spans, linear.new_tensor([q.scale for q in some]), linear, diagonal)

    def first(self, clients: int) -> Self:
        """Those of the first clients."""
        rows = (tensor[:clients] for tensor in (self.scale, self.linear, self.diagonal))
        return type(self)(self.spans, *rows)

    def add_gradient_(self, grad: Tensor, params: Tensor) -> None:
        """Turn gradients of the present into those of present and past, in place; ``(clients, d)``."""
        start = 0
        for number, span in enumerate(self.spans):
            part = slice(start, start + span.stop - span.start)
            here = grad[:, span].mul_(self.scale[:, number, None]).add_(self.linear[:, part])
            here.addcmul_(self.diagonal[:, part], params[:, span])
            start = part.stop

    def pull(self, form: Layout, lr: float, keep: float) -> Pull:
        """What they add to a step of all weights and biases (:func:`~chronofed.tasks.batched_loop.step_along`).

        Args:
            form: Where weights and biases lie; none is only partly in ``spans``.
            lr: Step size.
            keep: What a step leaves of the parameters, less than 1 with weight decay.
        """
        return [
            [] if part is None else self._pull(part, shape, lr, keep)
            for layer in form.layers
            for part, shape in layer.parts
        ]

    def _pull(self, part: slice, shape: tuple[int, int], lr: float, keep: float) -> list[Tensor]:
        start = 0
        for number, span in enumerate(self.spans):
            if span.start <= part.start < span.stop:
                first = start + part.start - span.start
                here = slice(first, first + part.stop - part.start)
                a, b = (t[:, here].view(-1, *shape) for t in (self.linear, self.diagonal))
                return [self.scale[:, number, None, None], keep - lr * b, -lr * a]
            start += span.stop - span.start
        return []

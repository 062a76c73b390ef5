"""The remembered quadratics of many clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from chronofed.core.types import Spans
from chronofed.engines.batched.layout import Layout
from chronofed.engines.batched.loop import QuadraticTerm
from chronofed.methods.surrogate import Quadratic


@dataclass(frozen=True, slots=True)
class Quadratics:
    """A :class:`~chronofed.methods.surrogate.Quadratic` for every client, all of the same parameters.

    Tensors have one row per client, or a single row for all of them.
    """

    spans: Spans
    scale: Tensor  # (clients, spans)
    linear: Tensor  # (clients, parameters in spans)
    diagonal: Tensor  # (clients, parameters in spans)

    @classmethod
    def of(cls, each: Sequence[Quadratic | None]) -> Self | None:
        """Stack the quadratics of clients; all of them have one, or none has."""
        some = [one for one in each if one is not None]
        if not some:
            return None
        if all(one is some[0] for one in some):
            some = some[:1]
        linear = torch.stack([q.linear for q in some])
        diagonal = torch.stack([q.diagonal for q in some])
        return cls(some[0].spans, linear.new_tensor([q.scale for q in some]), linear, diagonal)

    def first(self, clients: int) -> Self:
        """Return those of the first clients."""
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

    def term(self, layout: Layout, lr: float, decay_factor: float) -> QuadraticTerm:
        """Return what they add to a fused step (:func:`~chronofed.engines.batched.loop.step_along`).

        Args:
            layout: Positions of weights and biases; ``spans`` must be aligned with them.
            lr: Step size.
            decay_factor: Factor of the parameters in a step, less than 1 with weight decay.

        Returns:
            Two entries per layer: of its weights, and of its bias.
        """
        return [
            [] if part is None else self._part_term(part, shape, lr, decay_factor)
            for layer in layout.layers
            for part, shape in layer.parts
        ]

    def _part_term(
        self, part: slice, shape: tuple[int, int], lr: float, decay_factor: float
    ) -> list[Tensor]:
        start = 0
        for number, span in enumerate(self.spans):
            if span.start <= part.start < span.stop:
                first = start + part.start - span.start
                here = slice(first, first + part.stop - part.start)
                a, b = (t[:, here].view(-1, *shape) for t in (self.linear, self.diagonal))
                return [self.scale[:, number, None, None], decay_factor - lr * b, -lr * a]
            start += span.stop - span.start
        return []

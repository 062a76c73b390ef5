"""A ``torch.nn.Module`` as a function of one flat parameter vector, with separate buffers."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from chronofed.core.types import Spans, Vector


class Flat:
    """A module whose parameters are views of slices of a flat vector.

    Optimisers, memories and messages see one vector ``(d,)``; the module sees its usual tensors, which are
    views of that vector. Updating the vector in place updates the module.

    Attributes:
        module: The module, which this object now owns.
        spans: The slice of the flat vector that each named parameter occupies.
        shapes: The shape of each named parameter.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._buffers = list(module.buffers())
        self.spans: dict[str, slice] = {}
        self.shapes: dict[str, torch.Size] = {}
        start = 0
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self.spans[name] = slice(start, start + parameter.numel())
                self.shapes[name] = parameter.shape
                start += parameter.numel()
        self._bound = _flatten(p.detach() for p in self._parameters)
        self._rebind()

    @property
    def size(self) -> int:
        """The number of trainable parameters d."""
        return len(self._bound)

    def read(self) -> Vector:
        """Return a copy of the current parameters, ``(d,)``."""
        return self._bound.clone()

    def bind(self, params: Vector) -> None:
        """Make the module's parameters views of ``params``."""
        if params is not self._bound:
            self._bound = params
            self._rebind()

    def gradient(self, loss: Tensor) -> Vector:
        """Compute the gradient of a scalar with respect to the bound parameters, ``(d,)``."""
        parts = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return _flatten(parts)

    @property
    def buffers(self) -> Vector:
        """A copy of all buffers, flattened; empty if the module has none."""
        return _flatten(b.to(self._bound.dtype) for b in self._buffers)

    @buffers.setter
    def buffers(self, values: Vector) -> None:
        parts = torch.split(values, [b.numel() for b in self._buffers]) if self._buffers else ()
        for buffer, part in zip(self._buffers, parts, strict=True):
            if not buffer.is_floating_point():
                part = part.round()
            buffer.copy_(part.view_as(buffer))

    def _rebind(self) -> None:
        parts = torch.split(self._bound, [p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.data = part.view(parameter.shape)


def take(vector: Vector, spans: Spans) -> Vector:
    """Concatenate the parts of a flat vector, or of every row of ``(clients, d)``."""
    return torch.cat([vector[..., span] for span in spans], dim=-1) if spans else vector[..., :0]


def joined(spans: Iterable[slice]) -> Spans:
    """Sort parts and merge neighbours.

    >>> joined([slice(5, 7), slice(0, 2), slice(2, 5)])
    (slice(0, 7, None),)
    """
    result: list[slice] = []
    for span in sorted(spans, key=lambda s: s.start):
        if result and result[-1].stop == span.start:
            span = slice(result.pop().start, span.stop)
        result.append(span)
    return tuple(result)


def _flatten(parts: Iterable[Tensor]) -> Vector:
    rows = [part.reshape(-1) for part in parts]
    return torch.cat(rows) if rows else torch.empty(0)

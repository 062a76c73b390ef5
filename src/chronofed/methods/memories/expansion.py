"""Remembered quadratics of chosen layers: what ``taylor`` and ``ewc`` have in common.

A record covers the parameters in ``spans``, with a ``diagonal`` of curvature and a ``strength`` of the past for
each span.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

import torch

from chronofed.core.errors import SpecError
from chronofed.core.types import Record, Spans, Vector
from chronofed.methods.surrogate import Quadratic

CONSTANTS = ("spans", "strength")
"""The entries that depend on the model alone."""


def chosen_layers(
    layers: Mapping[str, float], names: Mapping[str, slice]
) -> Iterator[tuple[slice, float]]:
    """Yield neighbouring parameters of equal nonzero strength as one span.

    Raises:
        SpecError: If no pattern matches a parameter.
    """
    strengths = {name: _strength(layers, name) for name in names}
    if all(strength is None for strength in strengths.values()):
        msg = (
            f"method.memory.layers: no parameter of the model matches {', '.join(layers)}; "
            f"its parameters are {', '.join(names)}"
        )
        raise SpecError(msg)
    for strength, group in groupby(names, key=strengths.__getitem__):
        if strength:
            spans = [names[name] for name in group]
            yield slice(spans[0].start, spans[-1].stop), strength


def _strength(layers: Mapping[str, float], name: str) -> float | None:
    return next((s for pattern, s in layers.items() if fnmatchcase(name, pattern)), None)


def constants(chosen: Sequence[tuple[slice, float]]) -> Record:
    """Return the entries of a record that say which layers were chosen."""
    return {
        "spans": torch.tensor([[span.start, span.stop] for span, _ in chosen]),
        "strength": torch.tensor([strength for _, strength in chosen], dtype=torch.float64),
    }


def spans_of(record: Record) -> Spans:
    """Return the parameters that a record covers."""
    return tuple(slice(start, stop) for start, stop in record["spans"].tolist())


def summed(records: Sequence[Record], p: Sequence[float], name: str) -> Vector:
    """Sum one entry of records with weights ``p``."""
    total = torch.zeros_like(records[0][name])
    for record, weight in zip(records, p, strict=True):
        total.add_(record[name], alpha=weight)
    return total


def quadratic(record: Record, linear: Vector, diagonal: Vector, share: float) -> Quadratic:
    """Apply the strengths of a record in place; the past replaces ``share`` of the present."""
    spans, strengths = spans_of(record), record["strength"].tolist()
    for vector in (linear, diagonal):
        parts = torch.split(vector, [span.stop - span.start for span in spans])
        for part, strength in zip(parts, strengths, strict=True):
            part.mul_(strength)
    return Quadratic(spans, tuple(1 - strength * share for strength in strengths), linear, diagonal)

r"""What a memory may contribute to a local step: remembered objectives, ready to be descended.

Every approximation of the paper is one of two things, or both at once:

* a quadratic, whose gradient is ``linear + diagonal * w``: all Taylor expansions of all remembered rounds
  collapse into these two vectors;
* weighted samples that are replayed together with the present ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from chronofed.types import Batch, Samples, Vector


@dataclass(frozen=True, slots=True)
class Pool:
    r"""Weighted samples: the objective :math:`\sum_j a_j\, \ell(w; x_j, y_j)` to draw mini-batches of."""

    samples: Samples
    weight: Tensor  # (n,) float64

    def __len__(self) -> int:
        return len(self.samples)

    def batches(self, size: int, generator: Generator) -> Iterator[Batch]:
        """Mini-batches without end, each an unbiased estimate of the whole objective.

        Samples of equal weight come in shuffled epochs, without replacement; others are drawn with
        replacement, in proportion to their weight.
        """
        total = float(self.weight.sum())
        draw = self._epochs if self._equal() else self._draws
        for pick in draw(size, generator):
            share = torch.full((len(pick),), total / len(pick), dtype=torch.float64)
            chosen = self.samples[pick]
            yield Batch(chosen.x, chosen.y, share)

    def _equal(self) -> bool:
        low, high = self.weight.aminmax()
        return bool(high - low <= 1e-9 * high)

    def _epochs(self, size: int, generator: Generator) -> Iterator[Tensor]:
        while True:
            yield from torch.split(torch.randperm(len(self), generator=generator), size)

    def _draws(self, size: int, generator: Generator) -> Iterator[Tensor]:
        while True:
            yield torch.multinomial(self.weight, size, replacement=True, generator=generator)


@dataclass(frozen=True, slots=True)
class Surrogate:
    r"""Weight of the present :math:`p_t`, and the past :math:`\sum_\tau p_\tau \tilde f_\tau`.

    Attributes:
        present: Weight of the present objective.
        linear: Constant part of the past's gradient.
        diagonal: Curvature of the past.
        replay: Samples of the past; their weights are the past's share of the objective.
    """

    present: float = 1.0
    linear: Vector | None = None
    diagonal: Vector | None = None
    replay: Pool | None = None

    def pool(self, samples: Samples) -> Pool:
        """The present samples together with those to replay."""
        n = len(samples)
        now = Pool(samples, torch.full((n,), self.present / n, dtype=torch.float64))
        if self.replay is None:
            return now
        past = self.replay
        return Pool(
            Samples(torch.cat([samples.x, past.samples.x]), torch.cat([samples.y, past.samples.y])),
            torch.cat([now.weight, past.weight]),
        )

    def add_gradient_(self, grad: Vector, params: Vector) -> None:
        """Add ``linear + diagonal * params`` to ``grad`` in place."""
        if self.linear is not None:
            grad.add_(self.linear)
        if self.diagonal is not None:
            grad.addcmul_(self.diagonal, params)

"""The mini-batches of many clients, joined into batches with a leading client axis."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chronofed.core.types import Batch
from chronofed.engines.batched.kernel import BatchedMlp, Schedule
from chronofed.methods.local import ClientLocal

Draw: TypeAlias = tuple[Tensor, Tensor]  # positions of samples, and their weights


class BatchSampler:
    """The mini-batches of clients that are sorted by their number of steps, the most first.

    Each client draws as if it were alone. If it draws fewer samples than others, it is padded with samples of
    weight zero; when it has done its steps, it is left out.
    """

    def __init__(self, locals_: Sequence[ClientLocal], kernel: BatchedMlp) -> None:
        pools = [local.pool for local in locals_]
        pieces = [piece for pool in pools for piece in pool.pieces]
        self._locals, self._kernel = locals_, kernel
        self._x = torch.cat([piece.x for piece in pieces]).flatten(1)  # (n, features)
        y, layout = torch.cat([piece.y for piece in pieces]), kernel.layout
        self._y = layout.loss.encoded(y, layout.dtype)
        first = [0, *accumulate(map(len, pools[:-1]))]
        self._first = torch.tensor(first)[:, None]  # (clients, 1) first row of each client

    def draw(self) -> list[list[Draw]]:
        """Draw all mini-batches of this round, client by client."""
        return [[local.draw() for _ in range(local.steps)] for local in self._locals]

    def batches(self, drawn: list[list[Draw]]) -> Iterator[Batch]:
        """Yield one batch per step, ``(active clients, b, ...)``; the next one overwrites its samples."""
        steps = self.schedule(drawn).steps if equally_sized(drawn) else self._padded(drawn)
        for rows, y, weight in steps:
            yield Batch(self._gather(rows), y, weight)

    def schedule(self, drawn: list[list[Draw]]) -> Schedule:
        """Join all steps of clients that draw equally many samples in each."""
        rows = torch.cat([pick for mine in drawn for pick, _ in mine]).view(len(drawn), -1)
        rows += self._first
        y, weight = self._y[rows], _weights(drawn).to(self._kernel.layout.dtype)
        factors = self._kernel.layout.loss.weighted(y, weight).unsqueeze(2)
        sizes = [len(pick) for pick, _ in drawn[0]]
        return Schedule(self._x, rows, y.unsqueeze(2), factors, sizes)

    def _padded(self, drawn: list[list[Draw]]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the steps of clients that draw differently, padded."""
        for k in range(len(drawn[0])):
            step = [mine[k] for mine in drawn if k < len(mine)]
            rows = _stacked_rows([pick for pick, _ in step]) + self._first[: len(step)]
            weights = _stacked_rows([weight for _, weight in step]).to(self._kernel.layout.dtype)
            y = self._y[rows]
            yield rows, y, self._kernel.layout.loss.weighted(y, weights)

    def _gather(self, rows: Tensor) -> Tensor:
        """Return samples as the first layer sees them, ``(clients, b, features)``."""
        layout, workspace = self._kernel.layout, self._kernel.workspace
        shape = rows.numel(), self._x.shape[1]
        raw = workspace.take("raw", *shape, dtype=self._x.dtype)
        torch.index_select(self._x, 0, rows.reshape(-1), out=raw)
        if raw.dtype == layout.dtype:
            return raw.view(*rows.shape, -1)
        x = workspace.take("x", *shape, dtype=layout.dtype)
        layout.encode_(raw, x)
        return x.view(*rows.shape, -1)


def equally_sized(drawn: list[list[Draw]]) -> bool:
    """Check that all clients take equally many steps, with equally many samples in each."""
    sizes = [[len(pick) for pick, _ in mine] for mine in drawn]
    return all(size == sizes[0] for size in sizes)


def _weights(drawn: list[list[Draw]]) -> Tensor:
    """Join the weights of equally sized draws, ``(clients, total)``; equal ones are often the same tensors."""
    first, *others = ([weight for _, weight in mine] for mine in drawn)
    if all(one is same for mine in others for one, same in zip(mine, first, strict=True)):
        return torch.cat(first).expand(len(drawn), -1)
    return torch.cat([weight for mine in (first, *others) for weight in mine]).view(len(drawn), -1)


def _stacked_rows(rows: list[Tensor]) -> Tensor:
    """Stack rows, with zeros at the end of the shorter ones."""
    if all(row.shape == rows[0].shape for row in rows):
        # Much faster than padding.
        return torch.stack(rows)
    return pad_sequence(rows, batch_first=True)

"""Reusable buffers for the batched kernel."""

import math

import torch
from torch import Tensor

# Rows of parameters are padded to a multiple of so many numbers: 64 bytes or more, a line of the cache.
LINE_NUMBERS = 16
# Most views to remember; beyond that they are made again.
MAX_VIEWS = 1000


class Workspace:
    """Named buffers that are used again and again."""

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of this shape; the previous content of the name is lost."""
        key = name, shape, dtype
        if key not in self._views:
            self._views[key] = self._view(name, shape, dtype)
        return self._views[key]

    def rows(self, name: str, count: int, size: int, dtype: torch.dtype) -> Tensor:
        """Return ``(count, size)``; every row begins at a line of the cache, which is up to twice as fast."""
        key = f"rows {name}", (count, size), dtype
        if key not in self._views:
            line = -(-size // LINE_NUMBERS) * LINE_NUMBERS
            self._views[key] = self.take(name, count, line, dtype=dtype)[:, :size]
        return self._views[key]

    def _view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        need = math.prod(shape)
        block = self._blocks.get(name)
        if block is None or block.numel() < need or block.dtype != dtype:
            block = self._blocks[name] = torch.empty(need, dtype=dtype)
            # Some may be views of the block that was there before.
            self._views.clear()
        if len(self._views) > MAX_VIEWS:
            self._views.clear()
        return block[:need].view(shape)

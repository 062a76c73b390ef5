"""Bytes that travel."""

from collections.abc import Sequence
from dataclasses import dataclass

from chronofed.protocol import Order, Result
from chronofed.surrogate import Surrogate
from chronofed.types import Record


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of tensors sent so far, from the server to clients and back."""

    down: int = 0
    up: int = 0

    def after(self, orders: Sequence[Order], results: Sequence[Result]) -> "Traffic":
        """With one more exchange."""
        keys = [(id(o.server), id(o.buffers), id(o.past)) for o in orders]  # the same for most
        sizes = {key: _order(order) for key, order in dict(zip(keys, orders, strict=True)).items()}
        down = sum(sizes[key] for key in keys)
        up = sum(
            _bytes(r.upload) + r.buffers.nbytes + _bytes(r.kept) + _bytes(r.probe) for r in results
        )
        return Traffic(self.down + down, self.up + up)


def _order(order: Order) -> int:
    return _bytes(order.server) + order.buffers.nbytes + _surrogate(order.past)


def _bytes(record: Record) -> int:
    return sum(tensor.nbytes for tensor in record.values())


def _surrogate(past: Surrogate | None) -> int:
    if past is None or past.quadratic is None:
        return 0
    quadratic = past.quadratic
    numbers = 3 * len(quadratic.spans)  # the bounds of each, and its scale
    return 8 * numbers + quadratic.linear.nbytes + quadratic.diagonal.nbytes

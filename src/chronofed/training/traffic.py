"""Counting the bytes sent between server and clients."""

from collections.abc import Sequence
from dataclasses import dataclass

from chronofed.clients.messages import Order, Result
from chronofed.core.types import Record
from chronofed.methods.surrogate import Surrogate


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of tensors sent so far, from the server to clients and back."""

    down_bytes: int = 0
    up_bytes: int = 0

    def after(
        self, orders: Sequence[Order], results: Sequence[Result], left_out_bytes: int = 0
    ) -> "Traffic":
        """Return the traffic after one more exchange; the results may have left out some bytes."""
        # Most orders share their tensors, so each combination is measured once.
        keys = [(id(o.server), id(o.buffers), id(o.past)) for o in orders]
        sizes = {key: _order(order) for key, order in dict(zip(keys, orders, strict=True)).items()}
        down = sum(sizes[key] for key in keys)
        up = sum(
            _bytes(r.upload) + r.buffers.nbytes + _bytes(r.record) + _bytes(r.probe)
            for r in results
        )
        return Traffic(self.down_bytes + down, self.up_bytes + up + left_out_bytes)


def _order(order: Order) -> int:
    return _bytes(order.server) + order.buffers.nbytes + _surrogate(order.past)


def _bytes(record: Record) -> int:
    return sum(tensor.nbytes for tensor in record.values())


def _surrogate(past: Surrogate | None) -> int:
    if past is None:
        return 0
    models = [t for each in past.teachers for t in (each.params, each.buffers, each.classes)]
    taught = sum(tensor.nbytes for tensor in models if tensor is not None)
    if past.quadratic is None:
        return taught
    quadratic = past.quadratic
    # Two bounds and a scale per span.
    numbers = 3 * len(quadratic.spans)
    return taught + 8 * numbers + quadratic.linear.nbytes + quadratic.diagonal.nbytes

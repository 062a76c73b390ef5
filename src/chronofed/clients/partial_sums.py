"""Partial sums: the uploads of a round, added up part by part in an order that does not depend on workers.

Every client belongs to one of a fixed number of parts, by its number. The clients of a part are added first, in
their order, wherever that is done, and then the parts. So the tree of the sum depends on the clients alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar, runtime_checkable

from chronofed.clients.messages import Order, Result, shares
from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Upload, weighted_mean
from chronofed.methods.method import Method
from chronofed.methods.wrappers.base import parts as backbones_in
from chronofed.scenarios.base import Plan

BUFFERS = "buffers"

_Item = TypeVar("_Item", Order, Result)


@dataclass(frozen=True, slots=True)
class PartialSum:
    """The mean of the uploads of one part, and its weight.

    Attributes:
        part: Number of the part.
        weight: Sum of its clients' weights.
        upload: Their mean upload.
        buffers: The mean of their buffers.
    """

    part: int
    weight: float
    upload: Record
    buffers: Vector


@dataclass(frozen=True, slots=True)
class SummedRound:
    """The results of a round in partial sums.

    Attributes:
        results: The results; uploads and buffers may be left out, because they are in the sums.
        sums: The partial sums, in the order of parts.
        left_out_bytes: Bytes of what was left out of results.
    """

    results: list[Result]
    sums: list[PartialSum]
    left_out_bytes: int = 0

    @property
    def uploads(self) -> list[Upload]:
        """The sums as uploads, each of as much weight as its clients."""
        return [Upload(each.weight, each.upload) for each in self.sums]

    @property
    def buffers(self) -> Vector:
        """The mean of the model's buffers."""
        weighted = [(each.weight, {BUFFERS: each.buffers}) for each in self.sums]
        return weighted_mean(weighted, BUFFERS)


@runtime_checkable
class SummingEngine(Protocol):
    """An engine whose workers add up uploads themselves, so that these need not travel."""

    def map_summed(
        self, method: Method, orders: Sequence[Order], plan: Plan, parts: int
    ) -> SummedRound:
        """Train the clients; return their results in partial sums, the results in the order of clients."""
        ...


def by_part(items: Sequence[_Item], parts: int) -> dict[int, list[_Item]]:
    """Group orders or results by the part of their clients, each in the order of clients."""
    found: dict[int, list[_Item]] = {}
    for item in sorted(items, key=lambda item: item.client):
        found.setdefault(item.client % parts, []).append(item)
    return dict(sorted(found.items()))


def add_up(part: int, results: list[Result], average: Literal["samples", "clients"]) -> PartialSum:
    """Add up one part; the results must be in the order of clients."""
    weights = shares(results, average)
    pairs = [(weights[r.client], {**r.upload, BUFFERS: r.buffers}) for r in results]
    means = {name: weighted_mean(pairs, name) for name in pairs[0][1]}
    buffers = means.pop(BUFFERS)
    return PartialSum(part, sum(weight for weight, _ in pairs), means, buffers)


def summed_here(results: list[Result], parts: int, method: Method) -> SummedRound:
    """Add up the results of an engine that does not do it itself."""
    groups = by_part(results, parts)
    return SummedRound(results, [add_up(k, some, method.average) for k, some in groups.items()])


def without_upload(result: Result) -> tuple[Result, int]:
    """Leave out of a result what is in a partial sum; return it with the bytes that were left out."""
    size = sum(tensor.nbytes for tensor in result.upload.values()) + result.buffers.nbytes
    return replace(result, upload={}, buffers=result.buffers[:0]), size


def check_summable(backbone: Backbone) -> None:
    """Refuse partial sums for a backbone that needs single uploads.

    Raises:
        IncompatibleError: If it does, or goes on with the model after the sum.
    """
    for each in backbones_in(backbone):
        if each.refines or not getattr(type(each).aggregate, "from_means", False):
            name = type(each).__name__
            raise IncompatibleError(
                f"partial_sums: {name} needs the upload of every client, not only their mean; leave it out"
            )

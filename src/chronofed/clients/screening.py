"""Screening: check every reply before it is aggregated.

A reply must have the names, shapes and types that the method produces on this model, which a dry run on one
sample shows, and its numbers must be finite; otherwise it is refused. Tensors that are far larger than what
other clients have ever sent are scaled down, not refused: a client whose data have just changed is unusual,
too. So one client has a bounded influence on the model, whatever it sends. A hostile client can still send a
wrong update of ordinary norm: ``clipped`` limits the damage, and nothing here detects it. Two methods whose
replies look the same (FedAvg and FedProx) cannot be told apart either; the transport compares fingerprints for
that.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_high
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import torch
from torch import Tensor

from chronofed.clients.client import Client
from chronofed.clients.messages import Exchange, Order, Result
from chronofed.core.bounds import LARGEST
from chronofed.core.config import Config, Count, Positive
from chronofed.core.types import Objective, Record, Samples, Task
from chronofed.methods.memories import Forget
from chronofed.methods.method import Method

Factor = Annotated[float, msgspec.Meta(gt=1, le=LARGEST)]
_Form = tuple[Exchange, tuple[tuple[str | int, ...], ...]]
MAX_CHARACTERS = 40
"""Characters of a client's text that a message quotes."""


class Screening(Config):
    """Limits beyond which a reply is scaled down or refused.

    Attributes:
        max_norm_factor: Maximum norm of a tensor in an upload, as a multiple of what is usual: the median of
            the largest norms that the other clients have sent so far. Larger tensors are scaled down.
        max_other_factor: The same for everything else: curvatures in an upload, buffers, records for a memory
            on the server, and probes for adaptive weights. These differ more between honest clients: where a
            model fits the data of one client and not of another, gradients differ by a factor of some hundreds.
        max_norm: Norm of a tensor in an upload above which a reply is refused, whatever the others send.
        max_size: Maximum number of samples that a client may claim to have.
        history: Number of clients whose largest norms are remembered; those that replied last stay.
    """

    max_norm_factor: Factor = 10.0
    max_other_factor: Factor = 1000.0
    max_norm: Positive = 1e6
    max_size: Count = 10_000_000
    history: Count = 10_000


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The expected form of a tensor.

    Attributes:
        dtype: Its data type.
        shape: Its shape; ``None`` for an axis that depends on the number of samples.
        value: The exact tensor, if it is the same for every client.
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    value: Tensor | None = None

    @property
    def nbytes(self) -> int | None:
        """Its size; ``None`` if that depends on the number of samples."""
        axes = [axis for axis in self.shape if axis is not None]
        return math.prod(axes) * self.dtype.itemsize if len(axes) == len(self.shape) else None

    def problem(self, tensor: Tensor) -> str | None:
        """Say in a few words what is wrong with a tensor; ``None`` if nothing is."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return "not a dense tensor"
        if tensor.dtype != self.dtype or not self._fits(tuple(tensor.shape)):
            got = _describe(tensor.dtype, tuple(tensor.shape))
            return f"expected {_describe(self.dtype, self.shape)}, got {got}"
        if self.value is not None and not torch.equal(tensor, self.value):
            return "does not match the model"
        # One pass is enough: a number that is not finite makes the sum not finite.
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64)):
            return "contains numbers that are not finite"
        return None

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (None, got) for want, got in zip(self.shape, shape, strict=True)
        )


@dataclass(slots=True)
class Screen:
    """Decides which replies of one run may be aggregated. Not thread-safe.

    Attributes:
        method: The method of the run.
        objective: A model that nobody else uses, for dry runs.
        sample: At least one sample of the clients' shape; its values do not matter.
        settings: The limits.
    """

    method: Method
    objective: Objective
    sample: Samples
    settings: Screening = field(default_factory=Screening)
    _specs: dict[_Form, dict[str, TensorSpec]] = field(init=False, default_factory=dict)
    _peaks: dict[str, dict[int, float]] = field(init=False, default_factory=dict)
    """Largest norm of every client, by exchange and tensor; what was scaled down counts as such."""

    @classmethod
    def on(cls, task: Task, method: Method, settings: Screening | None = None) -> Self:
        """Make a screen for a task that has at least one sample itself."""
        sample = task.samples(np.zeros(1, dtype=np.int64))
        return cls(method, task.objective(), sample, settings or Screening())

    def check(self, result: Result, order: Order, exchange: Exchange = "train") -> str | None:
        """Say in one line why a reply must be refused; ``None`` if it may be used."""
        if result.client != order.client:
            return f"client {result.client} answered an order for client {order.client}"
        return (
            self._wrong_number(result)
            or self._wrong_tensor(_tensors(result), self._expected(order, exchange))
            or self._too_large(result)
        )

    def clip(
        self, results: Sequence[Result], order: Order, exchange: Exchange = "train"
    ) -> tuple[list[Result], dict[int, str]]:
        """Scale down the tensors that are far larger than usual, and remember all norms.

        Usual is the median of the largest norms that the *other* clients have sent so far, in this round or
        before. Only the largest count, because updates get small while a model fits its data, and large again
        when the data change. A client cannot raise its own limit, and fewer than half of them cannot raise it
        together. A client that has always been alone is compared with itself.

        Args:
            results: Replies that passed :meth:`check`.
            order: One of the round's orders.
            exchange: The exchange that they answer.

        Returns:
            All results, and by client the reason why its reply was scaled down.
        """
        reasons: dict[int, str] = {}
        factors: dict[int, dict[str, float]] = {}
        for place, spec in self._expected(order, exchange).items():
            if not _has_norm(spec):
                continue
            peaks = self._peaks.setdefault(f"{exchange} {place}", {})
            norms = {r.client: _norm(_tensors(r)[place]) for r in results}
            for client, limit, why in list(self._too_long(place, peaks, norms)):
                factors.setdefault(client, {})[place] = limit / norms[client]
                reasons.setdefault(client, f"round {order.round}: {why}")
                norms[client] = limit
            self._remember(peaks, norms)
        return [_scaled(r, factors.get(r.client, {})) for r in results], reasons

    def reply_bytes(self, order: Order, exchange: Exchange = "train") -> int | None:
        """Return the size in bytes of a reply's tensors; ``None`` if it depends on the number of samples."""
        sizes = [spec.nbytes for spec in self._expected(order, exchange).values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def state_dict(self) -> Record:
        """Return the largest norm of every client, for a checkpoint."""
        return {
            name: torch.tensor(list(peaks.items()), dtype=torch.float64).reshape(-1, 2)
            for name, peaks in self._peaks.items()
        }

    def load_state_dict(self, state_dict: Record) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._peaks = {
            name: {int(client): norm for client, norm in pairs.tolist()}
            for name, pairs in state_dict.items()
        }

    def _wrong_number(self, result: Result) -> str | None:
        if type(result.size) is not int or not 1 <= result.size <= self.settings.max_size:
            allowed = f"1 to {self.settings.max_size} samples"
            return f"size: expected {allowed}, got {result.size!r:.{MAX_CHARACTERS}}"
        if type(result.key) is not int or not 0 <= result.key < 2**63:
            return f"key: expected a whole number from 0, got {result.key!r:.{MAX_CHARACTERS}}"
        return None

    def _wrong_tensor(
        self, tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]
    ) -> str | None:
        nonnegative = {
            "probe.information_loss_sq",
            *(f"upload.{name}" for name in self.method.composed.nonnegative),
        }
        for place in specs:
            if place not in tensors:
                return f"{place}: missing; a reply of another method?"
        for place, tensor in tensors.items():
            if place not in specs:
                return f"{place!r:.{MAX_CHARACTERS}}: not sent by this method; a reply of another method?"
            problem = specs[place].problem(tensor)
            if problem is not None:
                return f"{place}: {problem}"
            if place in nonnegative and (tensor < 0).any():
                return f"{place}: contains negative numbers"
        return None

    def _too_large(self, result: Result) -> str | None:
        for name, tensor in result.upload.items():
            norm = _norm(tensor) if tensor.is_floating_point() else 0.0
            if not norm <= self.settings.max_norm:
                limit = f"{self.settings.max_norm:g}"
                return f"upload.{name}: norm {norm:.3g} is above {limit} (max_norm)"
        return None

    def _expected(self, order: Order, exchange: Exchange) -> dict[str, TensorSpec]:
        """Return the expected tensors, from two dry runs: axes that differ depend on the number of samples."""
        # Clients that are sent parts of different sizes answer with them, too.
        form = exchange, tuple((name, *t.shape) for name, t in order.server.items())
        if form not in self._specs:
            one, other = (_tensors(self._dry_run(order, exchange, n)) for n in (2, 3))
            fixed = {f"record.{name}" for name in self.method.memory.constants}
            self._specs[form] = {
                place: tensor_spec(one[place], other[place], place in fixed) for place in one
            }
        return self._specs[form]

    def _dry_run(self, order: Order, exchange: Exchange, copies: int) -> Result:
        """Run one step of a client on a few copies of the sample; BatchNorm needs more than one."""
        samples = self.sample[torch.zeros(copies, dtype=torch.int64)]
        train = msgspec.structs.replace(order.train, steps=1, slow=0.0, batch_size="full")
        method = self.method
        # Other memories send nothing, and may be slow.
        if method.memory.location != "server":
            method = msgspec.structs.replace(method, memory=Forget())
        client = Client(method, replace(order, train=train), None, self.objective, samples, key=0)
        return client.prepare() if exchange == "prepare" else client.serve()[0]

    def _too_long(
        self, place: str, peaks: Mapping[int, float], norms: Mapping[int, float]
    ) -> Iterator[tuple[int, float, str]]:
        """Yield clients whose tensor is too long, with the limit and the reason."""
        curved = {f"upload.{name}" for name in self.method.composed.curvatures}
        update = place.startswith("upload.") and place not in curved
        setting = "max_norm_factor" if update else "max_other_factor"
        factor: float = getattr(self.settings, setting)
        known = {**peaks, **{c: max(x, peaks.get(c, 0.0)) for c, x in norms.items()}}
        # No client's limit is below this one, so only few need a median of their own.
        least = sorted(known.values())[(len(known) - 1) // 2] if len(known) > 1 else 0.0
        for client, norm in norms.items():
            if norm <= factor * least:
                continue
            others = [x for other, x in known.items() if other != client]
            usual = median_high(others) if others else peaks.get(client, 0.0)
            if usual and norm > factor * usual:
                limit = factor * usual
                why = f"norm {norm:.3g}, the median of others is {usual:.3g} ({setting} {factor:g})"
                yield client, limit, f"{place}: {why}"

    def _remember(self, peaks: dict[int, float], norms: Mapping[int, float]) -> None:
        for client, norm in sorted(norms.items()):
            # The latest come last.
            peaks[client] = max(norm, peaks.pop(client, 0.0))
        while len(peaks) > self.settings.history:
            del peaks[next(iter(peaks))]


def _scaled(result: Result, factors: Mapping[str, float]) -> Result:
    """Return a result with some tensors scaled, by their place in it."""
    changes: dict[str, Any] = {}
    for place, factor in factors.items():
        part, _, name = place.partition(".")
        if not name:
            changes[part] = result.buffers * factor
        else:
            record = changes.get(part, getattr(result, part))
            changes[part] = {**record, name: record[name] * factor}
    return replace(result, **changes) if changes else result


def _tensors(result: Result) -> dict[str, Tensor]:
    """Return all tensors of a reply by their place in it."""
    found = {"buffers": result.buffers}
    for part in ("upload", "record", "probe"):
        record: Record = getattr(result, part)
        found |= {f"{part}.{name}": tensor for name, tensor in record.items()}
    return found


def tensor_spec(one: Tensor, other: Tensor | None = None, fixed: bool = False) -> TensorSpec:
    """Return the form of tensors like one; axes that differ in another example are free."""
    pairs = zip(one.shape, (one if other is None else other).shape, strict=True)
    shape = tuple(a if a == b else None for a, b in pairs)
    return TensorSpec(one.dtype, shape, one if fixed else None)


def _has_norm(spec: TensorSpec) -> bool:
    return spec.dtype.is_floating_point and spec.value is None


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _describe(dtype: torch.dtype, shape: tuple[int | None, ...]) -> str:
    size = ", ".join("any" if n is None else str(n) for n in shape)
    return f"{str(dtype).removeprefix('torch.')} of shape ({size})"

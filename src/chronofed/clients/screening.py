"""Screening: check every reply before it is aggregated.

A reply must have the names, shapes and types that the method produces on this model, which a dry run on one
sample shows, and its numbers must be finite and of a plausible size. A hostile client can still send a wrong
update of ordinary norm: ``clipped`` limits the damage, and nothing here detects it. Two methods whose replies
look the same (FedAvg and FedProx) cannot be told apart either; the transport compares fingerprints for that.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Self

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
MIN_REPLIES = 3
"""Replies that a cohort needs for its median to count."""
_Form = tuple[Exchange, tuple[tuple[str | int, ...], ...]]
MAX_CHARACTERS = 40
"""Characters of a client's text that a message quotes."""


class Screening(Config):
    """Limits beyond which a reply is refused.

    Attributes:
        max_norm_factor: Maximum norm of a tensor in an upload, as a multiple of the median.
        max_other_factor: The same for everything else: curvatures in an upload, buffers, records for a memory
            on the server, and probes for adaptive weights. These differ more between honest clients: where a
            model fits the data of one client and not of another, gradients differ by a factor of some hundreds.
        max_norm: Maximum norm of a tensor in an upload, whatever the others send.
        max_size: Maximum number of samples that a client may claim to have.
        history: Number of recently accepted norms to remember; they help where fewer than 3 clients reply.
    """

    max_norm_factor: Factor = 10.0
    max_other_factor: Factor = 1000.0
    max_norm: Positive = 1e6
    max_size: Count = 10_000_000
    history: Count = 100


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
    _norms: dict[str, deque[float]] = field(init=False, default_factory=dict)

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

    def outliers(
        self, results: Sequence[Result], order: Order, exchange: Exchange = "train"
    ) -> dict[int, str]:
        """Return the clients whose replies are far larger than usual, each with the reason.

        Usual is the median norm of this cohort, if 3 or more clients replied, or of the norms accepted
        recently, whichever is larger. Without either, nobody is refused. Norms of the other clients are
        remembered.

        Args:
            results: Replies that passed :meth:`check`.
            order: One of the round's orders.
            exchange: The exchange that they answer.
        """
        specs = self._expected(order, exchange)
        found: dict[int, str] = {}
        norms: dict[str, dict[int, float]] = {}
        for place in (place for place, spec in specs.items() if _has_norm(spec)):
            norms[place] = {r.client: _norm(_tensors(r)[place]) for r in results}
            for client, why in self._far(f"{exchange} {place}", place, norms[place]):
                found.setdefault(client, f"round {order.round}: {why}")
        for place, by_client in norms.items():
            history = self._history(f"{exchange} {place}")
            history.extend(norm for client, norm in by_client.items() if client not in found)
        return found

    def state_dict(self) -> Record:
        """Return the norms accepted recently, for a checkpoint."""
        return {
            name: torch.tensor(list(history), dtype=torch.float64)
            for name, history in self._norms.items()
        }

    def load_state_dict(self, state_dict: Record) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._norms.clear()
        for name, norms in state_dict.items():
            self._history(name).extend(norms.tolist())

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

    def _far(self, name: str, place: str, norms: Mapping[int, float]) -> list[tuple[int, str]]:
        curved = {f"upload.{name}" for name in self.method.composed.curvatures}
        update = place.startswith("upload.") and place not in curved
        setting = "max_norm_factor" if update else "max_other_factor"
        factor: float = getattr(self.settings, setting)
        usual = self._usual(name, list(norms.values()))
        if not usual:
            return []
        return [
            (client, f"{place}: norm {x:.3g}, the median is {usual:.3g} ({setting} {factor:g})")
            for client, x in norms.items()
            if not x <= factor * usual
        ]

    def _usual(self, name: str, norms: list[float]) -> float:
        """Return the usual norm; 0 if it is not known."""
        now = median(norms) if len(norms) >= MIN_REPLIES else 0.0
        history = self._history(name)
        return max(now, median(history)) if history else now

    def _history(self, name: str) -> deque[float]:
        return self._norms.setdefault(name, deque(maxlen=self.settings.history))


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

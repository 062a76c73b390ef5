"""Which replies may be aggregated: what a client sends is looked at before the server believes it.

A reply must have the form that the method gives it on this model, which a rehearsal on one sample shows, and
numbers that are finite and of a plausible size. Beyond that a hostile client can still send a wrong update of
ordinary length: ``clipped`` limits what that can do, and nothing here finds it. Nor can two methods be told
apart whose replies look the same (FedAvg's and FedProx's): that is for whoever carries the messages.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Literal, Self, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor

from chronofed.config import Config, Count, Positive
from chronofed.memories import Forget
from chronofed.protocol import Client, Method, Order, Result
from chronofed.types import Objective, Record, Samples, Task

Exchange: TypeAlias = Literal["prepare", "train"]
Factor = Annotated[float, msgspec.Meta(gt=1)]
FEW = 3  # replies of which a median says something
SHOWN = 40  # characters of a name that somebody else chose


class Screening(Config):
    """How far a reply may be from the others before it is refused.

    Attributes:
        max_norm_factor: Longest entry of an upload, in units of the median length.
        max_other_factor: The same for everything else: buffers, records for the server's memory and reports
            for adaptive weights, which differ more between honest clients.
        max_norm: Longest vector of an upload, whatever the others send.
        max_size: Most samples that a client can claim to have.
        history: How many of the latest lengths are remembered; they stand in where fewer than 3 clients reply.
    """

    max_norm_factor: Factor = 10.0
    max_other_factor: Factor = 100.0
    max_norm: Positive = 1e6
    max_size: Count = 10_000_000
    history: Count = 100


@dataclass(frozen=True, slots=True)
class Form:
    """What a tensor must look like.

    Attributes:
        dtype: Its type.
        shape: Its shape; ``None`` where it depends on the number of samples.
        value: All of it, where it is the same for every client.
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    value: Tensor | None = None

    def complaint(self, tensor: Tensor) -> str | None:
        """What is wrong with a tensor, in a few words."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return "not a dense tensor"
        if tensor.dtype != self.dtype or not self._fits(tuple(tensor.shape)):
            got = _look(tensor.dtype, tuple(tensor.shape))
            return f"expected {_look(self.dtype, self.shape)}, got {got}"
        if self.value is not None and not torch.equal(tensor, self.value):
            return "not what follows from the model"
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64)):
            return "has numbers that are not finite"  # one pass: they make the sum so
        return None

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (None, got) for want, got in zip(self.shape, shape, strict=True)
        )


@dataclass(slots=True)
class Screen:
    """Decides which replies of one run may be aggregated; for one thread.

    Attributes:
        method: How clients learn.
        objective: A model of its own, to rehearse on.
        sample: One sample, or more, of the form that clients have; its values do not matter.
        settings: Where to draw the line.
    """

    method: Method
    objective: Objective
    sample: Samples
    settings: Screening = field(default_factory=Screening)
    _forms: dict[Exchange, dict[str, Form]] = field(init=False, default_factory=dict)
    _lengths: dict[str, deque[float]] = field(init=False, default_factory=dict)

    @classmethod
    def on(cls, task: Task, method: Method, settings: Screening | None = None) -> Self:
        """A screen for a task that has at least one sample itself."""
        sample = task.samples(np.zeros(1, dtype=np.int64))
        return cls(method, task.objective(), sample, settings or Screening())

    def check(self, result: Result, order: Order, exchange: Exchange = "train") -> str | None:
        """Why a reply to an order cannot be used, in one line; ``None`` if it can."""
        if result.client != order.client:
            return f"client {result.client} answers an order for client {order.client}"
        return (
            self._wrong_number(result)
            or self._wrong_tensor(_tensors(result), self._expected(order, exchange))
            or self._too_long(result)
        )

    def outliers(
        self, results: Sequence[Result], order: Order, exchange: Exchange = "train"
    ) -> dict[int, str]:
        """Clients whose replies, each of a form that passed :meth:`check`, are far larger than usual, and why.

        Usual is the median length of this cohort, if there are 3 or more, or of those accepted lately,
        whichever is larger. Where there is neither, nobody is refused. The others' lengths are remembered.
        """
        forms = self._expected(order, exchange)
        found: dict[int, str] = {}
        lengths: dict[str, dict[int, float]] = {}
        for place in (place for place, form in forms.items() if _has_length(form)):
            lengths[place] = {r.client: _length(_tensors(r)[place]) for r in results}
            for client, why in self._far(f"{exchange} {place}", place, lengths[place]):
                found.setdefault(client, f"round {order.round}: {why}")
        for place, by_client in lengths.items():
            history = self._history(f"{exchange} {place}")
            history.extend(length for client, length in by_client.items() if client not in found)
        return found

    def remembered(self) -> Record:
        """The lengths accepted lately, so that a checkpoint can hold them."""
        return {
            name: torch.tensor(list(history), dtype=torch.float64)
            for name, history in self._lengths.items()
        }

    def recall(self, remembered: Record) -> None:
        """Go on from what :meth:`remembered` gave."""
        self._lengths.clear()
        for name, lengths in remembered.items():
            self._history(name).extend(lengths.tolist())

    def _wrong_number(self, result: Result) -> str | None:
        if type(result.size) is not int or not 1 <= result.size <= self.settings.max_size:
            return f"size: expected 1 to {self.settings.max_size} samples, got {result.size!r:.{SHOWN}}"
        if type(result.key) is not int or not 0 <= result.key < 2**63:
            return f"key: expected a whole number from 0, got {result.key!r:.{SHOWN}}"
        return None

    def _wrong_tensor(self, tensors: Mapping[str, Tensor], forms: Mapping[str, Form]) -> str | None:
        counts = {"probe.loss", *(f"upload.{name}" for name in self.method.backbone.counts)}
        for place in forms:
            if place not in tensors:
                return f"{place}: missing; another method's reply?"
        for place, tensor in tensors.items():
            if place not in forms:
                return f"{place!r:.{SHOWN}}: not sent by this method; another method's reply?"
            complaint = forms[place].complaint(tensor)
            if complaint is not None:
                return f"{place}: {complaint}"
            if place in counts and (tensor < 0).any():
                return f"{place}: negative, but it counts or measures something"
        return None

    def _too_long(self, result: Result) -> str | None:
        for name, tensor in result.upload.items():
            length = _length(tensor) if tensor.is_floating_point() else 0.0
            if not length <= self.settings.max_norm:
                most = f"{self.settings.max_norm:g}"
                return f"upload.{name}: norm {length:.3g} is above {most} (max_norm)"
        return None

    def _expected(self, order: Order, exchange: Exchange) -> dict[str, Form]:
        """What a reply looks like, from two rehearsals: where they differ, the number of samples matters."""
        if exchange not in self._forms:
            one, other = (_tensors(self._rehearse(order, exchange, n)) for n in (2, 3))
            fixed = {f"kept.{name}" for name in self.method.memory.constants}
            self._forms[exchange] = {
                place: _form(one[place], other[place], place in fixed) for place in one
            }
        return self._forms[exchange]

    def _rehearse(self, order: Order, exchange: Exchange, copies: int) -> Result:
        """One step of a client with a few copies of the sample; BatchNorm needs more than one."""
        samples = self.sample[torch.zeros(copies, dtype=torch.int64)]
        train = msgspec.structs.replace(order.train, steps=1, slow=0.0, batch_size="full")
        method = self.method
        if method.memory.home != "server":  # it sends nothing, and may be slow
            method = msgspec.structs.replace(method, memory=Forget())
        client = Client(method, replace(order, train=train), None, self.objective, samples, key=0)
        return client.prepare() if exchange == "prepare" else client.serve()[0]

    def _far(self, name: str, place: str, lengths: Mapping[int, float]) -> list[tuple[int, str]]:
        setting = "max_norm_factor" if place.startswith("upload.") else "max_other_factor"
        factor: float = getattr(self.settings, setting)
        usual = self._usual(name, list(lengths.values()))
        if not usual:
            return []
        return [
            (client, f"{place}: norm {x:.3g}, the median is {usual:.3g} ({setting} {factor:g})")
            for client, x in lengths.items()
            if not x <= factor * usual
        ]

    def _usual(self, name: str, lengths: list[float]) -> float:
        """Zero where nothing is known."""
        now = median(lengths) if len(lengths) >= FEW else 0.0
        history = self._history(name)
        return max(now, median(history)) if history else now

    def _history(self, name: str) -> deque[float]:
        return self._lengths.setdefault(name, deque(maxlen=self.settings.history))


def _tensors(result: Result) -> dict[str, Tensor]:
    """Everything in a reply by its place."""
    found = {"buffers": result.buffers}
    for part in ("upload", "kept", "probe"):
        record: Record = getattr(result, part)
        found |= {f"{part}.{name}": tensor for name, tensor in record.items()}
    return found


def _form(one: Tensor, other: Tensor, fixed: bool) -> Form:
    pairs = zip(one.shape, other.shape, strict=True)
    shape = tuple(a if a == b else None for a, b in pairs)
    return Form(one.dtype, shape, one if fixed else None)


def _has_length(form: Form) -> bool:
    return form.dtype.is_floating_point and form.value is None


def _length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _look(dtype: torch.dtype, shape: tuple[int | None, ...]) -> str:
    size = ", ".join("any" if n is None else str(n) for n in shape)
    return f"{str(dtype).removeprefix('torch.')} of shape ({size})"

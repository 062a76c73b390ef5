r"""Surrogates: remembered objectives in the form that local steps use.

Every approximation of the paper has one of the first two forms, or both; distillation is the third:

* a quadratic, whose gradient is ``linear + diagonal * w``: the Taylor expansions of all remembered rounds
  collapse into these two vectors;
* weighted samples that are replayed together with the present ones;
* teachers: earlier models whose outputs on the samples of training are to stay as they were.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Generator, Tensor, inference_mode

from chronofed.core.types import Batch, OutputForm, Samples, Spans, Vector


@lru_cache(maxsize=256)
def equal_weights(n: int, total: float) -> Tensor:
    """Return equal weights of ``n`` samples; clients share the tensor, so it must not be changed."""
    # The cached tensor outlives the caller's inference mode.
    with inference_mode(mode=False):
        return torch.full((n,), total / n, dtype=torch.float64)


class Pool:
    r"""Weighted samples: the objective :math:`\sum_j a_j\, \ell(w; x_j, y_j)`, a source of mini-batches.

    Attributes:
        pieces: The samples in separate parts: an engine may join those of many clients at once.
        even: The sum of the weights, if all are known to be equal.
    """

    def __init__(
        self,
        samples: Samples | Sequence[Samples],
        weight: Tensor | None = None,
        even: float | None = None,
    ) -> None:
        self.pieces = (samples,) if isinstance(samples, Samples) else tuple(samples)
        self.even = even
        self._weight = weight
        self._length = sum(map(len, self.pieces))

    @property
    def weight(self) -> Tensor:
        """The samples' weights, ``(n,)`` in double precision; by default equal, with the sum ``even``."""
        if self._weight is None:
            assert self.even is not None
            self._weight = equal_weights(self._length, self.even)
        return self._weight

    @cached_property
    def samples(self) -> Samples:
        """All samples, joined on first use."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        x, y = ([getattr(piece, name) for piece in self.pieces] for name in ("x", "y"))
        return Samples(torch.cat(x), torch.cat(y), outputs=_joined_outputs(self.pieces))

    def __len__(self) -> int:
        return self._length

    def batches(self, size: int, generator: Generator) -> Iterator[Batch]:
        """Yield mini-batches for ever, each an unbiased estimate of the whole objective.

        Samples of equal weight are drawn without replacement, in shuffled epochs. Others are drawn with
        replacement, with a probability proportional to the absolute value of their weight, and have its sign.
        """
        for pick, weight in self.draws(size, generator):
            yield self.at(pick, weight)

    def draws(
        self, size: int, generator: Generator, least: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same mini-batches as positions in the pool, and weights.

        The last mini-batch of an epoch joins the one before it if it has fewer than ``least`` samples.
        """
        share = self._even() if self.even is None else self.even
        if share is not None:
            for pick in self._epochs(size, generator, least):
                yield pick, equal_weights(len(pick), share)
        else:
            total, sign = float(self.weight.abs().sum()), self.weight.sign()
            for pick in self._draws(size, generator):
                yield pick, sign[pick] * (total / pick.numel())

    def at(self, pick: Tensor, weight: Tensor) -> Batch:
        """Return the samples at some positions, with the given weights."""
        chosen = self.samples[pick]
        return Batch(chosen.x, chosen.y, weight, outputs=chosen.outputs)

    def whole(self) -> Batch:
        """Return the whole objective as one batch."""
        return Batch(self.samples.x, self.samples.y, self.weight, outputs=self.samples.outputs)

    def parts(self, size: int) -> Iterator[Batch]:
        """Yield the whole pool once, in parts, each sample with its own weight."""
        for pick in torch.split(torch.arange(len(self)), size):
            yield self.at(pick, self.weight[pick])

    def shuffled_parts(self, size: int, least: int = 1) -> Iterator[Batch]:
        """Yield the whole pool once, in the parts of an epoch; the order depends only on its length."""
        order = torch.randperm(len(self), generator=Generator().manual_seed(len(self)))
        for pick in split(order, size, least):
            yield self.at(pick, self.weight[pick])

    def _even(self) -> float | None:
        """Return the sum of the weights if all are equal."""
        low, high = (float(end) for end in self.weight.aminmax())
        return float(self.weight.sum()) if high - low <= 1e-9 * abs(high) else None

    def _epochs(self, size: int, generator: Generator, least: int) -> Iterator[Tensor]:
        while True:
            yield from split(torch.randperm(len(self), generator=generator), size, least)

    def _draws(self, size: int, generator: Generator) -> Iterator[Tensor]:
        while True:
            yield torch.multinomial(self.weight.abs(), size, replacement=True, generator=generator)


def _joined_outputs(pieces: Sequence[Samples]) -> Tensor | None:
    """Join the outputs that training is to keep; NaN for samples without, ``None`` if there are none at all."""
    known = [piece.outputs for piece in pieces if piece.outputs is not None]
    if not known:
        return None
    return torch.cat(
        [
            known[0].new_full((len(piece), known[0].shape[1]), torch.nan)
            if piece.outputs is None
            else piece.outputs
            for piece in pieces
        ]
    )


def split(order: Tensor, size: int, least: int = 1) -> Iterator[Tensor]:
    """Split positions into mini-batches; a last one of fewer than ``least`` joins the one before it.

    >>> [len(part) for part in split(torch.arange(65), 32)]
    [32, 32, 1]
    >>> [len(part) for part in split(torch.arange(65), 32, least=2)]
    [32, 33]
    """
    n = len(order)
    end = n - lone_samples(n, size, least)
    for start in range(0, end, size):
        yield order[start : start + size if start + size < end else n]


def lone_samples(samples: int, size: int, least: int) -> int:
    """Return the size of a last mini-batch of fewer than ``least`` samples; 0 if there is no other to join."""
    rest = samples % size
    return rest if rest < least and samples > size else 0


@dataclass(frozen=True, slots=True)
class Quadratic:
    r"""Taylor expansions of past objectives, collapsed: the gradient is ``linear + diagonal * w``.

    .. math::
        \sum_\tau p_\tau (g_\tau + h_\tau (w - w_\tau)) = a + b\,w, \qquad
        a = \sum_\tau p_\tau (g_\tau - h_\tau w_\tau), \quad b = \sum_\tau p_\tau h_\tau

    Attributes:
        spans: The parameters with a quadratic.
        scale: Factor of the present's gradient there, one number per span.
        linear: :math:`a`, of the parameters in ``spans``.
        diagonal: :math:`b`, likewise.
    """

    spans: Spans
    scale: tuple[float, ...]
    linear: Vector
    diagonal: Vector

    def add_gradient_(self, grad: Vector, params: Vector) -> None:
        """Turn the present's gradient into that of present and past, in place; ``(d,)`` or ``(clients, d)``."""
        start = 0
        for span, scale in zip(self.spans, self.scale, strict=True):
            part = slice(start, start + span.stop - span.start)
            here = grad[..., span]
            torch.add(self.linear[..., part], here, alpha=scale, out=here)
            here.addcmul_(self.diagonal[..., part], params[..., span])
            start = part.stop


@dataclass(frozen=True, slots=True)
class Teacher:
    r"""A model to distil from: it adds :math:`\lambda` times a distillation loss to the local objective.

    The loss is the mean over the samples of training, replayed ones included, each in proportion to the
    absolute value of its weight (:meth:`~chronofed.core.types.Objective.distilled`).

    Attributes:
        params: Its parameters; ``None`` for the server's model at the beginning of the round, with its buffers.
        weight: :math:`\lambda`. The loss has no factor :math:`T^2`: include it here, if you want it.
        temperature: :math:`T`.
        classes: Positions of the outputs that it may speak about, ``(k,)`` of int64; by default all.
        buffers: Its buffers; a model that has buffers needs them.
        form: The way in which outputs become probabilities. With ``targets`` these replace the labels of the
            classes, by the share ``weight``. With ``part`` the probabilities of ``classes`` among all are
            compared, with ``not-true`` those of all classes but the sample's own.
    """

    params: Vector | None
    weight: float
    temperature: float = 2.0
    classes: Tensor | None = None
    buffers: Vector | None = None
    form: OutputForm = "softmax"


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Changes that a local loss makes to the loss of single samples.

    Attributes:
        offset: Numbers that are added to all logits, ``(classes,)``.
        scale: Factors of all logits, ``(classes,)``, before the offset.
        factors: Factor of the loss of a sample of every class, ``(classes,)``.
        teachers: Models to distil from.
    """

    offset: Tensor | None = None
    scale: Tensor | None = None
    factors: Tensor | None = None
    teachers: tuple[Teacher, ...] = ()

    def applied(self, batch: Batch) -> Batch:
        """Return a mini-batch with these terms, besides an offset that it has."""
        offset, weight = batch.offset, batch.weight
        if self.offset is not None:
            offset = self.offset if offset is None else offset + self.offset
        if self.factors is not None:
            weight = weight * self.factors[batch.y.cpu()]
        return replace(batch, weight=weight, offset=offset, scale=self.scale)


@dataclass(frozen=True, slots=True)
class Surrogate:
    r"""The weight of the present :math:`p_t`, and the past :math:`\sum_\tau p_\tau \tilde f_\tau`.

    Attributes:
        present: Weight of the present samples.
        replay: Samples of the past; their weights sum to the past's share of the objective.
        quadratic: The past as a quadratic function of the parameters.
        teachers: Models to distil from.
        keep: Factor of the loss that keeps the outputs of replayed samples, in proportion to their weights.
    """

    present: float = 1.0
    replay: Pool | None = None
    quadratic: Quadratic | None = None
    teachers: tuple[Teacher, ...] = ()
    keep: float = 0.0

    def taught_by(self, params: Vector, buffers: Vector) -> "Surrogate":
        """Return the surrogate with the server's model in place of teachers without parameters."""
        if all(teacher.params is not None for teacher in self.teachers):
            return self
        teachers = (
            teacher
            if teacher.params is not None
            else replace(teacher, params=params, buffers=buffers)
            for teacher in self.teachers
        )
        return replace(self, teachers=tuple(teachers))

    def pool(self, samples: Samples) -> Pool:
        """Return the present samples together with those to replay."""
        if self.replay is None:
            return Pool(samples, even=self.present)
        past, weight = self.replay, equal_weights(len(samples), self.present)
        return Pool((samples, *past.pieces), torch.cat([weight, past.weight]))

    def add_gradient_(self, grad: Vector, params: Vector) -> None:
        """Add the gradient of the quadratic part in place."""
        if self.quadratic is not None:
            self.quadratic.add_gradient_(grad, params)

"""CFL-Regularization: second-order Taylor expansions of past objectives."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
import torch
from torch import Generator

from chronofed.core.config import Count, NonNegative
from chronofed.core.flat import take
from chronofed.core.stacking import stacked, works_stacked
from chronofed.core.types import Objective, Record, Samples, Spans, Vector
from chronofed.methods.memories.base import Location, Memory, MemoryItem, Moment, timeline
from chronofed.methods.memories.curvature import Curvature, Hutchinson, MeanLoss
from chronofed.methods.memories.expansion import (
    CONSTANTS,
    chosen_layers,
    constants,
    quadratic,
    spans_of,
    summed,
)
from chronofed.methods.memories.selection import uniform
from chronofed.methods.surrogate import Quadratic, Surrogate
from chronofed.methods.weighting import RoundWeights

# Client and data set of a merged round.
NOBODY = -1


def top_layers() -> dict[str, float]:
    """Return the paper's choice: the last layer, and a little of the block before it."""
    return {"fc.*": 1.0, "layer4.*": 0.1}


class Taylor(Memory, tag="taylor"):
    r"""Keeps the Taylor expansion of each past objective, its gradient and curvature, on the server.

    With the model :math:`\hat w_\tau` at the end of local training, :math:`g_\tau = \nabla f_\tau(\hat w_\tau)`
    and :math:`h_\tau \approx \mathrm{diag}\,\nabla^2 f_\tau(\hat w_\tau)` (``bounded approximation error``),

    .. math:: \nabla\tilde f_\tau(w) = g_\tau + h_\tau (w - \hat w_\tau).

    The parameters of a layer with strength :math:`\beta` descend

    .. math:: (1 - \beta (1 - p_t))\, \nabla f_t(w) + \beta \sum_{\tau<t} p_\tau \nabla\tilde f_\tau(w),

    and all others :math:`\nabla f_t(w)` alone. The sum collapses into two vectors
    (:class:`~chronofed.methods.surrogate.Quadratic`), so messages do not grow with the number of records.

    Where the summed curvature :math:`\sum_\tau p_\tau h_\tau` of a parameter is negative, it counts as 0: the
    past has the constant gradient :math:`\sum_\tau p_\tau g_\tau` there, and is not unbounded below. Records
    keep their signs. Clamped one by one, estimates that are noisy but right on average would sum to several
    times the curvature; signed ones average out, and the sum is clamped once.

    A record belongs to one client in one round: a data set that comes back adds a record.

    Attributes:
        curvature: Estimator of the Hessian's diagonal.
        layers: Strength of the past for parameters whose name matches a pattern such as ``layer4.*``; the first
            match applies. ``{"*" = 1.0}`` is the paper's CFL-Regularization-Full. At most 1 in mode ``theory``,
            where the past replaces a part of the present.
        buffer: Number of latest records or rounds to keep.
        unit: ``records``: keep the records of clients one by one. ``rounds``: keep the mean of each round,
            weighted by number of samples; a client cannot be deleted from a mean.
        samples: Number of random samples from which an expansion is computed; by default all present ones.
            Fewer are cheaper and noisier.
        mode: Role of the past. ``theory``: it has the round weights, as above. ``practice``: the present has
            its full weight, and the past is a regulariser, the weighted mean of all expansions times the
            layer's strength. The paper does not say if it uses the mean or the sum: a sum is a strength
            ``buffer`` times as large.
        clamp: Whether a negative sum of curvatures counts as 0. The price is a third vector in every record,
            unless the curvature is never negative (``fisher``, ``squared-gradient``).
    """

    location: ClassVar[Location] = "server"
    constants: ClassVar[tuple[str, ...]] = CONSTANTS
    reference: ClassVar[str] = "Kirkpatrick et al. (2017), EWC; Guo et al., CFL-Regularization"

    curvature: Curvature = Hutchinson()
    layers: dict[str, NonNegative] = msgspec.field(default_factory=top_layers)
    buffer: Count = 40
    unit: Literal["records", "rounds"] = "records"
    mode: Literal["theory", "practice"] = "theory"
    samples: Count | None = None
    clamp: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "theory" and any(strength > 1 for strength in self.layers.values()):
            msg = "Taylor.layers: strengths above 1 need mode = 'practice'; in 'theory' 1 is all of the past"
            raise ValueError(msg)

    def __hash__(self) -> int:
        # A dict cannot be hashed.
        layers = frozenset(self.layers.items())
        others = (self.buffer, self.unit, self.mode, self.samples, self.clamp)
        return hash((self.curvature, layers, *others))

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Check that a pattern matches a parameter."""
        list(chosen_layers(self.layers, objective.names))

    @stacked
    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Expand around ``params``; the record also has the spans and strengths that the server needs."""
        chosen = list(chosen_layers(self.layers, objective.names))
        if not chosen:
            return {}
        return self._expansion(
            chosen, objective, params, self._drawn(samples, generator), generator
        )

    def observe_together(
        self,
        objective: Objective,
        params: Vector,
        samples: Sequence[Samples],
        generators: Sequence[Generator],
    ) -> Sequence[Record] | None:
        """Expand for many clients: all with the same number of samples at once."""
        chosen = list(chosen_layers(self.layers, objective.names))
        if not chosen or not works_stacked(self.curvature.expand):
            return None
        drawn = list(map(self._drawn, samples, generators))
        records: dict[int, Record] = {}
        for group in _by_length(drawn):
            alike = Samples(
                *(torch.stack([getattr(drawn[i], n) for i in group]) for n in ("x", "y"))
            )
            some = params if len(group) == len(drawn) else params[group]
            together = self._expansion(chosen, objective, some, alike, generators[0])
            records |= {i: _row(together, row) for row, i in enumerate(group)}
        return [records[i] for i in range(len(drawn))]

    def _drawn(self, samples: Samples, generator: Generator) -> Samples:
        """Draw the samples from which an expansion is computed."""
        if self.samples is None or len(samples) <= self.samples:
            return samples
        return samples[uniform(len(samples), self.samples, generator)]

    def _expansion(
        self,
        chosen: Sequence[tuple[slice, float]],
        objective: Objective,
        params: Vector,
        samples: Samples,
        generator: Generator,
    ) -> Record:
        """Expand for one client, or for many: then the vectors have a row for each."""
        spans = tuple(span for span, _ in chosen)
        loss = MeanLoss(objective, params, samples, spans)
        gradient, diagonal = self.curvature.expand(loss, generator)
        vectors = {"linear": gradient - diagonal * take(params, spans), "diagonal": diagonal}
        if self.clamp and not self.curvature.nonnegative:
            vectors["gradient"] = gradient
        return {**vectors, **constants(chosen)}

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: Generator
    ) -> tuple[MemoryItem, ...]:
        """Keep the latest records, or rounds."""
        del generator
        added = new if self.unit == "records" else [_merged(new)]
        return (*kept, *added)[-self.buffer :]

    def recalled(self, kept: tuple[MemoryItem, ...], moment: Moment) -> tuple[MemoryItem, ...]:
        """Return all items: a record of a data set that comes back counts like any other."""
        return kept

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Collapse all expansions into one quadratic."""
        p = weights(timeline(kept, moment))[:-1]
        past_share = float(p.sum())
        practice = self.mode == "practice"
        if practice:
            p = p / past_share if past_share > 0 else 0 * p
        if not p.any():
            return Surrogate()
        records = [item.record for item in kept]
        return Surrogate(quadratic=_collapsed(records, p.tolist(), 0.0 if practice else past_share))

    def covered(self, objective: Objective, params: Vector) -> Spans:
        """Return the parameters of the chosen layers; all if every strength is 0."""
        chosen = tuple(span for span, _ in chosen_layers(self.layers, objective.names))
        return chosen or super().covered(objective, params)

    def approximate(
        self,
        objective: Objective,
        params: Vector,
        item: MemoryItem,
    ) -> tuple[Spans, Vector]:
        r"""Compute the expansion's gradient :math:`g_\tau + h_\tau (w - \hat w_\tau)`."""
        record = item.record
        spans = spans_of(record)
        return spans, torch.addcmul(record["linear"], record["diagonal"], take(params, spans))


def _by_length(several: Sequence[Samples]) -> list[list[int]]:
    """Group positions by the number of samples."""
    groups: dict[int, list[int]] = {}
    for i, samples in enumerate(several):
        groups.setdefault(len(samples), []).append(i)
    return list(groups.values())


def _row(record: Record, i: int) -> Record:
    """Copy one client's record from that of many, which can then be freed."""
    return {**record, **{name: record[name][i].clone() for name in _vectors(record)}}


def _vectors(record: Record) -> list[str]:
    """Return the names of the vectors of an expansion, which are summed."""
    return [name for name in record if name not in CONSTANTS]


def _collapsed(records: Sequence[Record], p: Sequence[float], share: float) -> Quadratic:
    """Sum expansions with weights ``p``; the past replaces ``share`` of the present."""
    sums = {name: summed(records, p, name) for name in _vectors(records[-1])}
    linear, diagonal = sums["linear"], sums["diagonal"]
    if "gradient" in sums:
        # Where the curvature is taken away, its part of the linear term goes, too.
        linear = torch.where(diagonal < 0, sums["gradient"], linear)
        diagonal.clamp_(min=0)
    return quadratic(records[-1], linear, diagonal, share)


def _merged(new: Sequence[MemoryItem]) -> MemoryItem:
    """Merge a round into one item: the mean of its clients' expansions, weighted by number of samples."""
    size, records = sum(k.size for k in new), [k.record for k in new]
    p = [k.size / size for k in new]
    means = {name: summed(records, p, name) for name in _vectors(records[0])}
    return MemoryItem(new[0].round, NOBODY, NOBODY, size, {**records[0], **means})

"""EWC: a quadratic around the model at the end of every past data set."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
import torch
from torch import Generator

from chronofed.core.config import Fraction, NonNegative
from chronofed.core.flat import take
from chronofed.core.types import Objective, Record, Samples, Spans, Vector
from chronofed.methods.memories.base import (
    SEVERAL,
    Location,
    Memory,
    MemoryItem,
    Moment,
    timeline,
)
from chronofed.methods.memories.curvature import Curvature, Fisher, MeanLoss
from chronofed.methods.memories.expansion import (
    CONSTANTS,
    chosen_layers,
    constants,
    quadratic,
    spans_of,
    summed,
)
from chronofed.methods.surrogate import Quadratic, Surrogate
from chronofed.methods.weighting import RoundWeights


def all_layers() -> dict[str, float]:
    """Return the publication's choice: all parameters alike."""
    return {"*": 1.0}


class Ewc(Memory, tag="ewc"):
    r"""Keeps the model and its Fisher diagonal at the end of every past data set, on the client.

    .. math::
        \text{separate:}\; f_t(w) + \frac{\lambda}{2} \sum_{\tau<t} F_\tau (w - w_\tau)^2, \qquad
        \text{online:}\; f_t(w) + \frac{\lambda}{2} \bar F_{t-1} (w - w_{t-1})^2, \quad
        \bar F_\tau = \gamma \bar F_{\tau-1} + F_\tau

    It is ``taylor`` in mode ``practice`` without the gradients :math:`g_\tau`, on the client, and a sum where
    ``taylor`` has a mean. The present keeps its full weight, and the strength is :math:`\lambda`. Of the round
    weights it matters only which are zero: such data sets do not count.

    While a data set is present its record is replaced, round after round, and not used. When it has gone, the
    form ``online`` adds it to the sum of all finished ones; a data set that comes back later is added again.

    Nothing travels. A client keeps two models for every data set (``online``: four in all). A request to delete
    a sample removes the record of its data set; ``online`` cannot take it out of the sum and drops the sum.

    The Fisher diagonal ``fisher`` has the labels of the data, as usual; the publication draws them from the
    model. Public code differs: Avalanche squares the mean gradient of a batch, so that it depends on the size
    of the batches, and has no factor 1/2. So :math:`\lambda` cannot be carried over.

    Attributes:
        strength: Weight :math:`\lambda` of the past; 0 is no memory.
        form: ``separate``: one record for every data set. ``online``: one sum, around the latest model.
        decay: Share :math:`\gamma` of the sum that is kept when a data set is added; only for ``online``.
        curvature: Estimator of the diagonal. Where the sum is negative it counts as 0.
        layers: Factor of the strength for parameters whose name matches a pattern such as ``fc.*``; the first
            match applies. By default all parameters, alike.
    """

    location: ClassVar[Location] = "client"
    constants: ClassVar[tuple[str, ...]] = CONSTANTS
    reference: ClassVar[str] = (
        "Kirkpatrick et al. (2017), Overcoming Catastrophic Forgetting in Neural Networks; "
        "Schwarz et al. (2018), Progress & Compress (online)"
    )

    strength: NonNegative = 1.0
    form: Literal["separate", "online"] = "separate"
    decay: Fraction = 1.0
    curvature: Curvature = Fisher()
    layers: dict[str, NonNegative] = msgspec.field(default_factory=all_layers)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "separate" and self.decay != 1.0:
            raise ValueError("Ewc.decay: only form = 'online' has one sum that decays")

    def __hash__(self) -> int:
        # A dict cannot be hashed.
        layers = frozenset(self.layers.items())
        return hash((self.strength, self.form, self.decay, self.curvature, layers))

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Check that a pattern matches a parameter."""
        list(chosen_layers(self.layers, objective.names))

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Keep the parameters and their curvature."""
        chosen = list(chosen_layers(self.layers, objective.names))
        if not chosen or not self.strength:
            return {}
        spans = tuple(span for span, _ in chosen)
        loss = MeanLoss(objective, params, samples, spans)
        _, diagonal = self.curvature.expand(loss, generator)
        record = {"anchor": take(params, spans).clone(), "diagonal": diagonal}
        sources = {} if samples.rows is None else {"sources": samples.rows}
        return {**record, **constants(chosen), **sources}

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: Generator
    ) -> tuple[MemoryItem, ...]:
        """Replace the record of the same data set; ``online`` adds that of another to the sum."""
        if self.form == "separate":
            return super().retain(kept, new, generator)
        (present,) = new
        return (*self._finished([k for k in kept if k.key != present.key]), present)

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Collapse the records of other data sets into one quadratic."""
        recalled = self.recalled(kept, moment)
        p = weights(timeline(recalled, moment))[:-1]
        counted = [item for item, weight in zip(recalled, p, strict=True) if weight]
        if self.form == "online":
            counted = self._finished(counted)
        if not counted:
            return Surrogate()
        return Surrogate(quadratic=self._collapsed([item.record for item in counted]))

    def covered(self, objective: Objective, params: Vector) -> Spans:
        """Return the parameters of the chosen layers; all if every factor is 0."""
        chosen = tuple(span for span, _ in chosen_layers(self.layers, objective.names))
        return chosen or super().covered(objective, params)

    def approximate(
        self, objective: Objective, params: Vector, item: MemoryItem
    ) -> tuple[Spans, Vector]:
        r"""Compute the gradient :math:`F_\tau (w - w_\tau)`."""
        record, spans = item.record, spans_of(item.record)
        return spans, record["diagonal"] * (take(params, spans) - record["anchor"])

    def _collapsed(self, records: Sequence[Record]) -> Quadratic:
        r"""Return the gradient :math:`\lambda \sum_\tau F_\tau (w - w_\tau)`."""
        linear = torch.zeros_like(records[0]["anchor"])
        for record in records:
            linear.addcmul_(record["diagonal"], record["anchor"], value=-self.strength)
        diagonal = summed(records, [self.strength] * len(records), "diagonal")
        linear[diagonal < 0] = 0
        return quadratic(records[-1], linear, diagonal.clamp_(min=0), share=0.0)

    def _finished(self, items: Sequence[MemoryItem]) -> list[MemoryItem]:
        """Merge two items at most, the older first, into the sum of all finished data sets."""
        if not items:
            return []
        *earlier, latest = items
        size, record = latest.size, dict(latest.record)
        for one in earlier:
            size += one.size
            record["diagonal"] = one.record["diagonal"] * self.decay + record["diagonal"]
            if "sources" in record:
                record["sources"] = torch.cat([one.record["sources"], record["sources"]])
        return [MemoryItem(latest.round, latest.client, SEVERAL, size, record)]

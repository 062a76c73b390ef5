"""CDA-FedAvg: replay samples of every concept, where a detector says which data sets are of one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from chronofed.core.config import Count
from chronofed.core.errors import SpecError
from chronofed.core.types import Batch, Objective, Record, Samples, Spans, Vector
from chronofed.methods.detectors import BetaRatio
from chronofed.methods.memories.base import SEVERAL, Location, Memory, MemoryItem, Moment
from chronofed.methods.memories.replay import replay
from chronofed.methods.memories.selection import admitted, uniform
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import RoundWeights

NOTED = "confidence"
LATEST = "latest"
STATE = "detector_"


class Concepts(Memory, tag="concepts"):
    r"""Keeps a few samples of every concept on the client and replays them, where changes are detected.

    When a data set comes for the first time, the confidences :math:`c_j` of the model that arrived, before it
    is trained on these samples, continue the stream of the detector. Without a change the data set belongs to
    the present concept: its samples enter the uniform sample, of ``size``, of all data sets of that concept.
    After a change, the samples that follow it begin another concept. A data set that comes back makes its
    concept the present one. Samples of the present data set are not replayed.

    .. math:: c_j = e^{-\ell(w_t; x_j, y_j)} \quad (\text{label}), \qquad
        c_j = \max_k\, \mathrm{softmax}(z_j)_k \quad (\text{prediction})

    For a classification the first is the probability of the true class. The confidence of the prediction needs
    no labels, as in the publication, and misses a change that leaves it as it is, such as classes that are
    swapped.

    Samples count in the order in which the client holds them. Those of an earlier data set that the detector
    assigns to a new concept only now stay with the former one.

    It is the memory of CDA-FedAvg; with ``fedavg`` it is that system but for its asynchrony, for which there
    are ``slow``, the membership ``available`` and late replies on Flower. Nothing travels. A client keeps
    ``size`` samples for every concept and the detector's numbers, and makes one more pass over its data in a
    round. A request to delete a sample that the detector compares with lets the detector start anew.

    Attributes:
        size: Samples to keep of each concept.
        detector: Finds a fall of the confidence.
        confidence: What the detector follows.
    """

    location: ClassVar[Location] = "client"
    previews: ClassVar[bool] = True
    reference: ClassVar[str] = BetaRatio.reference

    size: Count = 100
    detector: BetaRatio = BetaRatio()
    confidence: Literal["label", "prediction"] = "label"

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Check that predictions have a confidence."""
        if self.confidence == "prediction" and samples.y.is_floating_point():
            raise SpecError("method.memory.confidence: 'prediction' needs classes; use 'label'")

    def preview(self, objective: Objective, params: Vector, samples: Samples) -> Record:
        """Note the confidence in every sample."""
        if self.confidence == "label":
            found = torch.exp(-objective.losses(params, Batch.mean(samples)).double())
        else:
            found = objective.logits(params, samples.x).double().softmax(1).amax(1)
        return {NOTED: found}

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Return all samples; :meth:`retain` selects some of them."""
        record = {"x": samples.x, "y": samples.y}
        return record if samples.rows is None else {**record, "rows": samples.rows}

    def recalled(self, kept: tuple[MemoryItem, ...], moment: Moment) -> tuple[MemoryItem, ...]:
        """Return the concepts, without samples of the present data set."""
        present = -1 if moment.key is None else moment.key
        others = [_only(item, item.record["of"].ne(present)) for item in _concepts(kept)]
        return tuple(item for item in others if len(item.record["of"]))

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay the kept samples, each concept with the weight of its latest round."""
        return replay(self.recalled(kept, moment), weights, moment)

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: Generator
    ) -> tuple[MemoryItem, ...]:
        """Add the present data set to a concept, which comes last but for the detector's state."""
        (item,) = new
        concepts, state = _concepts(kept), _state(kept)
        latest = state.get(LATEST, torch.tensor([-1])).tolist()
        found = [k for k in concepts if (k.record["of"] == item.key).any()]
        if not found and latest == [item.key]:
            found = concepts[-1:]
        if found:
            return self._again(concepts, found[-1], state, item)
        state, after = self._detected(state, item)
        samples, first = _named(item), item.size - after
        head, tail = (
            {n: t[part] for n, t in samples.items()} for part in (slice(first), slice(first, None))
        )
        if first:
            present = concepts.pop() if concepts else None
            concepts.append(self._joined(present, head, item, generator))
        if after:
            concepts.append(self._joined(None, tail, item, generator))
        return (*concepts, replace(item, key=SEVERAL, size=0, record=state))

    def approximate(
        self, objective: Objective, params: Vector, item: MemoryItem
    ) -> tuple[Spans, Vector]:
        """Compute the mean gradient of as many samples as are kept; of a new data set, evenly spaced ones."""
        n = len(item.record["y"])
        pick = torch.arange(min(n, self.size)) * n // min(n, self.size)
        samples = {name: item.record[name][pick] for name in ("x", "y")}
        return super().approximate(objective, params, replace(item, record=samples))

    def _detected(self, state: Record, item: MemoryItem) -> tuple[Record, int]:
        """Return the detector's next state, and the number of samples that begin another concept."""
        values, record = item.record[NOTED], item.record
        kept = {n.removeprefix(STATE): t for n, t in state.items() if n.startswith(STATE)}
        known, change = self.detector.update(kept or self.detector.init(), values)
        left = len(known["values"])
        named = {STATE + name: tensor for name, tensor in known.items()}
        named[LATEST] = torch.tensor([item.key])
        if "rows" in record:
            none = record["rows"][:0]
            named["sources"] = torch.cat([state.get("sources", none), record["rows"]])[-left:]
        return named, 0 if change is None else min(left, len(values))

    def _again(
        self, concepts: list[MemoryItem], present: MemoryItem, state: Record, item: MemoryItem
    ) -> tuple[MemoryItem, ...]:
        """Make a known concept the present one; the detector starts anew if it was another."""
        others = [k for k in concepts if k is not present]
        if present is not concepts[-1]:
            state = {LATEST: torch.tensor([item.key])}
        last = replace(
            item, key=SEVERAL, size=0, record={**state, LATEST: torch.tensor([item.key])}
        )
        return (*others, replace(present, round=item.round), last)

    def _joined(
        self, concept: MemoryItem | None, samples: Record, item: MemoryItem, generator: Generator
    ) -> MemoryItem:
        """Add samples of a data set to the uniform sample of a concept, or begin one."""
        seen, new = 0 if concept is None else concept.size, len(samples["of"])
        entering = admitted(seen, new, self.size, generator)
        pick = uniform(new, entering, generator)
        record = {name: tensor[pick] for name, tensor in samples.items()}
        if concept is not None:
            old, staying = concept.record, min(self.size, seen + new) - entering
            pick = uniform(len(old["of"]), staying, generator)
            record = {name: torch.cat([old[name][pick], record[name]]) for name in record}
        return replace(item, key=SEVERAL, size=seen + new, record=record)


def _concepts(kept: Sequence[MemoryItem]) -> list[MemoryItem]:
    """Return the items that hold samples of a concept, the present one last."""
    return [item for item in kept if "of" in item.record]


def _state(kept: Sequence[MemoryItem]) -> Record:
    """Return the detector's state and the latest data set; empty if there is none, or it was deleted."""
    return next((item.record for item in kept if LATEST in item.record), {})


def _named(item: MemoryItem) -> Record:
    """Return the samples of a data set, each with its key."""
    samples = {name: tensor for name, tensor in item.record.items() if name != NOTED}
    return {**samples, "of": torch.full((item.size,), item.key)}


def _only(item: MemoryItem, mask: Tensor) -> MemoryItem:
    """Return an item with some of its samples."""
    return replace(item, record={name: tensor[mask] for name, tensor in item.record.items()})

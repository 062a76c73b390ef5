"""CFL-Core-Set: replay a few real samples of every past data set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from chronofed.core.config import Count, NonNegative
from chronofed.core.errors import SpecError
from chronofed.core.types import Objective, Record, Samples, Spans, Vector
from chronofed.methods.memories.base import Location, Memory, MemoryItem, Moment
from chronofed.methods.memories.replay import replay
from chronofed.methods.memories.selection import (
    admitted,
    balanced,
    group_codes,
    herding,
    turns,
    uniform,
)
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import RoundWeights


class CoreSet(Memory, tag="core-set"):
    r"""Keeps a few samples of each past data set on the client and replays them.

    The approximation :math:`\tilde f_\tau` of a past objective is their mean loss.

    A data set that comes back replaces what was kept of it, and while it is present it is not replayed. The
    round weights decide how much past samples count: with ``merged`` as much as present ones (the paper's
    union).

    A reservoir is one uniform sample of all that the client ever saw: ``size`` samples in total, whatever the
    number of data sets. A data set that comes back is not counted again. A sample that is in several
    overlapping data sets counts once for each.

    Where targets are numbers, ten bins of the data set's own targets, with equally many samples, stand for
    classes.

    Attributes:
        size: Samples to keep of each data set (100 in the paper's main runs); for ``reservoir``, in total.
        select: Samples to keep. ``uniform``: random ones without replacement, the paper's "naive". ``herding``:
            iCaRL, those whose mean features are nearest to the mean of their class, with classes in proportion.
            ``balanced``: random ones, as equally many of every class as possible. ``reservoir``: a uniform
            sample of all data sets together.
        limit: Most samples that a client keeps in total. Beyond it the shares of all data sets shrink equally,
            and the least important samples are dropped: the last that herding chose, otherwise random ones.
            With more data sets than ``limit``, the latest keep one sample each and the others none.
        keep_rounds: Data sets that were seen more rounds ago than this are not replayed, and are removed at the
            client's next visit.
        layer: Module of the model, such as ``layer4``, whose inputs are the features of ``herding``; by default
            the last linear layer.
        keep_logits: Weight :math:`\alpha` of DER++: the outputs of the model at the end of the round are kept
            with the samples, and :math:`\alpha` times the mean squared difference from them is added to the
            loss of each. They help where data sets do not come back; the publication has 0.1 to 0.5. A sample
            keeps as many numbers more as there are outputs, and the batched engine does not serve it.
        by: Whose shares of ``limit`` are equal: every ``data-set``'s, or every ``class``'s (iCaRL), whatever
            the data sets that it came with. With ``class``, set ``size`` as large as ``limit``.
    """

    location: ClassVar[Location] = "client"
    reference: ClassVar[str] = (
        "Rebuffi et al. (2017), iCaRL; Guo et al., CFL-Core-Set; Buzzega et al. (2020), Dark Experience for "
        "General Continual Learning"
    )

    size: Count = 100
    select: Literal["uniform", "herding", "reservoir", "balanced"] = "uniform"
    limit: Count | None = None
    keep_rounds: Count | None = None
    layer: str | None = None
    by: Literal["data-set", "class"] = "data-set"
    keep_logits: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None and self.select != "herding":
            msg = f"CoreSet.layer: only select = 'herding' uses features, not {self.select!r}"
            raise ValueError(msg)
        if self.by == "class" and self.limit is None:
            raise ValueError("CoreSet.by: 'class' shares a limit; set limit, such as limit = 2000")
        for name in ("limit", "keep_rounds"):
            if self.select == "reservoir" and getattr(self, name) is not None:
                msg = (
                    f"CoreSet.{name}: a reservoir is one sample, of size {self.size}, of all that was ever "
                    f"seen; remove {name} or choose another select"
                )
                raise ValueError(msg)

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Check that the model has the layer of herding, and that there are classes to share a limit."""
        if self.by == "class" and samples.y.is_floating_point():
            raise SpecError("method.memory.by: 'class' needs classes, but targets are numbers")
        if self.select == "herding":
            self._features(objective, params, samples)

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Select the samples to keep, the most important first."""
        if self.select == "herding":
            features, codes = self._features(objective, params, samples), group_codes(samples.y)
            pick = herding(features, codes, self.size)
        elif self.select == "balanced":
            pick = balanced(group_codes(samples.y), self.size, generator)
        else:
            pick = uniform(len(samples), self.size, generator)
        chosen = samples[pick]
        record = {"x": chosen.x, "y": chosen.y}
        if self.keep_logits:
            record["logits"] = objective.logits(params, chosen.x).cpu().clone()
        if chosen.rows is None:
            return record
        if self.select == "reservoir":
            record["reservoir"] = torch.ones(len(chosen), dtype=torch.bool)
        return {**record, "rows": chosen.rows}

    def recalled(self, kept: tuple[MemoryItem, ...], moment: Moment) -> tuple[MemoryItem, ...]:
        """Return the items of other data sets that have samples left and are not too old."""
        return super().recalled(self._fresh(kept, moment.round), moment)

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay the kept samples of other data sets, each with the weight of its round."""
        found = replay(self.recalled(kept, moment), weights, moment)
        return replace(found, keep=self.keep_logits) if self.keep_logits else found

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: Generator
    ) -> tuple[MemoryItem, ...]:
        """Add items, and drop what is too old or too much."""
        if self.select == "reservoir":
            for item in new:
                kept = _merged(kept, item, self.size, generator)
            return kept
        kept = self._fresh(super().retain(kept, new, generator), max(k.round for k in new))
        if self.limit is None:
            return kept
        return (_shrunk if self.by == "data-set" else _shrunk_by_class)(kept, self.limit)

    def approximate(
        self, objective: Objective, params: Vector, item: MemoryItem
    ) -> tuple[Spans, Vector]:
        """Compute the mean gradient of the kept samples; zero if a reservoir has none left."""
        if not item.record:
            return (slice(0, len(params)),), torch.zeros_like(params)
        return super().approximate(objective, params, item)

    def _features(self, objective: Objective, params: Vector, samples: Samples) -> Tensor:
        try:
            return objective.features(params, samples.x, self.layer)
        except SpecError as error:
            raise SpecError(f"method.memory.layer: {error}") from None

    def _fresh(self, kept: tuple[MemoryItem, ...], now: int) -> tuple[MemoryItem, ...]:
        if self.keep_rounds is None:
            return kept
        return tuple(item for item in kept if now - item.round <= self.keep_rounds)


def _shrunk(kept: tuple[MemoryItem, ...], limit: int) -> tuple[MemoryItem, ...]:
    """Shrink items to equal shares of ``limit``; the remainder goes to the latest data sets.

    The samples of a record are ordered by importance, or at random, so the last ones are dropped.
    """
    latest_first = torch.tensor([len(item.record["y"]) for item in reversed(kept)])
    shares = turns(latest_first, limit).bincount(minlength=len(kept)).flip(0)
    parts = zip(kept, shares.tolist(), strict=True)
    return tuple(_only(k, torch.arange(share)) for k, share in parts if share)


def _shrunk_by_class(kept: tuple[MemoryItem, ...], limit: int) -> tuple[MemoryItem, ...]:
    """Shrink classes to equal shares of ``limit``; the data sets of a class share alike, the latest first."""
    labels = [item.record["y"] for item in kept]
    counts = torch.cat(labels).bincount()
    quotas = turns(counts, limit).bincount(minlength=len(counts)).tolist()
    stay = [torch.zeros(len(y), dtype=torch.bool) for y in labels]
    for label in counts.nonzero().flatten().tolist():
        places = [(y == label).nonzero().flatten() for y in reversed(labels)]
        held = torch.tensor([len(place) for place in places])
        shares = turns(held, quotas[label]).bincount(minlength=len(kept)).tolist()
        for mask, place, share in zip(reversed(stay), places, shares, strict=True):
            mask[place[:share]] = True
    parts = zip(kept, stay, strict=True)
    return tuple(_only(k, mask.nonzero().flatten()) for k, mask in parts if mask.any())


def _merged(
    kept: tuple[MemoryItem, ...], new: MemoryItem, size: int, generator: Generator
) -> tuple[MemoryItem, ...]:
    """Add a data set to the one reservoir, which is stored by data set.

    Data sets without a sample in the reservoir stay as empty items: the sum of all sizes is the number of
    samples seen so far. A sample that was deleted on request leaves an empty place. It is reassigned like any
    other, so that the remaining samples keep equal chances. The tensor ``reservoir`` of a record tells
    :func:`~chronofed.clients.deletion.without_rows` that a data set counts even if all its samples are deleted.
    """
    others = tuple(k for k in kept if (k.client, k.key) != (new.client, new.key))
    again = next((k for k in kept if (k.client, k.key) == (new.client, new.key)), None)
    if again is not None:
        return (*others, replace(again, round=new.round))
    seen = sum(item.size for item in kept)
    entering = admitted(seen, new.size, size, generator)
    staying = min(size, seen + new.size) - entering
    places = torch.randperm(min(size, seen), generator=generator)[:staying]
    lengths = [len(item.record.get("y", ())) for item in kept]
    inside = torch.zeros(max(size, sum(lengths)), dtype=torch.bool)
    inside[places] = True
    parts = torch.split(inside[: sum(lengths)], lengths)
    left = [_only(k, part.nonzero().flatten()) for k, part in zip(kept, parts, strict=True)]
    return (*left, _only(new, torch.arange(entering)))


def _only(item: MemoryItem, pick: Tensor) -> MemoryItem:
    """Return an item with some of its samples; with an empty record if there are none."""
    record = {name: tensor[pick] for name, tensor in item.record.items()} if len(pick) else {}
    return replace(item, record=record)

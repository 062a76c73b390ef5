"""CFL-Core-Set: a few real samples of every past data set, replayed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from chronofed.config import Count
from chronofed.errors import SpecError
from chronofed.memories.base import Home, Keepsake, Memory, Moment
from chronofed.memories.replay import replay
from chronofed.memories.selection import admitted, balanced, herding, turns, uniform
from chronofed.surrogate import Surrogate
from chronofed.types import Objective, Record, Samples, Spans, Vector
from chronofed.weights import RoundWeights


class CoreSet(Memory, tag="core-set"):
    r"""Keeps a few samples of each past data set on the client and replays them.

    The approximation :math:`\tilde f_\tau` of a past objective is their mean loss.

    A data set that comes back replaces what was kept of it, and while it is present it needs no remembering.
    Whether a sample of the past counts as much as a present one (the paper's union) or a round as much as
    the round weights say is decided by these weights: ``merged`` is the union.

    A reservoir is one uniform sample of all that the client ever saw, ``size`` samples in all, however many
    data sets there were. A data set that comes back is not counted again; a sample that several overlapping
    data sets share counts once for each.

    Attributes:
        size: Samples kept of each data set (100 in the paper's main runs); for ``reservoir``, of all together.
        select: Which samples. ``uniform``: at random without replacement, the paper's "naive". ``herding``:
            iCaRL, those whose mean features are nearest to the mean of their class, with classes in
            proportion. ``balanced``: at random, of every class as equal a number as possible.
            ``reservoir``: a uniform sample of all data sets together.
        limit: Most samples that a client keeps in all. Beyond it the shares of all data sets shrink equally,
            and the least important samples go: the last that herding chose, else random ones. Where there
            are more data sets than ``limit``, the latest keep one sample each and the others none.
        keep_rounds: What was seen more than so many rounds ago is never replayed again, and is removed at
            the client's next visit.
        layer: Whose inputs are the features of ``herding``: the name of a module of the model, such as
            ``layer4``; by default the last linear layer.
    """

    home: ClassVar[Home] = "client"
    reference: ClassVar[str] = "Rebuffi et al. (2017), iCaRL; Guo et al., CFL-Core-Set"

    size: Count = 100
    select: Literal["uniform", "herding", "reservoir", "balanced"] = "uniform"
    limit: Count | None = None
    keep_rounds: Count | None = None
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None and self.select != "herding":
            msg = f"CoreSet.layer: only select = 'herding' looks at features, not {self.select!r}"
            raise ValueError(msg)
        for name in ("limit", "keep_rounds"):
            if self.select == "reservoir" and getattr(self, name) is not None:
                msg = (
                    f"CoreSet.{name}: a reservoir is one sample, of {self.size}, of all that was ever "
                    f"seen; leave {name} out or choose another select"
                )
                raise ValueError(msg)

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """The layer of herding must be one of the model's."""
        if self.select == "herding":
            self._features(objective, params, samples)

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """The samples to keep, the most important first."""
        if self.select == "herding":
            pick = herding(self._features(objective, params, samples), samples.y, self.size)
        elif self.select == "balanced":
            pick = balanced(samples.y, self.size, generator)
        else:
            pick = uniform(len(samples), self.size, generator)
        chosen = samples[pick]
        record = {"x": chosen.x, "y": chosen.y}
        return record if chosen.rows is None else {**record, "rows": chosen.rows}

    def recall(
        self, kept: tuple[Keepsake, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay what was kept of other data sets, each with the weight of its round."""
        return replay(self._fresh(kept, moment.round), weights, moment)

    def retain(
        self, kept: tuple[Keepsake, ...], new: Sequence[Keepsake], generator: Generator
    ) -> tuple[Keepsake, ...]:
        """Add keepsakes, and let go of what is too old or too much."""
        if self.select == "reservoir":
            for keepsake in new:
                kept = _merged(kept, keepsake, self.size, generator)
            return kept
        kept = self._fresh(super().retain(kept, new, generator), max(k.round for k in new))
        return kept if self.limit is None else _shrunk(kept, self.limit)

    def approximate(
        self, objective: Objective, params: Vector, keepsake: Keepsake
    ) -> tuple[Spans, Vector]:
        """The mean gradient of the samples kept; zero where a reservoir has none left."""
        if not keepsake.record:
            return (slice(0, len(params)),), torch.zeros_like(params)
        return super().approximate(objective, params, keepsake)

    def _features(self, objective: Objective, params: Vector, samples: Samples) -> Tensor:
        try:
            return objective.features(params, samples.x, self.layer)
        except SpecError as error:
            raise SpecError(f"method.memory.layer: {error}") from None

    def _fresh(self, kept: tuple[Keepsake, ...], now: int) -> tuple[Keepsake, ...]:
        if self.keep_rounds is None:
            return kept
        return tuple(keepsake for keepsake in kept if now - keepsake.round <= self.keep_rounds)


def _shrunk(kept: tuple[Keepsake, ...], limit: int) -> tuple[Keepsake, ...]:
    """Equal shares of ``limit``; what is left over falls to the latest data sets.

    Records are ordered by importance, at random where there is none, so that their ends go.
    """
    latest_first = torch.tensor([len(keepsake.record["y"]) for keepsake in reversed(kept)])
    shares = turns(latest_first, limit).bincount(minlength=len(kept)).flip(0)
    parts = zip(kept, shares.tolist(), strict=True)
    return tuple(_only(k, torch.arange(share)) for k, share in parts if share)


def _merged(
    kept: tuple[Keepsake, ...], new: Keepsake, size: int, generator: Generator
) -> tuple[Keepsake, ...]:
    """One reservoir of all data sets, stored by data set.

    Data sets that have nothing in it stay as empty keepsakes: all sizes together are the number of samples
    seen so far. Samples deleted on request leave an empty place, which is given away like any other, so that
    those not deleted keep equal chances.
    """
    others = tuple(k for k in kept if (k.client, k.key) != (new.client, new.key))
    again = next((k for k in kept if (k.client, k.key) == (new.client, new.key)), None)
    if again is not None:
        return (*others, replace(again, round=new.round))
    seen = sum(keepsake.size for keepsake in kept)
    entering = admitted(seen, new.size, size, generator)
    staying = min(size, seen + new.size) - entering
    places = torch.randperm(min(size, seen), generator=generator)[:staying]
    lengths = [len(keepsake.record.get("y", ())) for keepsake in kept]
    inside = torch.zeros(max(size, sum(lengths)), dtype=torch.bool)
    inside[places] = True
    parts = torch.split(inside[: sum(lengths)], lengths)
    left = [_only(k, part.nonzero().flatten()) for k, part in zip(kept, parts, strict=True)]
    return (*left, _only(new, torch.arange(entering)))


def _only(keepsake: Keepsake, pick: Tensor) -> Keepsake:
    """A keepsake with some of its samples; an empty record if there are none."""
    record = {name: tensor[pick] for name, tensor in keepsake.record.items()} if len(pick) else {}
    return replace(keepsake, record=record)

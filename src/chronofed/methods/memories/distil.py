"""LwF, FLwF and FLwF-2T: earlier models teach the present one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from chronofed.core.config import NonNegative, Positive
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.flat import take
from chronofed.core.types import Batch, Objective, Record, Samples, Spans, Vector
from chronofed.methods.memories.base import Location, Memory, MemoryItem, Moment, timeline
from chronofed.methods.memories.forget import Forget
from chronofed.methods.surrogate import Surrogate, Teacher
from chronofed.methods.weighting import RoundWeights

OWN = ("teacher", "teacher_buffers", "teacher_classes", "teacher_sources")
"""Entries that are not the inner memory's, as they are observed."""
MARK = "teacher_classes"
"""The entry that all items with a teacher, or about one, have."""


class Distil(Memory, tag="distil"):
    r"""Earlier models teach the present one on the samples of training (LwF, FLwF, FLwF-2T).

    .. math::
        f_t(w) + \lambda_1\, d(w, w_{t-1}) + \lambda_2\, d(w, w^{\mathrm{server}}), \qquad
        d(w, v) = -\operatorname{mean}_x \sum_c q_c \log p_c, \quad
        q = \mathrm{softmax}(z_v(x)/T), \; p = \mathrm{softmax}(z_w(x)/T)

    The first teacher is the client's own model at the end of its last other data set, the second one the
    server's model at the beginning of the round. LwF is the first alone, with one client; FLwF the same with
    many; FLwF-2T has both. While a client has seen only one data set, nothing teaches it. Of the round weights
    it matters only which are zero: such data sets do not count. There is no factor :math:`T^2`, as in LwF. Of
    a regression *d* is half the mean squared difference of the outputs.

    Around ``memory`` it is the loss of iCaRL (``form = "targets"``, ``classes = "seen"``) or of EEIL
    (``classes = "heads"``): replayed samples are taught, too.

    Nothing travels. A client keeps two models with their buffers; a step costs a forward pass for each teacher
    and a gradient of the distillation loss for each, or for each head. A request to delete a sample removes the
    model at the end of its data set. The batched engine does not serve it.

    Weights :math:`\alpha, \beta, 1 - \alpha - \beta` of labels, own and server's model are
    :math:`\lambda_1 = \beta/\alpha`, :math:`\lambda_2 = (1 - \alpha - \beta)/\alpha` with a learning rate that
    is :math:`\alpha` times as large. Public code differs: some takes the mean over classes, too, and Avalanche
    restricts both models to the classes seen so far (``classes = "seen"``).

    Attributes:
        past: Weight :math:`\lambda_1` of the client's own earlier model; 0 for none.
        shared: Weight :math:`\lambda_2` of the server's model; 0 for none.
        temperature: Temperature :math:`T` of both models' outputs; high ones compare small outputs, too.
        classes: Outputs that are compared. ``all``: every one. ``seen``: those of the classes in earlier data
            sets of the client. ``heads``: the same, with one softmax for the new classes of each data set.
        form: ``softmax``: one class among all. ``sigmoid``: every class by itself. ``targets``: the sigmoids of
            the teacher replace the labels of its classes, by the share of its weight; it needs the loss
            ``binary-cross-entropy``, and is meant for classes that do not come back.
        memory: A memory on the client that it is added to, such as ``core-set``; by default none.
    """

    location: ClassVar[Location] = "client"
    teaches: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Li and Hoiem (2017), Learning without Forgetting; Usmanova et al. (2021), A Distillation-Based "
        "Approach Integrating Continual Learning and Federated Learning for Pervasive Services (FLwF-2T)"
    )

    past: NonNegative = 1.0
    shared: NonNegative = 0.0
    temperature: Positive = 2.0
    classes: Literal["all", "seen", "heads"] = "all"
    form: Literal["softmax", "sigmoid", "targets"] = "softmax"
    memory: Memory = Forget()

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = type(self.memory).__name__
        if self.memory.location == "server":
            raise ValueError(f"Distil.memory: {inner} is on the server; choose one on the client")
        if self.memory.teaches:
            raise ValueError(f"Distil.memory: {inner} has teachers itself; remove one of the two")
        if self.form == "targets" and self.classes == "all":
            raise ValueError("Distil.classes: with form = 'targets' no label is left; use 'seen'")
        if self.form == "targets" and self.past + self.shared > 1:
            raise ValueError("Distil.past: with form = 'targets', past and shared are shares of 1")

    @property
    def synthetic(self) -> bool:  # type: ignore[override]
        """As the inner memory."""
        return self.memory.synthetic

    @property
    def previews(self) -> bool:  # type: ignore[override]
        """As the inner memory."""
        return self.memory.previews

    def preview(self, objective: Objective, params: Vector, samples: Samples) -> Record:
        """As the inner memory."""
        return self.memory.preview(objective, params, samples)

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Check that the form fits the model and its loss, and whatever the inner memory checks."""
        self.memory.check(objective, params, samples)
        # BatchNorm needs more than one sample.
        two = samples[torch.zeros(2, dtype=torch.int64)]
        logits = objective.logits(params, two.x)
        try:
            objective.distilled(params, Batch.mean(two), logits, self.temperature, None, self.form)
        except IncompatibleError as error:
            raise SpecError(f"method.memory.form: {error}") from None

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Keep the model and the classes that it has seen here, and what the inner memory keeps."""
        classes = torch.unique(samples.y)
        if classes.is_floating_point():
            classes = torch.empty(0, dtype=torch.int64)
        own = dict(zip(OWN, (params.clone(), objective.buffers.clone(), classes), strict=False))
        if samples.rows is not None:
            own["teacher_sources"] = samples.rows
        return {**self.memory.observe(objective, params, samples, generator), **own}

    def recalled(self, kept: tuple[MemoryItem, ...], moment: Moment) -> tuple[MemoryItem, ...]:
        """Return the items that the inner memory weighs; if there are none, those with teachers."""
        others, models = _parts(kept)
        return self.memory.recalled(others, moment) or super().recalled(models, moment)

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Add the teachers to what the inner memory recalls, if a past data set has a weight."""
        others, models = _parts(kept)
        found = self.memory.recall(others, weights, moment)
        past = super().recalled(models, moment)
        p = weights(timeline(past, moment))[:-1]
        counted = [item.record for item, weight in zip(past, p, strict=True) if weight]
        if not counted or "teacher" not in counted[-1]:
            return found
        return replace(found, teachers=tuple(self._teachers(counted)))

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: Generator
    ) -> tuple[MemoryItem, ...]:
        """Let the inner memory retain its part; keep the models of the present and the last other data set."""
        others, models = _parts(kept)
        (present,) = new
        inner = {n: t for n, t in present.record.items() if n not in OWN}
        if inner:
            others = self.memory.retain(others, [replace(present, record=inner)], generator)
        own = {_stored(n): t for n, t in present.record.items() if n in OWN}
        earlier = [item for item in models if item.key != present.key]
        return (*others, *self._left(earlier), replace(present, record=own))

    def covered(self, objective: Objective, params: Vector) -> Spans:
        """As the inner memory."""
        return self.memory.covered(objective, params)

    def approximate(
        self, objective: Objective, params: Vector, item: MemoryItem
    ) -> tuple[Spans, Vector]:
        """As the inner memory; a teacher by itself has no samples to speak about, so its gradient is 0."""
        if {*item.record} <= {*OWN, "sources"}:
            spans = self.covered(objective, params)
            return spans, torch.zeros_like(take(params, spans))
        return self.memory.approximate(objective, params, item)

    def _left(self, earlier: Sequence[MemoryItem]) -> Iterator[MemoryItem]:
        """Yield the latest of these items, and of the others the classes, if they matter."""
        for item in earlier[:-1] if self.classes != "all" else ():
            about = {n: t for n, t in item.record.items() if n in (MARK, "sources")}
            yield replace(item, record=about)
        yield from earlier[-1:]

    def _teachers(self, counted: Sequence[Record]) -> Iterator[Teacher]:
        """Yield the teachers that have a weight, one for each head."""
        model = counted[-1]
        for classes in self._groups([record[MARK] for record in counted]):
            settings = (self.temperature, classes)
            if self.past:
                yield Teacher(
                    model["teacher"], self.past, *settings, model["teacher_buffers"], self.form
                )
            if self.shared:
                yield Teacher(None, self.shared, *settings, form=self.form)

    def _groups(self, seen: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the classes that each softmax is over; ``None`` for all."""
        if self.classes == "all" or not any(map(len, seen)):
            return [None]
        if self.classes == "seen":
            return [torch.unique(torch.cat(list(seen)))]
        heads: list[Tensor | None] = []
        known = seen[0][:0]
        for classes in seen:
            new = classes[~torch.isin(classes, known)]
            known = torch.cat([known, new])
            heads += [new] if len(new) else []
        return heads


def _parts(
    kept: Sequence[MemoryItem],
) -> tuple[tuple[MemoryItem, ...], tuple[MemoryItem, ...]]:
    """Return the items of the inner memory, and those about teachers."""
    models = tuple(item for item in kept if MARK in item.record)
    return tuple(item for item in kept if MARK not in item.record), models


def _stored(name: str) -> str:
    """Return the name of an entry in an item of its own, where ``sources`` cannot be the inner memory's."""
    return "sources" if name == "teacher_sources" else name

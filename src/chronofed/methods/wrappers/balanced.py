"""Balanced fine-tuning, as in EEIL."""

import math
from dataclasses import replace
from itertools import repeat
from typing import ClassVar

import torch

from chronofed.core.config import Fraction, NonNegative, Positive
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.local import ClientLocal, Local, Train, one_client
from chronofed.methods.memories.selection import group_codes
from chronofed.methods.surrogate import Pool, Teacher
from chronofed.methods.wrappers.base import Wrapper


class Balanced(Wrapper, tag="balanced"):
    r"""Last local steps in which all classes count alike, around any backbone (EEIL).

    In a share of the local steps, the last ones, present and replayed samples have weights such that every
    class has the same sum, and gradients are multiplied by ``lr_factor``. The classes that only the present
    has are taught by the model before these steps, so that balance does not cost what was just learnt about
    them.

    EEIL is this with ``distil``, ``classes = "heads"``, around a core set by herding. Without replayed samples
    it is the inner backbone. In the publication the balanced steps come on top (30 epochs after 40, at a tenth
    of the learning rate), on as many samples of every class; here they are some of the steps, so that methods
    do the same work, and samples are drawn by their weights. Its twelve-fold augmentation is not here. Terms
    of the inner backbone, such as that of FedProx, are not multiplied. Where targets are numbers, ten bins
    with equally many samples stand for classes, and nothing is taught.

    Nothing more travels or is kept. A balanced step costs a forward pass and a gradient of the distillation
    more, and works on one client at a time, so the batched engine does not serve it.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
        share: Share of the local steps that are balanced, rounded down; 0 is the inner backbone.
        lr_factor: Factor of the gradients in these steps.
        keep: Weight of the distillation of new classes; 0 for none.
        temperature: Its temperature.
    """

    reference: ClassVar[str] = "Castro et al. (2018), End-to-End Incremental Learning"

    share: Fraction = 0.4
    lr_factor: Positive = 0.1
    keep: NonNegative = 1.0
    temperature: Positive = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_lr != 1.0:
            raise ValueError("Balanced.server_lr: set server_lr of the inner backbone instead")

    def unsuited(self, train: Train) -> str | None:
        """Refuse AdamW, whose steps do not depend on the size of gradients, and what the inner one refuses."""
        if train.optimizer == "adamw" and self.lr_factor != 1.0:
            return "optimizer: adamw undoes Balanced.lr_factor; use sgd, or lr_factor = 1"
        return super().unsuited(train)

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the inner backbone's gradient; in the last steps with balanced classes."""
        one = one_client(local)
        step = int(one.scratch.get("balanced_step", torch.tensor(0)))
        one.scratch["balanced_step"] = torch.tensor(step + 1)
        if one.past.replay is None or step < one.steps - math.floor(self.share * one.steps):
            return self.backbone.gradient(params, server, local)
        if "balanced_params" not in one.scratch:
            one.scratch["balanced_params"] = params.clone()
            one.scratch["balanced_buffers"] = one.objective.buffers.clone()
        stage = _with_pool(one, _balanced(one.pool), self._teachers(one))
        return self.backbone.gradient(params, server, stage).mul_(self.lr_factor)

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone."""
        return self.backbone.aggregate(server, uploads)

    def _teachers(self, local: ClientLocal) -> tuple[Teacher, ...]:
        """Return all teachers, and the model before the balanced steps for the present's own classes."""
        new, pool, notes = torch.unique(local.samples.y), local.past.replay, local.scratch
        assert pool is not None
        new = new[~torch.isin(new, pool.samples.y)]
        if new.is_floating_point() or not len(new) or not self.keep:
            return local.past.teachers
        settings = self.keep, self.temperature, new
        own = Teacher(notes["balanced_params"], *settings, notes["balanced_buffers"])
        return (*local.past.teachers, own)


def _balanced(pool: Pool) -> Pool:
    """Return the pool with the same sum of weights for every class; within a class they stay in proportion."""
    groups, weight = group_codes(pool.samples.y), pool.weight.abs()
    sums = torch.zeros(int(groups.max()) + 1, dtype=torch.float64).index_add_(0, groups, weight)
    shares = weight / sums[groups] / int((sums > 0).sum())
    return Pool(pool.samples, shares * float(pool.weight.sum()))


def _with_pool(local: ClientLocal, pool: Pool, teachers: tuple[Teacher, ...]) -> ClientLocal:
    """Return a client's problem with another pool and other teachers, and the same notes and optimisers."""
    other = replace(local, past=replace(local.past, teachers=teachers))
    size, least = local.train.batch_size, 2 if local.objective.uses_batch_statistics else 1
    draws = (
        repeat((torch.arange(len(pool)), pool.weight))
        if size == "full"
        else pool.draws(size, local.generator, least)
    )
    same: dict[str, object] = {"steps": local.steps, "descents": local.descents}
    for name, value in {**same, "pool": pool, "_draws": draws}.items():
        object.__setattr__(other, name, value)
    return other

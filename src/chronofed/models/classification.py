"""Classification: a data set, a model, and the score of parameters."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from chronofed.core.errors import SpecError
from chronofed.core.seeds import global_torch_seed
from chronofed.core.types import Samples, Vector
from chronofed.data.dataset import Dataset
from chronofed.models.objective import Augment, TorchObjective
from chronofed.models.zoo import Cnn, Custom, Mlp, ModelSettings, ResNet18

# Samples of one evaluation batch: the fastest sizes on a CPU, by its caches.
EVALUATION_BATCH = 500
CONVOLUTION_BATCH = 100


@dataclass(frozen=True, slots=True)
class Score:
    """Loss and accuracy of a model on some samples, with its outputs."""

    loss: float
    accuracy: float
    correct: NDArray[np.bool_]  # (n,)
    outputs: Tensor  # (n, classes): logits

    @classmethod
    def of(cls, parts: Iterable[tuple[float, Tensor, Tensor]]) -> "Score":
        """Combine the sums of losses, the correct predictions and the outputs of batches, in order."""
        losses, right, outputs = zip(*parts, strict=True)
        correct = torch.cat(right).cpu().numpy()
        loss = sum(losses) / len(correct)
        return cls(loss, float(correct.mean()), correct, torch.cat(outputs).cpu())


@dataclass(frozen=True, slots=True)
class Classification:
    """Learn to classify the samples of a data set.

    Attributes:
        data: The data set.
        model: The model's settings.
        augment: Random augmentation of training samples, if any.
        device: Device of the model, by torch's name. The data stay in RAM and are copied batch by batch.
    """

    data: Dataset
    model: ModelSettings = Mlp()
    augment: Augment | None = None
    device: str = "cpu"

    def objective(self) -> TorchObjective:
        """Return a new objective with a module of its own."""
        with global_torch_seed(0, "unused initial values"):
            module = self._module()
        return TorchObjective(module, self.augment, self.device)

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        """Return initial parameters and buffers."""
        with global_torch_seed(seed, "initial"):
            module = self._module()
        objective = TorchObjective(module, device=self.device)
        return objective.flat.read(), objective.buffers

    def check_size(self) -> None:
        """Refuse a model of this package that does not fit into memory; torch would die, or be killed.

        Raises:
            SpecError: If its parameters need more than all of it.
        """
        ours = type(self.model).__module__.startswith("chronofed.")
        if not ours or isinstance(self.model, Custom) or not hasattr(os, "sysconf"):
            return
        try:
            with torch.device("meta"):
                needed = sum(p.nbytes for p in self._module().parameters()) / 2**30
        except RuntimeError:
            # Sizes beyond 64 bits.
            needed = math.inf
        has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        if needed > has:
            msg = f"model: its parameters take {needed:,.0f} GB, but this machine has {has:,.0f} GB"
            raise SpecError(msg)

    def _module(self) -> nn.Module:
        return self.model.build(self.data.shape, len(self.data.classes))

    def samples(self, indices: NDArray[np.int64]) -> Samples:
        """Return training samples by position."""
        rows = torch.from_numpy(indices)
        train = self.data.train
        return Samples(train.x.index_select(0, rows), train.y.index_select(0, rows), rows)

    def score(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> Score:
        """Return mean loss and accuracy of a model on ``samples``."""
        return Score.of(self.partial_scores(objective, params, buffers, samples))

    def partial_scores(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> list[tuple[float, Tensor, Tensor]]:
        """Return the sum of losses, the correct predictions and the outputs of each batch."""
        objective.buffers = buffers
        size = self.evaluation_batch
        return [
            _partial(objective.logits(params, x), y.to(objective.device))
            for x, y in zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True)
        ]

    @property
    def evaluation_batch(self) -> int:
        """Number of samples that are evaluated at a time."""
        return CONVOLUTION_BATCH if isinstance(self.model, Cnn | ResNet18) else EVALUATION_BATCH


def _partial(logits: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor]:
    loss = float(functional.cross_entropy(logits, y, reduction="sum"))
    return loss, logits.argmax(1) == y, logits

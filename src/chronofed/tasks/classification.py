"""Classification: a data set, a model, and how well parameters do."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from chronofed.seeds import global_torch_seed
from chronofed.tasks.dataset import Dataset
from chronofed.tasks.models import Cnn, Mlp, ModelSettings, ResNet18
from chronofed.tasks.objective import Augment, TorchObjective
from chronofed.types import Samples, Vector

EVALUATION_BATCH = 500
IMAGE_BATCH = 100  # for convolutions


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model does on some samples."""

    loss: float
    accuracy: float
    correct: NDArray[np.bool_]  # (n,)

    @classmethod
    def of(cls, parts: Iterable[tuple[float, Tensor]]) -> "Score":
        """From sums of losses and right predictions of batches, in order."""
        losses, right = zip(*parts, strict=True)
        correct = torch.cat(right).cpu().numpy()
        return cls(sum(losses) / len(correct), float(correct.mean()), correct)


@dataclass(frozen=True, slots=True)
class Classification:
    """Learn to classify the samples of a data set.

    Attributes:
        data: The data set.
        model: The model's settings.
        augment: A random view of training samples, if any.
        device: Where models are, as torch names it; the data stay in memory and follow batch by batch.
    """

    data: Dataset
    model: ModelSettings = Mlp()  # noqa: RUF009 - immutable
    augment: Augment | None = None
    device: str = "cpu"

    def objective(self) -> TorchObjective:
        """A new objective with a module of its own."""
        with global_torch_seed(0, "unused initial values"):
            module = self.model.build(self.data.shape, len(self.data.classes))
        return TorchObjective(module, self.augment, self.device)

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        """Freshly initialised parameters and buffers."""
        with global_torch_seed(seed, "initial"):
            module = self.model.build(self.data.shape, len(self.data.classes))
        objective = TorchObjective(module, device=self.device)
        return objective.flat.read(), objective.buffers

    def samples(self, indices: NDArray[np.int64]) -> Samples:
        """Training samples by position."""
        rows = torch.from_numpy(indices)
        train = self.data.train
        return Samples(train.x.index_select(0, rows), train.y.index_select(0, rows), rows)

    def score(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> Score:
        """Mean loss and accuracy of a model on ``samples``."""
        return Score.of(self.partial_scores(objective, params, buffers, samples))

    def partial_scores(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> list[tuple[float, Tensor]]:
        """Sum of losses, and which predictions are right, batch by batch."""
        objective.buffers = buffers
        size = self.evaluation_batch
        return [
            _partial(objective.logits(params, x), y.to(objective.device))
            for x, y in zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True)
        ]

    @property
    def evaluation_batch(self) -> int:
        """Samples that are evaluated at a time: what is fastest on a processor's caches."""
        return IMAGE_BATCH if isinstance(self.model, Cnn | ResNet18) else EVALUATION_BATCH


def _partial(logits: Tensor, y: Tensor) -> tuple[float, Tensor]:
    return float(functional.cross_entropy(logits, y, reduction="sum")), logits.argmax(1) == y

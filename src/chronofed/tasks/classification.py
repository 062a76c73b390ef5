"""Classification: a data set, a model, and how well parameters do."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from chronofed.seeds import global_torch_seed
from chronofed.tasks.dataset import Dataset
from chronofed.tasks.models import Mlp, ModelSettings
from chronofed.tasks.objective import Augment, TorchObjective
from chronofed.types import Samples, Vector

EVALUATION_BATCH = 500


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model does on some samples."""

    loss: float
    accuracy: float
    correct: NDArray[np.bool_]  # (n,)


@dataclass(frozen=True, slots=True)
class Classification:
    """Learn to classify the samples of a data set.

    Attributes:
        data: The data set.
        model: The model's settings.
        augment: A random view of training samples, if any.
    """

    data: Dataset
    model: ModelSettings = Mlp()  # noqa: RUF009 - immutable
    augment: Augment | None = None

    def objective(self) -> TorchObjective:
        """A new objective with a module of its own."""
        with global_torch_seed(0, "unused initial values"):
            module = self.model.build(self.data.shape, len(self.data.classes))
        return TorchObjective(module, self.augment)

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        """Freshly initialised parameters and buffers."""
        with global_torch_seed(seed, "initial"):
            module = self.model.build(self.data.shape, len(self.data.classes))
        objective = TorchObjective(module)
        return objective.flat.read(), objective.buffers

    def samples(self, indices: NDArray[np.int64]) -> Samples:
        """Training samples by position."""
        rows = torch.from_numpy(indices)
        return Samples(self.data.train.x[rows], self.data.train.y[rows], rows)

    def score(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> Score:
        """Mean loss and accuracy of a model on ``samples``."""
        objective.buffers = buffers
        loss, correct = 0.0, []
        parts = zip(
            torch.split(samples.x, EVALUATION_BATCH),
            torch.split(samples.y, EVALUATION_BATCH),
            strict=True,
        )
        for x, y in parts:
            logits = objective.logits(params, x)
            loss += float(functional.cross_entropy(logits, y, reduction="sum"))
            correct.append(logits.argmax(1) == y)
        right = torch.cat(correct).numpy()
        return Score(loss / len(samples), float(right.mean()), right)

"""A supervised task: a data set, a model, a loss, and the score of parameters."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chronofed.core.config import kind_of
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.seeds import global_torch_seed
from chronofed.core.types import Samples, Vector
from chronofed.data.dataset import Dataset
from chronofed.models.losses import Loss, TaskName
from chronofed.models.objective import Augment, TorchObjective
from chronofed.models.zoo import Cnn, Custom, Mlp, ModelSettings, ResNet18, ResNetCifar

# Samples of one evaluation batch: the fastest sizes on a CPU, by its caches.
EVALUATION_BATCH = 500
CONVOLUTION_BATCH = 100


@dataclass(frozen=True, slots=True)
class Score:
    """Mean loss of a model on some samples, and a value for each of them.

    Attributes:
        loss: The mean loss.
        values: Of a classification, ``True`` where the prediction is right; of a regression, prediction minus
            target in the target's own units, as float64. ``(n,)``
        outputs: Outputs of the model: logits ``(n, classes)``, or ``(n, 1)``.
    """

    loss: float
    values: NDArray[np.bool_] | NDArray[np.float64]
    outputs: Tensor

    @classmethod
    def of(cls, parts: Iterable[tuple[float, Tensor, Tensor]]) -> "Score":
        """Combine the sums of losses, the values and the outputs of batches, in order."""
        losses, found, outputs = zip(*parts, strict=True)
        values = torch.cat(found).cpu().numpy()
        return cls(sum(losses) / len(values), values, torch.cat(outputs).cpu())

    def __len__(self) -> int:
        return len(self.values)

    @property
    def classified(self) -> bool:
        """True for the score of a classification."""
        return self.values.dtype == np.bool_

    @property
    def correct(self) -> NDArray[np.bool_]:
        """For every sample, whether its class was predicted.

        Raises:
            IncompatibleError: For a regression.
        """
        if not self.classified:
            raise IncompatibleError("a regression has no accuracy; use the errors of its score")
        return self.values.astype(np.bool_, copy=False)

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return float(self.correct.mean())

    @property
    def errors(self) -> NDArray[np.float64]:
        """For every sample, prediction minus target in the target's own units.

        Raises:
            IncompatibleError: For a classification.
        """
        if self.classified:
            raise IncompatibleError("a classification has no errors; use the accuracy of its score")
        return self.values.astype(np.float64, copy=False)

    @property
    def by_sample(self) -> NDArray[np.float64]:
        """1 for a correct and 0 for a wrong prediction; of a regression the absolute error."""
        return np.abs(self.values.astype(np.float64))


@dataclass(frozen=True, slots=True)
class SupervisedTask(ABC):
    """Learn to predict the targets of a data set.

    Attributes:
        data: The data set.
        model: The model's settings.
        augment: Random augmentation of training samples, if any.
        device: Device of the model, by torch's name. The data stay in RAM and are copied batch by batch.
        loss: The loss of a sample; by default the usual one of the task.
    """

    data: Dataset
    model: ModelSettings = Mlp()
    augment: Augment | None = None
    device: str = "cpu"
    loss: Loss | None = None

    name: ClassVar[TaskName]
    usual_loss: ClassVar[Loss]

    def __post_init__(self) -> None:
        """Check that the loss fits the task.

        Raises:
            SpecError: If it does not.
        """
        self.resolved_loss()

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs of the model."""

    @abstractmethod
    def guess_loss(self) -> float:
        """Return the loss of a model that has learned nothing."""

    @abstractmethod
    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the value of every sample in a :class:`Score`."""

    def resolved_loss(self) -> Loss:
        """Return the loss for the classes of the data.

        Raises:
            SpecError: If it does not fit the task.
        """
        loss = self.usual_loss if self.loss is None else self.loss
        if loss.task not in (None, self.name):
            usual = kind_of(self.usual_loss)
            has = "classes" if self.name == "classification" else "numbers"
            raise SpecError(
                f"loss: {kind_of(loss)} is not for {has}, which the target has; try {usual}"
            )
        try:
            return loss.of_class_names(self.data.classes)
        except ValueError as error:
            raise SpecError(str(error)) from None

    def objective(self) -> TorchObjective:
        """Return a new objective with a module of its own."""
        with global_torch_seed(0, "unused initial values"):
            module = self._module()
        return TorchObjective(module, self.augment, self.device, self.resolved_loss())

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
        return self.model.build(self.data.shape, self.outputs)

    def samples(self, indices: NDArray[np.int64]) -> Samples:
        """Return training samples by position."""
        rows = torch.from_numpy(indices)
        train = self.data.train
        return Samples(train.x.index_select(0, rows), train.y.index_select(0, rows), rows)

    def score(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> Score:
        """Return the score of a model on ``samples``."""
        return Score.of(self.partial_scores(objective, params, buffers, samples))

    def partial_scores(
        self, objective: TorchObjective, params: Vector, buffers: Vector, samples: Samples
    ) -> list[tuple[float, Tensor, Tensor]]:
        """Return the sum of losses, the values and the outputs of each batch."""
        objective.buffers = buffers
        size = self.evaluation_batch
        return [
            self._partial(objective, objective.logits(params, x), y.to(objective.device))
            for x, y in zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True)
        ]

    def _partial(
        self, objective: TorchObjective, outputs: Tensor, y: Tensor
    ) -> tuple[float, Tensor, Tensor]:
        return float(objective.loss.total(outputs, y)), self.values(outputs, y), outputs

    @property
    def evaluation_batch(self) -> int:
        """Number of samples that are evaluated at a time."""
        convolutional = isinstance(self.model, Cnn | ResNet18 | ResNetCifar)
        return CONVOLUTION_BATCH if convolutional else EVALUATION_BATCH

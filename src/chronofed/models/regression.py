"""Regression: learn a number."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chronofed.models.losses import Loss, Squared, TaskName
from chronofed.models.supervised import SupervisedTask


@dataclass(frozen=True, slots=True)
class Regression(SupervisedTask):
    r"""Learn to predict the number that belongs to a sample; the model has one output.

    Targets are scaled, :math:`y = (t - \mu)/s`, by the data's own scaling, if they have one. The loss is that
    of scaled targets; errors in a score are :math:`s\,(f(x) - y)`, in the target's own units.
    """

    name: ClassVar[TaskName] = "regression"
    usual_loss: ClassVar[Loss] = Squared()

    @property
    def outputs(self) -> int:
        """One."""
        return 1

    def guess_loss(self) -> float:
        """Return the loss of the output 0 on the test set, at least that of an error of one deviation."""
        loss, y = self.resolved_loss(), self.data.test.y
        if not len(y):
            return 1.0
        guesses = (torch.zeros_like(y), y + 1)
        return max(float(loss(guess[:, None], y).double().mean()) for guess in guesses)

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Subtract the targets from the predictions, in the target's own units."""
        return (outputs[:, 0].double() - y.double()) * self.data.scaling.deviation

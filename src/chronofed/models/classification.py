"""Classification: learn the class of a sample."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from chronofed.models.losses import CrossEntropy, Loss, TaskName
from chronofed.models.supervised import SupervisedTask


@dataclass(frozen=True, slots=True)
class Classification(SupervisedTask):
    """Learn to classify the samples of a data set; the model has an output for each class."""

    name: ClassVar[TaskName] = "classification"
    usual_loss: ClassVar[Loss] = CrossEntropy()

    @property
    def outputs(self) -> int:
        """Number of classes."""
        return len(self.data.classes)

    def guess_loss(self) -> float:
        r"""Return :math:`\log C`, the cross-entropy of a uniform guess among *C* classes.

        With a sigmoid for every class it is :math:`C \log 2`.
        """
        classes = max(2, len(self.data.classes))
        return classes * math.log(2) if self.resolved_loss().by_class else math.log(classes)

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compare the class of the largest logit with the true one."""
        return outputs.argmax(1) == y

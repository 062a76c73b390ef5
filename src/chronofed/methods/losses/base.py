"""The contract of a local loss: what a method changes about the task's loss on clients."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.config import Kind
from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Objective, Samples, Vector
from chronofed.methods.layers import class_shares
from chronofed.methods.surrogate import LossTerms, Surrogate


class LocalLoss(Kind):
    """A change of the task's loss on a client, without state.

    It applies to every gradient of local training, of present and replayed samples alike, with any backbone and
    memory. Losses that are measured, such as those of q-FFL and of evaluations, stay the task's own. It is
    recomputed at every visit from the client's class counts, and nothing is sent or kept. A regression has no
    classes and is refused. The batched engine does not serve it.
    """

    reference: ClassVar[str] = ""
    """The paper that introduced it."""

    @abstractmethod
    def terms(self, counts: Tensor) -> LossTerms:
        """Return the change.

        Args:
            counts: Number of samples of every class, ``(classes,)`` of float64. Present and replayed ones count
                in proportion to their weights.
        """

    def check_task(self, regression: bool) -> None:
        """Refuse a regression.

        Raises:
            IncompatibleError: If targets are not classes.
        """
        if regression:
            name = type(self).__name__
            raise IncompatibleError(
                f"method.loss: {name} needs classes, but targets are numbers; remove it"
            )

    def on(
        self, objective: Objective, params: Vector, samples: Samples, past: Surrogate
    ) -> LossTerms:
        """Return the change for a client.

        Args:
            objective: The client's model.
            params: The model that it received.
            samples: Its present data.
            past: The remembered objectives.

        Raises:
            IncompatibleError: If targets are not classes.
        """
        self.check_task(samples.y.is_floating_point())
        pool = past.pool(samples)
        classes = objective.logits(params, samples.x[:1]).shape[1]
        return self.terms(class_shares(pool.samples.y, pool.weight, classes) * len(pool))


def absent(counts: Tensor) -> Tensor:
    """Return the numbers of the classes that a client lacks."""
    return torch.nonzero(counts <= 0).flatten()

"""Loss, accuracy and outputs of a model on many samples, shared by threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from chronofed.core.types import Samples, Vector
from chronofed.engines.base import one_thread
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import Score, SupervisedTask


@dataclass(slots=True)
class Scorer:
    """Evaluates models on samples.

    Attributes:
        task: What is learned.
        workers: Threads that share the samples; the numbers do not depend on it.
    """

    task: SupervisedTask
    workers: int = 1
    _objectives: list[TorchObjective] = field(init=False)

    def __post_init__(self) -> None:
        self._objectives = [self.task.objective() for _ in range(self.workers)]

    @property
    def objective(self) -> TorchObjective:
        """The objective of the first thread."""
        return self._objectives[0]

    def score(self, params: Vector, buffers: Vector, samples: Samples) -> Score:
        """Loss and accuracy of a model on samples."""
        parts = _shares(samples, self.workers, self.task.evaluation_batch)
        if len(parts) == 1:
            return self.task.score(self.objective, params, buffers, samples)

        def partial(objective: TorchObjective, part: Samples) -> list[tuple[float, Tensor, Tensor]]:
            with one_thread():
                return self.task.partial_scores(objective, params, buffers, part)

        with ThreadPoolExecutor(len(parts)) as pool:
            found = list(pool.map(partial, self._objectives, parts))
        return Score.of(chain.from_iterable(found))


def _shares(samples: Samples, workers: int, batch: int) -> list[Samples]:
    """Equal shares that do not cut a batch in two, so that sums are the same for any number of workers."""
    batches = -(-len(samples) // batch)
    size = batch * -(-batches // workers)
    pairs = zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True)
    return [Samples(x, y) for x, y in pairs]

"""A fixed random part of the test rows, for evaluations between (``evaluate.sample``)."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.seeds import numpy_generator
from chronofed.models.supervised import Score, SupervisedTask


@dataclass(frozen=True, slots=True)
class EvaluatedPart:
    """Some of the test rows, drawn once.

    Attributes:
        task: The task with these rows as its test set.
        rows: Their positions among all test rows, in order.
        whole: The number of all test rows.
    """

    task: SupervisedTask
    rows: NDArray[np.int64]
    whole: int

    @classmethod
    def of(cls, task: SupervisedTask, size: int, seed: int) -> "EvaluatedPart | None":
        """Draw so many rows by the seed; ``None`` for all of them.

        The draw depends on nothing but seed and numbers, so methods with the same seed meet the same rows.
        """
        data, whole = task.data, len(task.data.test)
        if not 0 < size < whole:
            return None
        rows = np.sort(numpy_generator(seed, "test part").permutation(whole)[:size])
        origin = data.origin and replace(
            data.origin,
            test_client=data.origin.test_client[rows],
            test_period=data.origin.test_period[rows],
        )
        test = data.test[torch.from_numpy(rows)]
        return cls(replace(task, data=replace(data, test=test, origin=origin)), rows, whole)

    def of_score(self, score: Score) -> NDArray[np.float64]:
        """Return the values of these rows alone, of a score on them or on all test rows."""
        values = score.by_sample
        return values[self.rows] if len(values) == self.whole else values

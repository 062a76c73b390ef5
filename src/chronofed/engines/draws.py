"""Whether a task draws from torch's global generator while it trains, as dropout does."""

import numpy as np
import torch

from chronofed.seeds import global_torch_seed
from chronofed.types import Batch, Task


def draws_globally(task: Task) -> bool:
    """Augment and compute one gradient as in training, and see whether the global generator moved.

    Two samples, because BatchNorm cannot learn from one. The generator is put back.
    """
    objective, (params, buffers) = task.objective(), task.initial(0)
    batch = Batch.mean(task.samples(np.zeros(2, dtype=np.int64)))
    objective.buffers = buffers
    with global_torch_seed(0, "draws"):
        before = torch.default_generator.get_state()
        x = objective.augment(batch.x, torch.Generator().manual_seed(0))
        objective.gradient(params, Batch(x, batch.y, batch.weight))
        return not torch.equal(before, torch.default_generator.get_state())

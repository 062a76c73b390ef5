"""What a client reports so that the server can learn drifts and information loss."""

import torch
from torch import Tensor

from chronofed.flat import take
from chronofed.memories import Keepsake, Memory
from chronofed.types import Batch, Objective, Record, Samples, Vector

SKETCH = 2048  # numbers that stand for a gradient


def probe(
    memory: Memory | None,
    objective: Objective,
    params: Vector,
    samples: Samples,
    keepsake: Keepsake,
) -> Record:
    r"""The present gradient at the server's model, sketched, and the loss of what is kept of it.

    The information loss :math:`\|\nabla f - \nabla\tilde f\|^2` of the new keepsake needs no past data:
    what it stands for is still at hand. Price: one gradient of the present data and one of the keepsake.
    """
    everything = (slice(0, len(params)),)
    gradient = objective.loss_gradient(params, Batch.mean(samples), everything)
    lost = torch.zeros((), dtype=torch.float64)
    if memory is not None:
        spans, approximation = memory.approximate(objective, params, keepsake)
        lost = (take(gradient, spans) - approximation).double().square().sum()
    return {"gradient": sketch(gradient), "loss": lost}


def sketch(vector: Vector, size: int = SKETCH) -> Tensor:
    """A short vector that keeps inner products on average (count sketch); short ones stay as they are.

    Every coordinate is added, with a random sign, to a random one of ``size`` places: the same for all
    clients and rounds.
    """
    if len(vector) <= size:
        return vector.double()
    generator = torch.Generator().manual_seed(len(vector))
    places = torch.randint(size, (len(vector),), generator=generator)
    signs = torch.randint(2, (len(vector),), generator=generator, dtype=torch.float64) * 2 - 1
    result = torch.zeros(size, dtype=torch.float64)
    return result.index_add_(0, places, vector.double() * signs)

"""A client's report, from which the server learns drifts and information loss."""

import torch
from torch import Tensor

from chronofed.core.types import Batch, Objective, Record, Samples, Vector
from chronofed.methods.memories import Memory, MemoryItem

# Numbers in the sketch of a gradient.
SKETCH = 2048


def probe(
    memory: Memory,
    objective: Objective,
    params: Vector,
    samples: Samples,
    item: MemoryItem,
) -> Record:
    r"""Report a sketch of the present gradient at the server's model, and the information loss of the new item.

    Both are of the parameters that the memory covers, so that drifts and information loss can be compared:
    other parameters have no past to weigh. The squared information loss
    :math:`\|\nabla f - \nabla\tilde f\|^2` of the new item needs no past data: the data that it approximates
    are still there. It is 0 for an empty item. The price is one gradient of the present data and one of the
    item.
    """
    spans = memory.covered(objective, params)
    gradient = objective.loss_gradient(params, Batch.mean(samples), spans)
    lost = torch.zeros((), dtype=torch.float64)
    if item.record:
        _, approximation = memory.approximate(objective, params, item)
        lost = (gradient - approximation).double().square().sum()
    return {"gradient": sketch(gradient), "information_loss_sq": lost}


def sketch(vector: Vector, size: int = SKETCH) -> Tensor:
    """Shorten a vector so that inner products are kept on average (count sketch); short ones are unchanged.

    Every coordinate is added with a random sign to one of ``size`` random places, which are the same for all
    clients and rounds.
    """
    if len(vector) <= size:
        return vector.double()
    generator = torch.Generator().manual_seed(len(vector))
    places = torch.randint(size, (len(vector),), generator=generator)
    signs = torch.randint(2, (len(vector),), generator=generator, dtype=torch.float64) * 2 - 1
    result = torch.zeros(size, dtype=torch.float64)
    return result.index_add_(0, places, vector.double() * signs)

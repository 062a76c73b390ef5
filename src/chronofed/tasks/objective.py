"""A torch module with cross-entropy as an objective in a flat parameter vector."""

from collections.abc import Callable

from torch import Generator, Tensor, inference_mode, nn
from torch.nn import functional

from chronofed.flat import Flat
from chronofed.types import Batch, Vector

Augment = Callable[[Tensor, Generator], Tensor]


class TorchObjective:
    r"""Weighted cross-entropy :math:`\sum_j a_j\, \mathrm{CE}(\mathrm{module}_w(x_j), y_j)`.

    Attributes:
        flat: The module, bound to a flat vector.
    """

    def __init__(self, module: nn.Module, augment: Augment | None = None) -> None:
        self.flat = Flat(module)
        self._augment = augment

    @property
    def buffers(self) -> Vector:
        """The module's buffers, flattened."""
        return self.flat.buffers

    @buffers.setter
    def buffers(self, values: Vector) -> None:
        self.flat.buffers = values

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Gradient of the weighted loss; BatchNorm sees the batch as training data."""
        self.flat.bind(params)
        self.flat.module.train()
        losses = functional.cross_entropy(self.flat.module(batch.x), batch.y, reduction="none")
        return self.flat.gradient(losses @ batch.weight.to(losses.dtype))

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """A random view of images to train on."""
        return x if self._augment is None else self._augment(x, generator)

    def logits(self, params: Vector, x: Tensor) -> Tensor:
        """Predictions as in use, not as in training."""
        self.flat.bind(params)
        self.flat.module.eval()
        with inference_mode():
            output: Tensor = self.flat.module(x)
        return output

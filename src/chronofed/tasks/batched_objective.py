"""Many fully connected models as one objective, as far as it is asked after training."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from chronofed.tasks.batched_mlp import BatchedMlp
from chronofed.tasks.objective import CHUNK
from chronofed.types import Batch, Spans


class BatchedObjective:
    """Gradients of single samples, for ``(clients, d)`` parameters and batches ``(clients, n, ...)``.

    It says of every client what :class:`~chronofed.tasks.objective.TorchObjective` says of one, for spans of
    whole weights and biases.

    Attributes:
        names: The slice of the flat vector that each named parameter occupies.
    """

    def __init__(self, kernel: BatchedMlp, names: Mapping[str, slice]) -> None:
        self.names = names
        self._kernel = kernel

    def loss_gradient(self, params: Tensor, batch: Batch, spans: Spans) -> Tensor:
        """Gradient of the weighted loss, of the parameters in ``spans``."""
        return self.gradient_moments(params, batch, spans)[0]

    def squared_gradients(self, params: Tensor, batch: Batch, spans: Spans) -> Tensor:
        """Weighted sum of the squared gradients of the single samples."""
        return self.gradient_moments(params, batch, spans)[1]

    def gradient_moments(self, params: Tensor, batch: Batch, spans: Spans) -> tuple[Tensor, Tensor]:
        """Both, from the same pass."""
        chunks = [self._pass(params, part, spans) for part in self._chunks(batch)]
        first, second = (sum(parts[1:], start=parts[0]) for parts in zip(*chunks, strict=True))
        return first, second

    def _pass(self, params: Tensor, batch: Batch, spans: Spans) -> tuple[Tensor, Tensor]:
        r"""The sums over a batch.

        With what a layer sees :math:`h_j` and the gradient in what it says :math:`s_j`, a sample's gradient
        in the weights is :math:`s_j h_j^\top`, and that in the bias :math:`s_j`.
        """
        kernel, weight = self._kernel, batch.weight.unsqueeze(1)  # (clients, 1, n)
        scene = kernel.scene(batch)
        single = Batch(batch.x, batch.y, scene.ones.mT)
        wanted = {s.start for s in self.names.values() if any(_within(s, span) for span in spans)}
        found: dict[int, tuple[Tensor, Tensor]] = {}  # by where weights or biases begin
        for number, seen in kernel.signals(params, single, scene):
            layer, signal = kernel.form.layers[number], scene.signals[number]
            if layer.weight.start in wanted:
                found[layer.weight.start] = _sums(signal.mT, weight, seen)
            if layer.bias is not None and layer.bias.start in wanted:
                found[layer.bias.start] = _sums(scene.ones, weight, signal)
            if len(found) == len(wanted):
                break
        first, second = zip(*(found[start] for start in sorted(wanted)), strict=True)
        return torch.cat(first, dim=1), torch.cat(second, dim=1)

    def _chunks(self, batch: Batch) -> Iterator[Batch]:
        """Parts of it that bound memory, as the first layer sees them."""
        form = self._kernel.form
        parts = (torch.split(t, CHUNK, dim=1) for t in (batch.x, batch.y, batch.weight))
        for x, y, weight in zip(*parts, strict=True):
            encoded = torch.empty(*y.shape, form.layers[0].inputs, dtype=form.dtype)
            form.encode_(x.flatten(2), encoded)
            yield Batch(encoded, y, weight.to(form.dtype))


def _within(part: slice, span: slice) -> bool:
    return bool(span.start <= part.start < span.stop)


def _sums(left: Tensor, weight: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Of :math:`a_j l_j r_j` and :math:`a_j l_j^2 r_j^2` over samples *j*, ``(clients, parameters)``."""
    first = torch.bmm(left * weight, right)
    second = torch.bmm(left.square() * weight, right.square())
    return first.flatten(1), second.flatten(1)

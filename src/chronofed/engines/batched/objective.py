"""The objective of many clients at once, as far as memories use it after training."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Generator, Tensor

from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Batch, OutputForm, Samples, Spans
from chronofed.engines.batched.kernel import BatchedMlp
from chronofed.engines.batched.support import unread_field
from chronofed.models.objective import CHUNK_SAMPLES


class BatchedObjective:
    """An :class:`~chronofed.core.types.Objective` for ``(clients, d)`` and batches ``(clients, n, ...)``.

    It computes for every client what :class:`~chronofed.models.objective.TorchObjective` computes for one, for
    spans of whole weights and biases. What only a single client can compute raises an
    :class:`~chronofed.core.errors.IncompatibleError`.

    Attributes:
        buffers: The models' buffers, ``(clients, 0)``: these models have none.
        uses_batch_statistics: Always false: these models have no BatchNorm.
    """

    uses_batch_statistics = False

    def __init__(self, kernel: BatchedMlp, clients: int) -> None:
        self.buffers = torch.empty(clients, 0)
        self._kernel = kernel

    @property
    def names(self) -> Mapping[str, slice]:
        """The slice of the flat vector that each named parameter occupies."""
        return self._kernel.layout.names

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of each named parameter of one client."""
        layers = self._kernel.layout.layers
        matrices = {n.weight.start: torch.Size((n.outputs, n.inputs)) for n in layers}
        spans = self.names.items()
        return {n: matrices.get(s.start, torch.Size((s.stop - s.start,))) for n, s in spans}

    def logits(self, params: Tensor, x: Tensor) -> Tensor:
        """Refuse."""
        raise _single("logits")

    def losses(self, params: Tensor, batch: Batch) -> Tensor:
        """Refuse."""
        raise _single("losses")

    def distilled(
        self,
        params: Tensor,
        batch: Batch,
        logits: Tensor,
        temperature: float = 2.0,
        classes: Tensor | None = None,
        form: OutputForm = "softmax",
    ) -> Tensor:
        """Refuse."""
        raise _single("distilled")

    def loss_gradient(self, params: Tensor, batch: Batch, spans: Spans) -> Tensor:
        """Gradient of the weighted loss, of the parameters in ``spans``."""
        return self.gradient_moments(params, batch, spans)[0]

    def squared_gradients(self, params: Tensor, batch: Batch, spans: Spans) -> Tensor:
        """Weighted sum of the squared gradients of the single samples."""
        return self.gradient_moments(params, batch, spans)[1]

    def gradient_moments(self, params: Tensor, batch: Batch, spans: Spans) -> tuple[Tensor, Tensor]:
        """Both, from the same pass."""
        reason = unread_field(batch)
        if reason is not None:
            raise IncompatibleError(f"engine batched: {reason}; use engine = 'threads'")
        chunks = [self._pass(params, part, spans) for part in self._chunks(batch)]
        first, second = (sum(parts[1:], start=parts[0]) for parts in zip(*chunks, strict=True))
        return first, second

    def gradient(self, params: Tensor, batch: Batch) -> Tensor:
        """Refuse: training draws its own batches."""
        raise _single("gradient")

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Refuse: these models train on plain samples."""
        raise _single("augment")

    def features(self, params: Tensor, x: Tensor, layer: str | None = None) -> Tensor:
        """Refuse."""
        raise _single("features")

    def hessian_product(self, params: Tensor, batch: Batch, spans: Spans, v: Tensor) -> Tensor:
        """Refuse."""
        raise _single("hessian_product")

    def gradient_and_products(
        self, params: Tensor, batch: Batch, spans: Spans, vectors: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Refuse."""
        raise _single("gradient_and_products")

    def input_gradient(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Refuse."""
        raise _single("input_gradient")

    def encode(self, x: Tensor) -> Tensor:
        """Refuse."""
        raise _single("encode")

    def decode(self, z: Tensor, like: Tensor) -> Tensor:
        """Refuse."""
        raise _single("decode")

    def refresh(self, params: Tensor, samples: Samples) -> None:
        """Refuse."""
        raise _single("refresh")

    def _pass(self, params: Tensor, batch: Batch, spans: Spans) -> tuple[Tensor, Tensor]:
        r"""Return the sums over a batch.

        With a layer's input :math:`h_j` and the gradient in its output :math:`s_j`, a sample's gradient in the
        weights is :math:`s_j h_j^\top`, and that in the bias :math:`s_j`.
        """
        kernel, weight = self._kernel, batch.weight.unsqueeze(1)  # (clients, 1, n)
        activations = kernel.activations(batch)
        ones, loss = activations.ones.mT, kernel.layout.loss
        single = Batch(batch.x, batch.y, loss.weighted(batch.y.unsqueeze(2), ones))
        wanted = {s.start for s in self.names.values() if any(_within(s, span) for span in spans)}
        # By the first position of weights or biases.
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for number, inputs in kernel.signals(params, single, activations):
            layer, signal = kernel.layout.layers[number], activations.signals[number]
            if layer.weight.start in wanted:
                found[layer.weight.start] = _sums(signal.mT, weight, inputs)
            if layer.bias is not None and layer.bias.start in wanted:
                found[layer.bias.start] = _sums(activations.ones, weight, signal)
            if len(found) == len(wanted):
                break
        first, second = zip(*(found[start] for start in sorted(wanted)), strict=True)
        return torch.cat(first, dim=1), torch.cat(second, dim=1)

    def _chunks(self, batch: Batch) -> Iterator[Batch]:
        """Split a batch, to bound memory, and encode it as the first layer sees it."""
        layout = self._kernel.layout
        parts = (torch.split(t, CHUNK_SAMPLES, dim=1) for t in (batch.x, batch.y, batch.weight))
        for x, y, weight in zip(*parts, strict=True):
            encoded = torch.empty(*y.shape, layout.layers[0].inputs, dtype=layout.dtype)
            layout.encode_(x.flatten(2), encoded)
            numbers = layout.loss.encoded(y, layout.dtype)
            yield Batch(encoded, numbers, weight.to(layout.dtype))


def _single(name: str) -> IncompatibleError:
    return IncompatibleError(
        f"engine batched: objective.{name} works on one client at a time; "
        "remove @stacked from the method that calls it"
    )


def _within(part: slice, span: slice) -> bool:
    return bool(span.start <= part.start < span.stop)


def _sums(left: Tensor, weight: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sum :math:`a_j l_j r_j` and :math:`a_j l_j^2 r_j^2` over samples *j*, ``(clients, parameters)``."""
    first = torch.bmm(left * weight, right)
    second = torch.bmm(left.square() * weight, right.square())
    return first.flatten(1), second.flatten(1)

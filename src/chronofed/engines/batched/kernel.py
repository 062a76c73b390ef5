"""Hand-written gradients of many fully connected models at once: one client per row of ``(clients, d)``.

:func:`twin` computes the same through autograd, client by client; it is the oracle of the tests.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chronofed.core.types import Batch, Objective
from chronofed.engines.batched.layout import Dense, Layout
from chronofed.engines.batched.loop import QuadraticTerm, compiled, step_along
from chronofed.engines.batched.losses import CROSS_ENTROPY, BatchedLoss, residual_slope_
from chronofed.engines.batched.workspace import Workspace

# Most shapes of steps whose buffers are kept.
MAX_ACTIVATIONS = 32
# Tensors whose views are remembered: parameters and gradients of a step.
MAX_VIEWED = 4

_threshold_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True, slots=True)
class LayerViews:
    """A layer's parameters of all clients, as views; made once, because every view is a call, too."""

    weight: Tensor  # (clients, outputs, inputs)
    transposed: Tensor  # (clients, inputs, outputs)
    bias: Tensor | None  # (clients, 1, outputs)


class Activations:
    """Buffers for a step of so many clients with so many samples each.

    A layer's *signal* is the gradient of the loss in its output.

    Attributes:
        outputs: Outputs of every layer, ``(clients, b, outputs)``.
        signals: Signals of every layer, ``(clients, b, outputs)``.
        transposed: The same signals, ``(clients, outputs, b)``.
        ones: A row of ones for every client, ``(clients, 1, b)``.
        minus_one: What the loss subtracts from the probability of the true class, ``(clients, b, 1)``.
    """

    def __init__(self, layout: Layout, clients: int, samples: int) -> None:
        def empty(width: int) -> Tensor:
            return torch.empty(clients, samples, width, dtype=layout.dtype)

        self.outputs = [empty(layer.outputs) for layer in layout.layers]
        self.signals = [empty(layer.outputs) for layer in layout.layers]
        self.transposed = [signal.mT for signal in self.signals]
        self.ones = torch.ones(clients, 1, samples, dtype=layout.dtype)
        self.minus_one = -self.ones.mT


@dataclass(frozen=True, slots=True)
class Schedule:
    """The samples of all steps, for clients that see equally many samples in each.

    Attributes:
        x: Samples of all clients, ``(n, features)``.
        rows: The rows of ``x`` that each client sees, step after step, ``(clients, total)``.
        y: Their labels, ``(clients, total, 1)``.
        weight: Their weights, ``(clients, total, 1)``.
        sizes: Number of samples of each step.
    """

    x: Tensor
    rows: Tensor
    y: Tensor
    weight: Tensor
    sizes: list[int]

    @property
    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, labels and weights, step by step."""
        parts = (self.rows, self.y, self.weight)
        return zip(*(torch.split(part, self.sizes, dim=1) for part in parts), strict=True)


class BatchedMlp:
    r"""Gradients of :math:`\sum_j a_j\, \ell(\mathrm{mlp}_w(x_j), y_j)` for every client's own *w*.

    Batches have a leading client axis, ``(clients, b, ...)``; a weight of zero makes a sample padding. Labels
    and weights may have an axis of length one at the end, which saves a call. Calls matter: each releases
    Python's lock, and several workers wait for it.

    Attributes:
        layout: The model.
        workspace: Buffers that the kernel shares with its callers.
    """

    def __init__(self, layout: Layout, workspace: Workspace) -> None:
        self.layout = layout
        self.workspace = workspace
        self._viewed: deque[tuple[Tensor, list[LayerViews]]] = deque(maxlen=MAX_VIEWED)
        self._activations: dict[tuple[int, int], Activations] = {}

    def gradient(self, params: Tensor, batch: Batch, out: Tensor) -> Tensor:
        """Write the gradients at ``params`` to ``out``, both ``(clients, d)``."""
        views, activations = self._views(out), self.activations(batch)
        for number, inputs in self.signals(params, batch, activations):
            view = views[number]
            torch.bmm(activations.transposed[number], inputs, out=view.weight)
            if view.bias is not None:
                torch.bmm(activations.ones, activations.signals[number], out=view.bias)
        return out

    def step_(
        self,
        params: Tensor,
        batch: Batch,
        lr: float,
        decay: float = 0.0,
        quadratic: QuadraticTerm | None = None,
    ) -> None:
        r"""Take one step :math:`w \gets w - \eta\,(g(w) + \lambda w)` in place, without writing *g* down.

        With the term of :class:`~chronofed.engines.batched.quadratics.Quadratics` it descends these, too.
        """
        factor, views, activations = 1 - lr * decay, self._views(params), self.activations(batch)
        term = quadratic or self.no_quadratic
        for number, inputs in self.signals(params, batch, activations):
            view, left = views[number], activations.transposed[number]
            step_along(view.weight, left, inputs, term[2 * number], lr, factor)
            if view.bias is not None:
                ones, signal = activations.ones, activations.signals[number]
                step_along(view.bias, ones, signal, term[2 * number + 1], lr, factor)

    def descend_(
        self,
        params: Tensor,
        schedule: Schedule,
        lr: float,
        decay: float = 0.0,
        quadratic: QuadraticTerm | None = None,
    ) -> None:
        """Take all steps of a schedule at once; each as :meth:`step_`."""
        compiled()(
            params,
            schedule.x,
            schedule.rows,
            schedule.y,
            schedule.weight,
            schedule.sizes,
            self.layout.offsets,
            quadratic or self.no_quadratic,
            lr,
            1 - lr * decay,
            self.layout.scaled and schedule.x.dtype == torch.uint8,
            self.layout.loss.kind,
            self.layout.loss.setting,
        )

    @property
    def no_quadratic(self) -> QuadraticTerm:
        """The term of a past without a quadratic."""
        return [[] for _ in range(2 * len(self.layout.layers))]

    def _views(self, flat: Tensor) -> list[LayerViews]:
        """Return the layers' views of a tensor; the same tensors come again and again."""
        for known, views in self._viewed:
            if known is flat:
                return views
        views = [_layer_views(layer, flat) for layer in self.layout.layers]
        self._viewed.append((flat, views))
        return views

    def activations(self, batch: Batch) -> Activations:
        """Return the buffers of a pass; the next pass of the same shape uses them again."""
        key = batch.x.shape[0], batch.x.shape[1]
        if key not in self._activations:
            if len(self._activations) == MAX_ACTIVATIONS:
                self._activations.clear()
            self._activations[key] = Activations(self.layout, *key)
        return self._activations[key]

    def signals(
        self, params: Tensor, batch: Batch, activations: Activations
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield every layer's number and input, last to first, when its signal is in ``activations``.

        By then its parameters are no longer needed, so that the caller may change them.
        """
        views, outputs = self._views(params), activations.outputs
        inputs = [batch.x, *outputs]
        for view, x, out in zip(views, inputs, outputs, strict=False):
            if view.bias is None:
                torch.bmm(x, view.transposed, out=out)
            else:
                torch.baddbmm(view.bias, x, view.transposed, out=out)
            if out is not outputs[-1]:
                out.relu_()
        _loss_signal(self.layout.loss, outputs[-1], batch, activations)
        for number in reversed(range(len(views))):
            if number:
                below = activations.signals[number - 1]
                torch.bmm(activations.signals[number], views[number].weight, out=below)
                _threshold_backward(below, outputs[number - 1], 0, grad_input=below)
            yield number, inputs[number]


def _layer_views(layer: Dense, flat: Tensor) -> LayerViews:
    weight, bias = layer.weight_of(flat), layer.bias_of(flat)
    return LayerViews(weight, weight.mT, None if bias is None else bias.unsqueeze(1))


def _loss_signal(loss: BatchedLoss, logits: Tensor, batch: Batch, activations: Activations) -> None:
    r"""Write the gradient in the outputs: :math:`a_j (\mathrm{softmax} - e_{y_j})` of cross-entropy."""
    y = batch.y if batch.y.dim() == 3 else batch.y.unsqueeze(2)
    weight = batch.weight if batch.weight.dim() == 3 else batch.weight.unsqueeze(2)
    if loss.kind != CROSS_ENTROPY:
        residual = torch.sub(logits, y, out=activations.signals[-1])
        torch.mul(
            residual_slope_(residual, loss.kind, loss.setting), weight, out=activations.signals[-1]
        )
        return
    signal = torch.softmax(logits, 2, out=activations.signals[-1])
    signal.scatter_add_(2, y, activations.minus_one).mul_(weight)


def twin(objective: Objective, params: Tensor, batch: Batch) -> Tensor:
    """Compute what :meth:`BatchedMlp.gradient` does, one client after another; slow and plain."""
    rows = zip(params, batch.x, batch.y, batch.weight, strict=True)
    return torch.stack([objective.gradient(w, Batch(x, y, a)) for w, x, y, a in rows])

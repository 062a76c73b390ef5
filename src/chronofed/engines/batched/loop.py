"""The whole local training of many small MLPs as one function that torch can run without Python.

Workers that train in parallel threads wait for Python's lock at every call into torch, and small models make
many calls. Compiled as TorchScript, the loop makes one. If that is not available, it runs as it is: the same
operations, the same bits.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import List, TypeAlias

import torch
from torch import Tensor

from chronofed.engines.batched.losses import residual_slope_

# Two entries per layer; see ``quadratic`` of :func:`descend_plainly`.
QuadraticTerm: TypeAlias = list[list[Tensor]]
Loop: TypeAlias = Callable[
    [
        Tensor,
        Tensor,
        Tensor,
        Tensor,
        Tensor,
        list[int],
        list[list[int]],
        QuadraticTerm,
        float,
        float,
        bool,
        int,
        float,
    ],
    None,
]


def step_along(
    part: Tensor,
    left: Tensor,
    right: Tensor,
    quadratic: List[Tensor],
    lr: float,
    decay_factor: float,
) -> None:
    r"""One step of some weights or biases, whose gradient is the product of two matrices.

    .. math:: w \gets \kappa w - \eta\, L R, \qquad
        w \gets (\kappa - \eta b)\, w - \eta a - \eta\, (s L) R

    The second with a quadratic of the past: *s*, :math:`\kappa - \eta b` and :math:`-\eta a` are the entries of
    ``quadratic``. :math:`\kappa` is ``decay_factor``.
    """
    if len(quadratic) == 0:
        part.baddbmm_(left, right, beta=decay_factor, alpha=-lr)
    else:
        part.mul_(quadratic[1]).add_(quadratic[2])
        part.baddbmm_(left * quadratic[0], right, alpha=-lr)


def output_signal(outputs: Tensor, y: Tensor, loss: int, setting: float) -> Tensor:
    r"""Return the derivative of the loss in the outputs: of cross-entropy :math:`\mathrm{softmax} - e_y`."""
    if loss != 0:
        return residual_slope_(outputs - y, loss, setting)
    signal = torch.softmax(outputs, 2)
    minus = torch.full([1, 1, 1], -1.0, dtype=outputs.dtype).expand(y.shape)
    return signal.scatter_add_(2, y, minus)


def descend_plainly(
    params: Tensor,
    x: Tensor,
    rows: Tensor,
    y: Tensor,
    weight: Tensor,
    sizes: List[int],
    layers: List[List[int]],
    quadratic: List[List[Tensor]],
    lr: float,
    decay_factor: float,
    scaled: bool,
    loss: int = 0,
    setting: float = 0.0,
) -> None:
    """Descend the gradients of a weighted loss in place.

    Args:
        params: Parameters of all clients, ``(clients, d)``; they are changed.
        x: Samples, ``(n, features)``.
        rows: The rows of ``x`` that each client sees, all steps one after the other, ``(clients, total)``.
        y: Their labels, ``(clients, total, 1)``.
        weight: Their weights, ``(clients, total, 1)``.
        sizes: Number of samples of each step.
        layers: For every layer inputs, outputs, first weight and first bias (-1 for none).
        quadratic: What a quadratic adds to every layer's weights and then its bias, two entries per layer:
            empty for nothing, else the argument of :func:`step_along`.
        lr: Step size.
        decay_factor: Factor of the parameters in a step, less than 1 with weight decay.
        scaled: Whether bytes are scaled first.
        loss: Number of the loss (:mod:`chronofed.engines.batched.losses`).
        setting: Its setting.
    """
    clients = rows.shape[0]
    weights = [params[:, n[2] : n[2] + n[0] * n[1]].view(clients, n[1], n[0]) for n in layers]
    biases = [params[:, max(n[3], 0) : max(n[3], 0) + n[1]].unsqueeze(1) for n in layers]
    last = len(layers) - 1
    start = 0
    for size in sizes:
        stop = start + size
        picked = torch.index_select(x, 0, rows[:, start:stop].reshape(-1)).to(params.dtype)
        if scaled:
            picked.mul_(4 / 255).sub_(2)
        inputs = [picked.view(clients, size, -1)]
        for k in range(last + 1):
            transposed = weights[k].transpose(1, 2)
            out = torch.bmm(inputs[k], transposed)
            if layers[k][3] >= 0:
                out.add_(biases[k])
            inputs.append(out if k == last else out.relu_())
        signal = output_signal(inputs[last + 1], y[:, start:stop], loss, setting)
        signal.mul_(weight[:, start:stop])
        ones = torch.ones([clients, 1, size], dtype=params.dtype)
        for j in range(last + 1):
            k = last - j
            below = signal
            if k > 0:
                below = torch.bmm(signal, weights[k])
                below.mul_(inputs[k] > 0)
            left = signal.transpose(1, 2)
            step_along(weights[k], left, inputs[k], quadratic[2 * k], lr, decay_factor)
            if layers[k][3] >= 0:
                step_along(biases[k], ones, signal, quadratic[2 * k + 1], lr, decay_factor)
            signal = below
        start = stop


@cache
def compiled() -> Loop:
    """Return the loop as TorchScript, or as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scripted: Loop = torch.jit.script(descend_plainly)
        except (RuntimeError, AttributeError):
            return descend_plainly
    return scripted

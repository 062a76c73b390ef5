"""The whole local training of many small MLPs as one function that torch can run without Python.

Workers that train side by side in threads wait for Python's lock at every call into torch, and small models
make many calls. Compiled as TorchScript the loop makes one. Where that is not to be had it runs as it is: the
same operations, the same bits.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import List, TypeAlias  # noqa: UP035 - what TorchScript understands

import torch
from torch import Tensor

Pull: TypeAlias = list[list[Tensor]]  # see ``pull`` of :func:`descend_plainly`
Loop: TypeAlias = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, list[int], list[list[int]], Pull, float, float, bool],
    None,
]


def step_along(
    part: Tensor,
    left: Tensor,
    right: Tensor,
    pull: List[Tensor],  # noqa: UP006
    lr: float,
    keep: float,
) -> None:
    r"""One step of some weights or biases, whose gradient is the product of two matrices.

    .. math:: w \gets \kappa w - \eta\, L R, \qquad
        w \gets (\kappa - \eta b)\, w - \eta a - \eta\, (s L) R

    The second where a quadratic pulls: *s*, :math:`\kappa - \eta b` and :math:`-\eta a` are its ``pull``.
    """
    if len(pull) == 0:
        part.baddbmm_(left, right, beta=keep, alpha=-lr)
    else:
        part.mul_(pull[1]).add_(pull[2]).baddbmm_(left * pull[0], right, alpha=-lr)


def descend_plainly(  # noqa: PLR0913, PLR0917
    params: Tensor,
    x: Tensor,
    rows: Tensor,
    y: Tensor,
    weight: Tensor,
    sizes: List[int],  # noqa: UP006
    layers: List[List[int]],  # noqa: UP006
    pull: List[List[Tensor]],  # noqa: UP006
    lr: float,
    keep: float,
    scaled: bool,
) -> None:
    """Descend the gradients of weighted cross-entropy in place.

    Args:
        params: Parameters of all clients, ``(clients, d)``; they are changed.
        x: Samples, ``(n, features)``.
        rows: Which samples each client sees, all steps one after the other, ``(clients, total)``.
        y: Their labels, ``(clients, total, 1)``.
        weight: Their weights, likewise.
        sizes: How many of them each step takes.
        layers: For every layer inputs, outputs, where its weights begin, and its bias (-1 for none).
        pull: What a quadratic adds to every layer's weights and then its bias, two entries a layer: empty for
            nothing, else what :func:`step_along` needs.
        lr: Step size.
        keep: What a step leaves of the parameters, less than 1 with weight decay.
        scaled: Whether bytes are scaled as the model's first step.
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
        seen = [picked.view(clients, size, -1)]
        for k in range(last + 1):
            turned = weights[k].transpose(1, 2)
            out = torch.bmm(seen[k], turned)
            if layers[k][3] >= 0:
                out.add_(biases[k])
            seen.append(out if k == last else out.relu_())
        signal = torch.softmax(seen[last + 1], 2)
        minus = torch.full([1, 1, 1], -1.0, dtype=params.dtype).expand(clients, size, 1)
        signal.scatter_add_(2, y[:, start:stop], minus).mul_(weight[:, start:stop])
        ones = torch.ones([clients, 1, size], dtype=params.dtype)
        for j in range(last + 1):
            k = last - j
            below = signal
            if k > 0:
                below = torch.bmm(signal, weights[k])
                below.mul_(seen[k] > 0)
            step_along(weights[k], signal.transpose(1, 2), seen[k], pull[2 * k], lr, keep)
            if layers[k][3] >= 0:
                step_along(biases[k], ones, signal, pull[2 * k + 1], lr, keep)
            signal = below
        start = stop


@cache
def compiled() -> Loop:
    """The loop as TorchScript, or as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scripted: Loop = torch.jit.script(descend_plainly)
        except (RuntimeError, AttributeError):
            return descend_plainly
    return scripted

"""Sums of the gradients of single samples, and of their squares, from one pass over all samples.

A sample's gradient in a layer's parameters follows from the layer's input and the gradient in its output, its
*signal*. Both are recorded for the requested layers; the backward pass goes no deeper than these.
:func:`reference_moments` computes the same by :func:`torch.func.vmap` for any model, more slowly; it is the
oracle of the tests.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from chronofed.core.types import Batch
from chronofed.models.layers import BasicBlock, Classifier, ResNet, Scale, Transpose
from chronofed.models.losses import CrossEntropy, Loss

# Numbers of single samples' gradients at a time, so that they stay in the cache.
CACHED_NUMBERS = 2**19
# Sum of gradients, and of their squares.
Moments: TypeAlias = tuple[Tensor, Tensor]
# Inputs and outputs of layers.
Recorded: TypeAlias = dict[nn.Module, tuple[Tensor, Tensor]]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (*BATCH_NORMS, nn.GroupNorm)
OTHERS = (nn.Flatten, nn.ReLU, nn.Identity, nn.MaxPool1d, nn.MaxPool2d, Scale, Transpose)
CONTAINERS = (nn.Sequential, Classifier, ResNet, BasicBlock)
# In evaluation mode, no sample's output of these modules depends on another sample.
KNOWN_MODULES = frozenset((nn.Linear, *CONVOLUTIONS, *NORMS, *OTHERS, *CONTAINERS))


def shifted(logits: Tensor, batch: Batch) -> Tensor:
    """Scale the logits of a batch, and add its offset."""
    if batch.scale is not None:
        logits = logits * batch.scale.to(logits)
    return logits if batch.offset is None else logits + batch.offset.to(logits)


def supports(module: nn.Module) -> bool:
    """Check that :func:`moments` knows every part of a model, and that each is called once."""
    parts = [part for _, part in module.named_modules(remove_duplicate=False)]
    parameters = [p for part in parts for p in part.parameters(recurse=False)]
    return all(map(_supports, parts)) and all(
        len(set(map(id, some))) == len(some) for some in (parts, parameters)
    )


def _supports(part: nn.Module) -> bool:
    if type(part) not in KNOWN_MODULES or part._forward_hooks or part._forward_pre_hooks:
        return False
    if isinstance(part, CONVOLUTIONS):
        return part.groups == 1 and part.padding_mode == "zeros" and type(part.padding) is tuple
    if isinstance(part, BATCH_NORMS):
        # Without running statistics, a sample's output depends on the others.
        return part.running_mean is not None
    # An operation in place would overwrite what is recorded.
    return not getattr(part, "inplace", False)


def moments(
    module: nn.Module, names: Sequence[str], batch: Batch, price: Loss | None = None
) -> list[Moments]:
    """Return the weighted sums over a batch for each parameter, in evaluation mode; see :func:`supports`.

    The loss of a sample is ``price``, by default cross-entropy.
    """
    layers = _layers(module, names)
    with _recording(module, layers) as recorded:
        outputs = shifted(module(batch.x), batch)
        loss = (price or CrossEntropy()).total(outputs, batch.y)
    signals = torch.autograd.grad(loss, [recorded[layer][1] for layer in layers])
    found, weight = dict[str, Moments](), batch.weight.to(loss)
    for (layer, wanted), signal in zip(layers.items(), signals, strict=True):
        for kind, name in wanted.items():
            found[name] = _sums(layer, kind, recorded[layer][0], signal, weight)
    return [found[name] for name in names]


def _layers(module: nn.Module, names: Sequence[str]) -> Mapping[nn.Module, Mapping[str, str]]:
    """Return the layers of parameters; for each, ``weight`` or ``bias`` and its full name."""
    layers: defaultdict[nn.Module, dict[str, str]] = defaultdict(dict)
    for name in names:
        place, _, kind = name.rpartition(".")
        layers[module.get_submodule(place)][kind] = name
    return layers


@contextmanager
def _recording(module: nn.Module, layers: Mapping[nn.Module, object]) -> Iterator[Recorded]:
    """Record inputs and outputs of layers in the block; only what follows the layers can be differentiated."""
    recorded: Recorded = {}

    def record(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        recorded[layer] = inputs[0].detach(), output.requires_grad_()

    hooks = [layer.register_forward_hook(record) for layer in layers]
    trained = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield recorded
    finally:
        for parameter in trained:
            parameter.requires_grad_()
        for hook in hooks:
            hook.remove()


def _sums(layer: nn.Module, kind: str, inputs: Tensor, signal: Tensor, weight: Tensor) -> Moments:
    """Return the sums for a layer's weights or biases."""
    if isinstance(layer, nn.Linear):
        inputs, signal = _channels_first(inputs), _channels_first(signal)
    if kind == "bias":
        return _of_rows(_over_positions(signal), weight)
    if isinstance(layer, NORMS):
        return _of_rows(_over_positions(signal * _normal(layer, inputs)), weight)
    if inputs.dim() == 2:
        return _of_products(signal, inputs, weight)
    return _of_positions(layer, inputs, signal.flatten(2), weight)


def _channels_first(t: Tensor) -> Tensor:
    """Turn ``(n, ..., channels)`` into ``(n, channels, positions)``."""
    return t if t.dim() == 2 else t.flatten(1, -2).mT


def _over_positions(t: Tensor) -> Tensor:
    """Sum over all axes but samples and channels."""
    return t if t.dim() == 2 else t.flatten(2).sum(2)


def _normal(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Normalise a layer's input, without scale and shift."""
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    assert isinstance(layer, BATCH_NORMS)
    return functional.batch_norm(inputs, layer.running_mean, layer.running_var, eps=layer.eps)


def _of_rows(rows: Tensor, weight: Tensor) -> Moments:
    """Moments from a gradient for every sample, ``(n, m)``."""
    return weight @ rows, weight @ rows.square()


def _of_products(left: Tensor, right: Tensor, weight: Tensor) -> Moments:
    r"""Moments from gradients :math:`l_j r_j^\top`, whose squares are products of squares."""
    a = weight[:, None]
    return (left * a).mT @ right, (left.square() * a).mT @ right.square()


def _of_positions(layer: nn.Module, inputs: Tensor, signal: Tensor, weight: Tensor) -> Moments:
    """Moments from sums of such products, one per position; signals are ``(n, out, positions)``."""
    outputs, size = layer.get_parameter("weight").flatten(1).shape
    at_once = max(1, CACHED_NUMBERS // (outputs * size))
    space = weight.new_empty(at_once, outputs, size)
    first, second = weight.new_zeros(2, outputs * size)
    parts = (torch.split(t, at_once) for t in (inputs, signal, weight))
    for some, signals, a in zip(*parts, strict=True):
        rows = torch.bmm(signals, _patches(layer, some), out=space[: len(a)]).flatten(1)
        first.addmv_(rows.mT, a)
        second.addmv_(rows.square_().mT, a)
    return _as_stored(layer, first), _as_stored(layer, second)


def _patches(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return a convolution's patches, ``(n, positions, in)``: at each position it is a linear layer.

    Channels are innermost, as they are in memory: much faster than :func:`torch.nn.functional.unfold`.
    """
    if not isinstance(layer, CONVOLUTIONS):
        return inputs.mT
    assert not isinstance(layer.padding, str)
    sides = [side for side in reversed(layer.padding) for _ in range(2)]
    windows = functional.pad(inputs, sides).movedim(1, -1)
    each = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
    for axis, (kernel, dilation, stride) in enumerate(each, 1):
        windows = windows.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    width = layer.get_parameter("weight")[0].numel()
    return windows.movedim(inputs.dim() - 1, -1).reshape(len(inputs), -1, width)


def _as_stored(layer: nn.Module, flat: Tensor) -> Tensor:
    """Bring sums from the order of :func:`_patches` into that of the weights."""
    shape = layer.get_parameter("weight").shape
    return flat.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def reference_moments(
    module: nn.Module, names: Sequence[str], batch: Batch, price: Loss | None = None
) -> list[Moments]:
    """Compute what :func:`moments` does, for any model, from every sample's own gradient; slow and plain."""
    fixed = {n: p.detach() for n, p in (*module.named_parameters(), *module.named_buffers())}
    chosen = {name: fixed.pop(name) for name in names}

    def loss(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = shifted(functional_call(module, fixed | chosen, (x[None],)), batch)
        return (price or CrossEntropy()).total(outputs, y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(chosen, batch.x, batch.y)
    rows = [gradients[name].flatten(1) for name in names]  # (n, m) each
    return [_of_rows(each, batch.weight.to(each)) for each in rows]

"""Sums of the gradients of single samples, and of their squares, from one pass over all samples.

A sample's gradient in a layer's parameters follows from what the layer sees of it and the gradient in what the
layer says, its *signal*. Both are noted on the way, for the layers that are asked for; the backward pass goes
no deeper than these. :func:`twin` says the same by :func:`torch.func.vmap` for any model, more slowly; it is
the oracle of the tests.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from chronofed.tasks.models import BasicBlock, Classifier, ResNet, Scale, Transpose
from chronofed.types import Batch

CACHED = 2**19  # numbers of single samples' gradients at a time, so that they stay in the cache
Moments: TypeAlias = tuple[Tensor, Tensor]  # sum of gradients, and of their squares
Notes: TypeAlias = dict[nn.Module, tuple[Tensor, Tensor]]  # what layers saw, and what they said

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (*BATCH_NORMS, nn.GroupNorm)
OTHERS = (nn.Flatten, nn.ReLU, nn.Identity, nn.MaxPool1d, nn.MaxPool2d, Scale, Transpose)
WHOLES = (nn.Sequential, Classifier, ResNet, BasicBlock)
# Of these parts, in use, no sample's output depends on another sample.
KINDS = frozenset((nn.Linear, *CONVOLUTIONS, *NORMS, *OTHERS, *WHOLES))


def known(module: nn.Module) -> bool:
    """Whether a model is made of such parts, each called once, that :func:`moments` knows them all."""
    parts = [part for _, part in module.named_modules(remove_duplicate=False)]
    parameters = [p for part in parts for p in part.parameters(recurse=False)]
    return all(map(_known, parts)) and all(
        len(set(map(id, some))) == len(some) for some in (parts, parameters)
    )


def _known(part: nn.Module) -> bool:
    if type(part) not in KINDS or part._forward_hooks or part._forward_pre_hooks:
        return False
    if isinstance(part, CONVOLUTIONS):
        return part.groups == 1 and part.padding_mode == "zeros" and type(part.padding) is tuple
    if isinstance(part, BATCH_NORMS):
        return part.running_mean is not None  # else samples see each other
    return not getattr(part, "inplace", False)  # it would overwrite what is noted


def moments(module: nn.Module, names: Sequence[str], batch: Batch) -> list[Moments]:
    """The weighted sums over a batch, for each of these parameters of a :func:`known` model in use."""
    layers = _layers(module, names)
    with _noted(module, layers) as notes:
        loss = functional.cross_entropy(module(batch.x), batch.y, reduction="sum")
    signals = torch.autograd.grad(loss, [notes[layer][1] for layer in layers])
    found, weight = dict[str, Moments](), batch.weight.to(loss)
    for (layer, wanted), signal in zip(layers.items(), signals, strict=True):
        for kind, name in wanted.items():
            found[name] = _sums(layer, kind, notes[layer][0], signal, weight)
    return [found[name] for name in names]


def _layers(module: nn.Module, names: Sequence[str]) -> Mapping[nn.Module, Mapping[str, str]]:
    """The layers that parameters belong to; in each ``weight`` or ``bias``, and its whole name."""
    layers: defaultdict[nn.Module, dict[str, str]] = defaultdict(dict)
    for name in names:
        place, _, kind = name.rpartition(".")
        layers[module.get_submodule(place)][kind] = name
    return layers


@contextmanager
def _noted(module: nn.Module, layers: Mapping[nn.Module, object]) -> Iterator[Notes]:
    """Notes of the layers in the block's pass, of which only what follows them can be differentiated."""
    notes: Notes = {}

    def note(layer: nn.Module, seen: tuple[Tensor], said: Tensor) -> None:
        notes[layer] = seen[0].detach(), said.requires_grad_()

    hooks = [layer.register_forward_hook(note) for layer in layers]
    trained = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield notes
    finally:
        for parameter in trained:
            parameter.requires_grad_()
        for hook in hooks:
            hook.remove()


def _sums(layer: nn.Module, kind: str, seen: Tensor, signal: Tensor, weight: Tensor) -> Moments:
    """The sums for a layer's weights or biases."""
    if isinstance(layer, nn.Linear):
        seen, signal = _channels_first(seen), _channels_first(signal)
    if kind == "bias":
        return _of_rows(_over_positions(signal), weight)
    if isinstance(layer, NORMS):
        return _of_rows(_over_positions(signal * _normal(layer, seen)), weight)
    if seen.dim() == 2:
        return _of_products(signal, seen, weight)
    return _of_positions(layer, seen, signal.flatten(2), weight)


def _channels_first(t: Tensor) -> Tensor:
    """``(n, ..., channels)`` as ``(n, channels, positions)``."""
    return t if t.dim() == 2 else t.flatten(1, -2).mT


def _over_positions(t: Tensor) -> Tensor:
    """Sums over all axes but samples and channels."""
    return t if t.dim() == 2 else t.flatten(2).sum(2)


def _normal(layer: nn.Module, seen: Tensor) -> Tensor:
    """What a normalisation makes of its input before it is scaled and shifted."""
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(seen, layer.num_groups, eps=layer.eps)
    assert isinstance(layer, BATCH_NORMS)
    return functional.batch_norm(seen, layer.running_mean, layer.running_var, eps=layer.eps)


def _of_rows(rows: Tensor, weight: Tensor) -> Moments:
    """From a gradient for every sample, ``(n, m)``."""
    return weight @ rows, weight @ rows.square()


def _of_products(left: Tensor, right: Tensor, weight: Tensor) -> Moments:
    r"""From gradients :math:`l_j r_j^\top`, whose squares are products of squares."""
    a = weight[:, None]
    return (left * a).mT @ right, (left.square() * a).mT @ right.square()


def _of_positions(layer: nn.Module, seen: Tensor, signal: Tensor, weight: Tensor) -> Moments:
    """From gradients that are sums of such products, one for each position; signals ``(n, out, positions)``."""
    outputs, size = layer.get_parameter("weight").flatten(1).shape
    at_once = max(1, CACHED // (outputs * size))
    space = weight.new_empty(at_once, outputs, size)
    first, second = weight.new_zeros(2, outputs * size)
    parts = (torch.split(t, at_once) for t in (seen, signal, weight))
    for some, said, a in zip(*parts, strict=True):
        rows = torch.bmm(said, _patches(layer, some), out=space[: len(a)]).flatten(1)
        first.addmv_(rows.mT, a)
        second.addmv_(rows.square_().mT, a)
    return _as_stored(layer, first), _as_stored(layer, second)


def _patches(layer: nn.Module, seen: Tensor) -> Tensor:
    """What the weights meet at each position, ``(n, positions, in)``: a convolution is a linear layer there.

    Channels are innermost, as they are in memory: much faster than :func:`torch.nn.functional.unfold`.
    """
    if not isinstance(layer, CONVOLUTIONS):
        return seen.mT
    assert not isinstance(layer.padding, str)
    sides = [side for side in reversed(layer.padding) for _ in range(2)]
    windows = functional.pad(seen, sides).movedim(1, -1)
    each = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
    for axis, (kernel, dilation, stride) in enumerate(each, 1):
        windows = windows.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    inputs = layer.get_parameter("weight")[0].numel()
    return windows.movedim(seen.dim() - 1, -1).reshape(len(seen), -1, inputs)


def _as_stored(layer: nn.Module, flat: Tensor) -> Tensor:
    """Sums for weights in the order of :func:`_patches` as the weights themselves lie."""
    shape = layer.get_parameter("weight").shape
    return flat.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def twin(module: nn.Module, names: Sequence[str], batch: Batch) -> list[Moments]:
    """What :func:`moments` computes, for any model in use, from every sample's own gradient; slow and plain."""
    fixed = {n: p.detach() for n, p in (*module.named_parameters(), *module.named_buffers())}
    chosen = {name: fixed.pop(name) for name in names}

    def loss(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(module, fixed | chosen, (x[None],))
        return functional.cross_entropy(logits, y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(chosen, batch.x, batch.y)
    rows = [gradients[name].flatten(1) for name in names]  # (n, m) each
    return [_of_rows(each, batch.weight.to(each)) for each in rows]

"""The models that the batched kernel can run, and the layout of their parameters in a flat vector.

The kernel computes such a model's gradients itself and calls neither the module nor its objective. So
:func:`layout_of` accepts only what it recognises completely, and refuses everything else with the reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from chronofed.core.flat import Flat
from chronofed.core.types import Objective, Spans
from chronofed.engines.batched.losses import BatchedLoss, batched_loss
from chronofed.models.layers import Classifier, Scale
from chronofed.models.objective import TorchObjective

# Modules that may stand before the first layer.
INPUT_MODULES = (Scale, nn.Flatten)
LAYERS = (*INPUT_MODULES, nn.Linear, nn.ReLU)
OBJECTIVE_FIELDS = frozenset(
    {"device", "flat", "uses_batch_statistics", "loss", "_augment", "_channels_last"}
    # What the module consists of, which the layout is read from.
    | {"_layers", "_modules", "_plain"}
)
"""Attributes of an objective that are read here; one with any other is refused."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)


@dataclass(frozen=True, slots=True)
class Dense:
    """A fully connected layer: its sizes, and its slices of the flat vector."""

    inputs: int
    outputs: int
    weight: slice
    bias: slice | None

    @property
    def parts(self) -> Iterator[tuple[slice | None, tuple[int, int]]]:
        """Slices and shapes of weights and bias: ``(outputs, inputs)`` and ``(1, outputs)``."""
        yield self.weight, (self.outputs, self.inputs)
        yield self.bias, (1, self.outputs)

    def weight_of(self, flat: Tensor) -> Tensor:
        """View of the weights, ``(clients, outputs, inputs)``."""
        return flat[:, self.weight].view(-1, self.outputs, self.inputs)

    def bias_of(self, flat: Tensor) -> Tensor | None:
        """View of the bias, ``(clients, outputs)``."""
        return None if self.bias is None else flat[:, self.bias]


@dataclass(frozen=True, slots=True)
class Layout:
    """A linear model, or an MLP with ReLU.

    Attributes:
        layers: First to last.
        scaled: Whether bytes are scaled (:class:`~chronofed.models.layers.Scale`).
        dtype: Dtype of the parameters.
        names: The slice of the flat vector that each named parameter occupies.
        loss: The loss of a sample.
    """

    layers: tuple[Dense, ...]
    scaled: bool
    dtype: torch.dtype
    names: Mapping[str, slice]
    loss: BatchedLoss

    @property
    def size(self) -> int:
        """Number of parameters d."""
        return sum(n.outputs * (n.inputs + (n.bias is not None)) for n in self.layers)

    @property
    def width(self) -> int:
        """Size of the largest layer input."""
        return max(layer.inputs for layer in self.layers)

    @property
    def offsets(self) -> list[list[int]]:
        """Inputs, outputs, first weight and first bias (or -1) of every layer."""
        return [
            [n.inputs, n.outputs, n.weight.start, -1 if n.bias is None else n.bias.start]
            for n in self.layers
        ]

    def aligned(self, spans: Spans) -> bool:
        """Check that spans begin and end at the boundaries of weights and biases."""
        parts = [part for layer in self.layers for part, _ in layer.parts if part is not None]
        ends = {end for part in parts for end in (part.start, part.stop)}
        return all(end in ends for span in spans for end in (span.start, span.stop))

    def encode_(self, x: Tensor, out: Tensor) -> None:
        """Write samples to ``out`` as the first layer sees them."""
        out.copy_(x)
        if self.scaled and x.dtype == torch.uint8:
            # What Scale does, in place.
            out.mul_(4 / 255).sub_(2)


def layout_of(objective: Objective) -> Layout | str:
    """Return the layout of a model; if it cannot be batched, the reason in one line."""
    if not isinstance(objective, TorchObjective):
        return f"the objective is {type(objective).__name__}, not a loss of a module"
    modules = list(_chain(objective.flat.module))
    layers = [module for module in modules if type(module) not in INPUT_MODULES]
    return (
        _changed_objective(objective)
        or _unknown_chain(modules, layers)
        or _changed_module(objective.flat.module)
        or _layout(objective, layers, Scale in map(type, modules))
    )


def _changed_objective(objective: TorchObjective) -> str | None:
    """Refuse an objective with methods or fields that the kernel would ignore."""
    kind = type(objective)
    if kind is not TorchObjective:
        changed = [name for name in vars(kind) if name in vars(TorchObjective)]
        public = [name for name in changed if not name.startswith("__")]
        what = f"{public[0]} of TorchObjective" if public else "TorchObjective"
        return f"{kind.__name__} overrides {what}, which the kernel does not call"
    unread = sorted(set(vars(objective)) - OBJECTIVE_FIELDS)
    if unread:
        return f"the kernel does not read {unread[0]} of the objective"
    if objective.augments:
        return "training samples are augmented"
    if type(objective.flat) is not Flat:
        return f"parameters are bound by {type(objective.flat).__name__}, not by Flat"
    if objective.device.type != "cpu":
        return f"the model is on {objective.device}, and the kernel runs on the CPU"
    return None


def _unknown_chain(modules: list[nn.Module], layers: list[nn.Module]) -> str | None:
    """Refuse a model that is neither linear nor an MLP."""
    for module in modules:
        kind = type(module)
        if kind not in LAYERS:
            return f"the model has a {kind.__name__}: only linear models and MLPs are batched"
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            return "the model has a Flatten of some axes only"
    expected = [nn.ReLU if k % 2 else nn.Linear for k in range(len(layers))]
    kinds = [type(layer) for layer in layers]
    if kinds != expected or len(layers) % 2 == 0 or modules[-len(layers) :] != layers:
        return "the model is not a chain of linear layers with ReLU between them"
    return None


def _changed_module(model: nn.Module) -> str | None:
    """Refuse hooks, and methods replaced on a module itself."""
    if any(getattr(torch_module, name) for name in GLOBAL_HOOKS):
        return "a hook is registered for all modules"
    for module in model.modules():
        kind = type(module).__name__
        if any(getattr(module, name) for name in HOOKS):
            return f"a {kind} of the model has a hook"
        replaced = [name for name in vars(module) if hasattr(type(module), name)]
        if replaced:
            return f"a {kind} of the model has its own {replaced[0]}"
    if any(parameter._backward_hooks for parameter in model.parameters()):
        return "a parameter of the model has a hook"
    return None


def _layout(objective: TorchObjective, layers: list[nn.Module], scaled: bool) -> Layout | str:
    """Find the layers of a chain in the flat vector."""
    dtype = objective.flat.read().dtype
    if dtype not in (torch.float32, torch.float64):
        return f"the model's numbers are {str(dtype).removeprefix('torch.')}"
    if objective.buffers.numel():
        return "the model has buffers"
    modules = objective.flat.module.named_modules()
    prefixes = {module: f"{name}." if name else "" for name, module in modules}
    found = [_dense(layer, prefixes[layer], objective.names) for layer in layers[::2]]
    dense = tuple(layer for layer in found if layer is not None)
    loss = batched_loss(objective.loss)
    if isinstance(loss, str):
        return loss
    layout = Layout(dense, scaled, dtype, objective.names, loss)
    if len(dense) < len(found) or layout.size != objective.flat.size:
        return "the model has parameters that are shared, frozen or outside of its linear layers"
    return layout


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a chain in the order in which they are called."""
    if type(module) is Classifier:
        yield from (module.scale, *_chain(module.features), module.fc)
    elif type(module) is nn.Sequential:
        for part in module:
            yield from _chain(part)
    else:
        yield module


def _dense(layer: nn.Module, prefix: str, names: Mapping[str, slice]) -> Dense | None:
    """Return a layer, if its parameters are its own and trained."""
    assert isinstance(layer, nn.Linear)
    weight, bias = names.get(f"{prefix}weight"), names.get(f"{prefix}bias")
    if weight is None or (bias is None) != (layer.bias is None):
        return None
    return Dense(layer.in_features, layer.out_features, weight, bias)

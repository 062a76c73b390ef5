"""The layers of a model, found in the names and shapes of its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import torch
from torch import Tensor

from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.types import Objective, Vector


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with a matrix, or a convolution: its parameters in the flat vector.

    Attributes:
        name: Its name in the model, such as ``fc``.
        weight: Slice of its weights.
        shape: Shape of its weights: outputs, inputs, and the axes of a kernel.
        bias: Slice of its bias, if it has one.
    """

    name: str
    weight: slice
    shape: torch.Size
    bias: slice | None

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.shape[0]

    def rows_of(self, vector: Vector) -> Tensor:
        """Return a view of the weights in a flat vector, ``(outputs, ...)``, one row for each output."""
        return vector[self.weight].view(self.outputs, -1)


def matrix_layers(objective: Objective) -> list[Layer]:
    """Return all layers whose weights are a matrix or a kernel, in the order of their parameters."""
    return _matrix_layers(objective.names, objective.shapes)


def _matrix_layers(names: Mapping[str, slice], shapes: Mapping[str, torch.Size]) -> list[Layer]:
    found = []
    for name, shape in shapes.items():
        if len(shape) >= 2:
            prefix, dot, _ = name.rpartition(".")
            bias = f"{prefix}{dot}bias"
            fits = bias in shapes and shapes[bias] == shape[:1]
            found.append(Layer(prefix, names[name], shape, names[bias] if fits else None))
    return found


def head_of(objective: Objective, name: str | None = None) -> Layer | None:
    """Return the layer that makes the outputs: the one of this name, by default the last.

    Returns:
        ``None`` if the model has no layer with a matrix, or only one output: a regression has no classes.

    Raises:
        SpecError: If there is no layer of this name.
    """
    layers = matrix_layers(objective)
    if name is not None:
        layers = [layer for layer in layers if layer.name == name]
        if not layers:
            known = ", ".join(layer.name for layer in matrix_layers(objective)) or "none"
            raise SpecError(
                f"method.backbone.layer: the model has no layer {name!r}; known: {known}"
            )
    return layers[-1] if layers and layers[-1].outputs > 1 else None


def layer_factors(layers: Mapping[str, float], objective: Objective, like: Vector) -> Vector:
    """Return the factor of every parameter, ``(d,)``: that of the first pattern that matches its name, or 0.

    Raises:
        SpecError: If no pattern matches a parameter.
    """
    found, matched = torch.zeros_like(like), False
    for name, span in objective.names.items():
        factor = next((f for pattern, f in layers.items() if fnmatchcase(name, pattern)), None)
        found[span], matched = factor or 0.0, matched or factor is not None
    if not matched:
        raise SpecError(
            f"method.backbone.layers: no parameter of the model matches {', '.join(layers) or 'nothing'}; its "
            f"parameters are {', '.join(objective.names)}"
        )
    return found


def class_shares(labels: Tensor, weight: Tensor, classes: int) -> Tensor:
    """Return the share of every class in weighted samples, ``(classes,)`` of float64.

    >>> class_shares(torch.tensor([0, 2, 2]), torch.ones(3, dtype=torch.float64), 3).tolist()
    [0.3333333333333333, 0.0, 0.6666666666666666]
    """
    counts = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, weight.abs())
    return counts / counts.sum()


def levels(objective: Objective) -> Vector:
    r"""Return the width from which on a network has each entry, ``(d,)``: it holds those below its rate.

    A layer of *n* hidden units has its first :math:`\lceil r n \rceil` at rate *r*, so unit *i* has the level
    :math:`i / n`. A weight has the larger level of its output and its input. The inputs of the first layer and
    the outputs of the last have level 0: they are never cut.

    Raises:
        IncompatibleError: If a matrix cannot follow the layer before it, so that nobody knows its inputs.
    """
    return _levels(tuple(objective.shapes.items())).clone()


@lru_cache(maxsize=16)
def _levels(shapes: Sequence[tuple[str, torch.Size]]) -> Vector:
    names, size = {}, 0
    for name, shape in shapes:
        names[name] = slice(size, size := size + shape.numel())
    layers = _matrix_layers(names, dict(shapes))
    found, width = torch.zeros(size, dtype=torch.float64), 1
    for number, layer in enumerate(layers):
        cut = number + 1 < len(layers)
        units = _units(layer.outputs) if cut else torch.zeros(layer.outputs)
        inputs = _inputs(layer, width) if number else torch.zeros(layer.shape[1])
        both = torch.maximum(units[:, None], inputs[None, :])
        kernel = layer.shape[2:].numel()
        found[layer.weight] = both.reshape(-1, 1).expand(-1, kernel).reshape(-1)
        if layer.bias is not None:
            found[layer.bias] = units
        width = layer.outputs
    _vector_levels(found, names, dict(shapes), layers)
    return found


def _units(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float64) / count


def _inputs(layer: Layer, width: int) -> Tensor:
    """Return the levels of a layer's inputs; a matrix after a convolution sees every channel several times."""
    inputs = layer.shape[1]
    if len(layer.shape) > 2:
        return _units(inputs)
    if inputs % width:
        raise IncompatibleError(
            f"model: layer {layer.name!r} has {inputs} inputs and the one before it {width} outputs, so that "
            "HeteroFL does not know which units to cut; choose a model whose layers follow each other"
        )
    return _units(width).repeat_interleave(inputs // width)


def _vector_levels(
    found: Vector, names: Mapping[str, slice], shapes: Mapping[str, torch.Size], layers: list[Layer]
) -> None:
    """Fill in the levels of vectors between layers, such as a normalisation's: those of the units before."""
    known = {span.start for layer in layers for span in (layer.weight, layer.bias) if span}
    widths = {layer.weight.start: layer.outputs for layer in layers[:-1]}
    for name, shape in shapes.items():
        span = names[name]
        before = [widths[start] for start in sorted(widths) if start < span.start]
        if span.start not in known and len(shape) == 1 and before and shape[0] == before[-1]:
            found[span] = _units(shape[0])

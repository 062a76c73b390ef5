"""Many fully connected models at once: hand-written gradients, one client a row of ``(clients, d)``.

:func:`twin` says the same through autograd, client by client; it is the oracle of the tests.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chronofed.tasks.batched_loop import Pull, compiled, step_along
from chronofed.tasks.models import Classifier, Scale
from chronofed.tasks.objective import TorchObjective
from chronofed.types import Batch, Objective, Spans

BEFORE = (Scale, nn.Flatten)  # what may come before the first layer
LINE = 16  # numbers that rows of parameters are padded to a multiple of: 64 bytes, or more
MOST_SCENES = 32  # shapes of steps whose memory is kept
MOST_VIEWS = 1000  # of a workspace that are at hand; more are made again
KINDS = (*BEFORE, nn.Linear, nn.ReLU)


@dataclass(frozen=True, slots=True)
class Dense:
    """A fully connected layer: where it lies in the flat vector."""

    inputs: int
    outputs: int
    weight: slice
    bias: slice | None

    @property
    def parts(self) -> Iterator[tuple[slice | None, tuple[int, int]]]:
        """Where its weights and its bias lie, and their shapes: ``(outputs, inputs)``, ``(1, outputs)``."""
        yield self.weight, (self.outputs, self.inputs)
        yield self.bias, (1, self.outputs)

    def weight_of(self, flat: Tensor) -> Tensor:
        """View of its weights, ``(clients, outputs, inputs)``."""
        return flat[:, self.weight].view(-1, self.outputs, self.inputs)

    def bias_of(self, flat: Tensor) -> Tensor | None:
        """View of its bias, ``(clients, outputs)``."""
        return None if self.bias is None else flat[:, self.bias]


@dataclass(frozen=True, slots=True)
class Layout:
    """A linear model, or an MLP with ReLU.

    Attributes:
        layers: First to last.
        scaled: Whether bytes are scaled (:class:`~chronofed.tasks.models.Scale`).
        dtype: Of the parameters.
    """

    layers: tuple[Dense, ...]
    scaled: bool
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Number of parameters d."""
        return sum(n.outputs * (n.inputs + (n.bias is not None)) for n in self.layers)

    @property
    def width(self) -> int:
        """The most numbers that a layer sees of a sample."""
        return max(layer.inputs for layer in self.layers)

    @property
    def plan(self) -> list[list[int]]:
        """Inputs, outputs, first weight and first bias (or -1) of every layer."""
        return [
            [n.inputs, n.outputs, n.weight.start, -1 if n.bias is None else n.bias.start]
            for n in self.layers
        ]

    def whole(self, spans: Spans) -> bool:
        """Whether spans begin and end where weights or biases do."""
        parts = [part for layer in self.layers for part, _ in layer.parts if part is not None]
        ends = {end for part in parts for end in (part.start, part.stop)}
        return all(end in ends for span in spans for end in (span.start, span.stop))

    def encode_(self, x: Tensor, out: Tensor) -> None:
        """Write samples as the first layer sees them."""
        out.copy_(x)
        if self.scaled and x.dtype == torch.uint8:
            out.mul_(4 / 255).sub_(2)  # as Scale, in place


def layout(objective: Objective) -> Layout | str:
    """How the model is built; if it cannot be batched, the reason in one line."""
    if type(objective) is not TorchObjective:
        return f"the objective is {type(objective).__name__}, not the cross-entropy of a module"
    if objective.augments:
        return "training samples are augmented"
    steps = list(_steps(objective.flat.module))
    core = [step for step in steps if type(step) not in BEFORE]
    return _odd(steps, core) or _layout(objective, core, Scale in map(type, steps))


def _layout(objective: TorchObjective, core: list[nn.Module], scaled: bool) -> Layout | str:
    """Where the layers of a chain lie in the flat vector."""
    dtype = objective.flat.read().dtype
    if dtype not in (torch.float32, torch.float64):
        return f"the model's numbers are {str(dtype).removeprefix('torch.')}"
    modules = objective.flat.module.named_modules()
    places = {step: f"{name}." if name else "" for name, step in modules}
    dense = [_dense(step, places[step], objective.names) for step in core[::2]]
    layers = tuple(layer for layer in dense if layer is not None)
    found = Layout(layers, scaled, dtype)
    if len(layers) < len(dense) or found.size != objective.flat.size:
        return "the model has parameters that are shared, frozen or outside of its linear layers"
    return found


def _steps(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a chain in the order in which they are called."""
    if type(module) is Classifier:
        yield from (module.scale, *_steps(module.features), module.fc)
    elif type(module) is nn.Sequential:
        for part in module:
            yield from _steps(part)
    else:
        yield module


def _odd(steps: list[nn.Module], core: list[nn.Module]) -> str | None:
    """Why a chain is neither a linear model nor an MLP, if so."""
    for step in steps:
        if type(step) not in KINDS:
            return f"the model has a {type(step).__name__}: only linear models and MLPs are batched"
        if step._forward_hooks or step._forward_pre_hooks:
            return f"a {type(step).__name__} of the model has a hook"
    wanted = [nn.ReLU if k % 2 else nn.Linear for k in range(len(core))]
    if [type(step) for step in core] != wanted or len(core) % 2 == 0 or steps[-len(core) :] != core:
        return "the model is not a chain of linear layers with ReLU between them"
    return None


def _dense(step: nn.Module, place: str, names: Mapping[str, slice]) -> Dense | None:
    """A layer, if its parameters are its own and trained."""
    assert isinstance(step, nn.Linear)
    weight, bias = names.get(f"{place}weight"), names.get(f"{place}bias")
    if weight is None or (bias is None) != (step.bias is None):
        return None
    return Dense(step.in_features, step.out_features, weight, bias)


class Workspace:
    """Memory that is used again and again, by name."""

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of this shape; what the name held before is lost."""
        key = name, shape, dtype
        if key not in self._views:
            self._views[key] = self._view(name, shape, dtype)
        return self._views[key]

    def rows(self, name: str, count: int, size: int, dtype: torch.dtype) -> Tensor:
        """The same, ``(count, size)``; every row begins at a line of the cache: up to twice as fast."""
        key = f"rows {name}", (count, size), dtype
        if key not in self._views:
            line = -(-size // LINE) * LINE
            self._views[key] = self.take(name, count, line, dtype=dtype)[:, :size]
        return self._views[key]

    def _view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        need = math.prod(shape)
        block = self._blocks.get(name)
        if block is None or block.numel() < need or block.dtype != dtype:
            block = self._blocks[name] = torch.empty(need, dtype=dtype)
            self._views.clear()  # they may be of the block that was there
        if len(self._views) > MOST_VIEWS:
            self._views.clear()
        return block[:need].view(shape)


@dataclass(frozen=True, slots=True)
class Place:
    """A layer's parameters of all clients, as views: made once, for every view is a call, too."""

    weight: Tensor  # (clients, outputs, inputs)
    turned: Tensor  # (clients, inputs, outputs)
    bias: Tensor | None  # (clients, 1, outputs)


class Scene:
    """Memory for a step of so many clients with so many samples each.

    Attributes:
        outputs: What every layer says, ``(clients, b, outputs)``.
        signals: The gradients in that.
        turned: The same, ``(clients, outputs, b)``.
        ones: A row of ones for every client, ``(clients, 1, b)``.
        minus_one: What the loss takes from the probability of the true class, ``(clients, b, 1)``.
    """

    def __init__(self, form: Layout, clients: int, samples: int) -> None:
        def empty(width: int) -> Tensor:
            return torch.empty(clients, samples, width, dtype=form.dtype)

        self.outputs = [empty(layer.outputs) for layer in form.layers]
        self.signals = [empty(layer.outputs) for layer in form.layers]
        self.turned = [signal.mT for signal in self.signals]
        self.ones = torch.ones(clients, 1, samples, dtype=form.dtype)
        self.minus_one = -self.ones.mT


@dataclass(frozen=True, slots=True)
class Course:
    """The samples of all steps of clients that see as many samples in each.

    Attributes:
        x: Samples of all clients, ``(n, features)``.
        rows: Which of them each client sees, step after step, ``(clients, total)``.
        y: Their labels, ``(clients, total, 1)``.
        weight: Their weights, likewise.
        sizes: How many belong to each step.
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
    r"""Gradients of :math:`\sum_j a_j\, \mathrm{CE}(\mathrm{mlp}_w(x_j), y_j)` for every client's own *w*.

    Batches have a leading client axis, ``(clients, b, ...)``; a weight of zero makes a sample padding. Labels
    and weights may have an axis of length one at the end, which spares a call. Calls matter: each gives
    Python's lock away, and several workers wait for it.
    """

    def __init__(self, form: Layout, space: Workspace) -> None:
        self.form = form
        self.space = space
        self._places: deque[tuple[Tensor, list[Place]]] = deque(maxlen=4)  # in the last tensors
        self._scenes: dict[tuple[int, int], Scene] = {}

    def gradient(self, params: Tensor, batch: Batch, out: Tensor) -> Tensor:
        """Write the gradients at ``params`` to ``out``, both ``(clients, d)``."""
        places, scene = self._in(out), self.scene(batch)
        for number, seen in self.signals(params, batch, scene):
            place = places[number]
            torch.bmm(scene.turned[number], seen, out=place.weight)
            if place.bias is not None:
                torch.bmm(scene.ones, scene.signals[number], out=place.bias)
        return out

    def step_(
        self, params: Tensor, batch: Batch, lr: float, decay: float = 0.0, pull: Pull | None = None
    ) -> None:
        r"""One step :math:`w \gets w - \eta\,(g(w) + \lambda w)` in place, without writing *g* down.

        With the ``pull`` of :class:`~chronofed.engines.quadratics.Quadratics` it descends these, too.
        """
        keep, places, scene = 1 - lr * decay, self._in(params), self.scene(batch)
        pull = pull or self.free
        for number, seen in self.signals(params, batch, scene):
            place, at = places[number], 2 * number
            step_along(place.weight, scene.turned[number], seen, pull[at], lr, keep)
            if place.bias is not None:
                step_along(place.bias, scene.ones, scene.signals[number], pull[at + 1], lr, keep)

    def descend_(
        self,
        params: Tensor,
        course: Course,
        lr: float,
        decay: float = 0.0,
        pull: Pull | None = None,
    ) -> None:
        """As :meth:`step_`, all steps of a course at once."""
        form, x = self.form, course.x
        compiled()(
            params,
            x,
            course.rows,
            course.y,
            course.weight,
            course.sizes,
            form.plan,
            pull or self.free,
            lr,
            1 - lr * decay,
            form.scaled and x.dtype == torch.uint8,
        )

    @property
    def free(self) -> Pull:
        """No quadratic pulls."""
        return [[] for _ in range(2 * len(self.form.layers))]

    def _in(self, flat: Tensor) -> list[Place]:
        """Where the layers are in a tensor; tensors come again and again."""
        for known, places in self._places:
            if known is flat:
                return places
        places = [_place(layer, flat) for layer in self.form.layers]
        self._places.append((flat, places))
        return places

    def scene(self, batch: Batch) -> Scene:
        """Memory for a pass; the next one of as many samples uses it again."""
        key = batch.x.shape[0], batch.x.shape[1]
        if key not in self._scenes:
            if len(self._scenes) == MOST_SCENES:
                self._scenes.clear()
            self._scenes[key] = Scene(self.form, *key)
        return self._scenes[key]

    def signals(self, params: Tensor, batch: Batch, scene: Scene) -> Iterator[tuple[int, Tensor]]:
        """Every layer, last to first, with what it sees, when its signal in the scene is ready.

        When a layer comes up, its parameters are no longer needed: they may be changed.
        """
        places, outputs = self._in(params), scene.outputs
        seen = [batch.x, *outputs]
        for place, x, out in zip(places, seen, outputs, strict=False):
            if place.bias is None:
                torch.bmm(x, place.turned, out=out)
            else:
                torch.baddbmm(place.bias, x, place.turned, out=out)
            if out is not outputs[-1]:
                out.relu_()
        _loss_signal(outputs[-1], batch, scene)
        for number in reversed(range(len(places))):
            if number:
                below = scene.signals[number - 1]
                torch.bmm(scene.signals[number], places[number].weight, out=below)
                _threshold(below, outputs[number - 1], 0, grad_input=below)
            yield number, seen[number]


_threshold = torch.ops.aten.threshold_backward.grad_input


def _place(layer: Dense, flat: Tensor) -> Place:
    weight, bias = layer.weight_of(flat), layer.bias_of(flat)
    return Place(weight, weight.mT, None if bias is None else bias.unsqueeze(1))


def _loss_signal(logits: Tensor, batch: Batch, scene: Scene) -> None:
    r"""Gradient in the logits, :math:`a_j (\mathrm{softmax} - e_{y_j})`."""
    y = batch.y if batch.y.dim() == 3 else batch.y.unsqueeze(2)
    weight = batch.weight if batch.weight.dim() == 3 else batch.weight.unsqueeze(2)
    signal = torch.softmax(logits, 2, out=scene.signals[-1])
    signal.scatter_add_(2, y, scene.minus_one).mul_(weight)


def twin(objective: Objective, params: Tensor, batch: Batch) -> Tensor:
    """What :meth:`BatchedMlp.gradient` computes, one client after another; slow and plain."""
    rows = zip(params, batch.x, batch.y, batch.weight, strict=True)
    return torch.stack([objective.gradient(w, Batch(x, y, a)) for w, x, y, a in rows])

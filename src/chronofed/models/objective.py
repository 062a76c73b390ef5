"""A torch module with a loss as an objective in a flat parameter vector."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Generator, Tensor, inference_mode, nn, no_grad

from chronofed.core.errors import (
    ChronofedError,
    DataError,
    IncompatibleError,
    SpecError,
    UserCodeError,
)
from chronofed.core.flat import Flat, take
from chronofed.core.types import Batch, OutputForm, Samples, Spans, Vector
from chronofed.core.user_code import in_one_line, user_traceback
from chronofed.models.distillation import distillation_losses
from chronofed.models.layers import Classifier, ResNet, Scale
from chronofed.models.losses import CrossEntropy, Loss
from chronofed.models.moments import moments, reference_moments, shifted, supports

# Samples of one pass; bounds memory.
CHUNK_SAMPLES = 256
# Channels from which on a convolution may have the channels of a pixel together. With 2 to 7, the backward
# pass of a strided 1x1 convolution in torch 2.13 writes outside of its memory and ends the process.
LEAST_CHANNELS = 8
# Numbers of single samples' gradients that are held at a time: half a gigabyte.
MAX_GRADIENT_NUMBERS = 2**27
Augment = Callable[[Tensor, Generator], Tensor]
ONE_SAMPLE = (
    "BatchNorm cannot train on a mini-batch of one sample: set train.batch_size to 2 or more, give "
    "every client at least 2 samples, or use a model without BatchNorm"
)


class TorchObjective:
    r"""Weighted loss :math:`\sum_j a_j\, \ell(\mathrm{module}_w(x_j), y_j)`, by default cross-entropy.

    Attributes:
        flat: The module, bound to a flat vector.
        device: Device of the module. Samples may be elsewhere: they are moved batch by batch.
        uses_batch_statistics: Whether the module has BatchNorm.
        loss: The loss :math:`\ell` of a sample.
    """

    def __init__(
        self,
        module: nn.Module,
        augment: Augment | None = None,
        device: str = "cpu",
        loss: Loss | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.flat = Flat(module.to(self.device))
        self.uses_batch_statistics = bool(_batch_norms(module))
        self.loss = CrossEntropy() if loss is None else loss
        self._augment = augment
        self._channels_last = _allows_channels_last(module)
        self._layers: dict[str | None, nn.Module] = {}
        self._modules = [*module.modules()]
        own = nn.Module.train, nn.Module.eval
        self._plain = all((type(m).train, type(m).eval) == own for m in self._modules)

    @property
    def buffers(self) -> Vector:
        """The module's buffers, flattened."""
        return self.flat.buffers

    @buffers.setter
    def buffers(self, values: Vector) -> None:
        self.flat.buffers = values

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Gradient of the weighted loss in training mode: BatchNorm uses the batch's statistics."""
        self._training(params)
        return self.flat.gradient(self._weighted(batch))

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return a random view of images to train on."""
        return x if self._augment is None else self._augment(x, generator)

    @property
    def augments(self) -> bool:
        """True if training samples are augmented."""
        return self._augment is not None

    @property
    def names(self) -> Mapping[str, slice]:
        """The slice of the flat vector that each named parameter occupies."""
        return self.flat.spans

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of each named parameter."""
        return self.flat.shapes

    def logits(self, params: Vector, x: Tensor) -> Tensor:
        """Outputs in evaluation mode: ``(b, classes)``, of a regression ``(b, 1)``."""
        self._evaluating(params)
        with inference_mode():
            return self._forward(x)

    def losses(self, params: Vector, batch: Batch) -> Tensor:
        """Loss of every sample in evaluation mode, ``(n,)``."""
        self._evaluating(params)
        with no_grad():
            return torch.cat([self._losses(part) for part in _chunks(batch)])

    def distilled(
        self,
        params: Vector,
        batch: Batch,
        logits: Tensor,
        temperature: float = 2.0,
        classes: Tensor | None = None,
        form: OutputForm = "softmax",
    ) -> Vector:
        """Gradient of the distillation loss in training mode; the buffers stay as they are.

        Raises:
            IncompatibleError: If the form does not fit the outputs, or ``targets`` not the loss.
        """
        if form == "targets" and not self.loss.by_class:
            raise IncompatibleError(
                "a teacher of the form 'targets' replaces the labels of single classes, so every class must "
                "have a loss of its own: set loss = 'binary-cross-entropy'"
            )
        buffers = self.buffers
        self._training(params)
        pair, labels = (self._forward(batch.x), logits.to(self.device)), batch.y.to(self.device)
        losses = distillation_losses(*pair, temperature, form, classes, labels)
        gradient = self.flat.gradient(losses @ batch.weight.to(losses))
        self.buffers = buffers
        return gradient

    def features(self, params: Vector, x: Tensor, layer: str | None = None) -> Tensor:
        """Inputs of a named layer, by default of the last linear one, ``(n, k)``.

        Raises:
            SpecError: If the model has no such layer, or never calls it.
        """
        self._evaluating(params)
        calls: list[Tensor] = []
        seen: list[Tensor] = []
        hook = self._layer(layer).register_forward_pre_hook(
            lambda _, inputs: calls.append(inputs[0])
        )
        try:
            with no_grad():
                for part in torch.split(x, CHUNK_SAMPLES):
                    self.flat.module(self._placed(part))
                    # A layer that is called again sees something else.
                    seen.extend(calls[:1])
                    calls.clear()
        finally:
            hook.remove()
        if not seen:
            raise SpecError(f"the model has a layer {layer!r}, but never calls it; name another")
        return torch.cat(seen).flatten(1)

    def loss_gradient(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Gradient of the weighted loss in evaluation mode, of the parameters in ``spans``."""
        if self._only_last(spans):
            return self._last_layer(params, batch, spans, powers=(1,))[0]
        total = torch.zeros_like(take(params, spans))
        for part in _chunks(batch):
            value, chosen = self._loss(params, spans, part)
            total.add_(_flat_gradient(value, chosen))
        return total

    def squared_gradients(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Weighted sum of the squared gradients of the single samples, in evaluation mode."""
        return self.gradient_moments(params, batch, spans)[1]

    def gradient_moments(self, params: Vector, batch: Batch, spans: Spans) -> tuple[Vector, Vector]:
        """Weighted sums of the single samples' gradients and of their squares, in evaluation mode."""
        if self._only_last(spans):
            first, second = self._last_layer(params, batch, spans, powers=(1, 2))
            return first, second
        self._evaluating(params)
        names, quick = self._names_in(spans), supports(self.flat.module)
        numbers = sum(self.names[name].stop - self.names[name].start for name in names)
        most = CHUNK_SAMPLES if quick else _fitting(numbers)
        sums = params.new_zeros(2, numbers)
        for part in _chunks(batch, most):
            x = self._placed(part.x) if quick else self.encode(part.x)
            placed = Batch(x, part.y.to(self.device), part.weight, part.offset, part.scale)
            found = (moments if quick else reference_moments)(
                self.flat.module, names, placed, self.loss
            )
            for total, one in zip(sums, zip(*found, strict=True), strict=True):
                total.add_(torch.cat([part.reshape(-1) for part in one]))
        return sums[0], sums[1]

    def hessian_product(self, params: Vector, batch: Batch, spans: Spans, v: Vector) -> Vector:
        """Hessian of the weighted loss in ``spans``, times ``v``, in evaluation mode."""
        return self.gradient_and_products(params, batch, spans, [v])[1][0]

    def gradient_and_products(
        self, params: Vector, batch: Batch, spans: Spans, vectors: Sequence[Vector]
    ) -> tuple[Vector, list[Vector]]:
        """Gradient of the weighted loss in ``spans``, and its Hessian times each vector, from one pass."""
        gradient = torch.zeros_like(take(params, spans))
        products = [torch.zeros_like(v) for v in vectors]
        for part in _chunks(batch):
            value, chosen = self._loss(params, spans, part)
            parts = torch.autograd.grad(value, chosen, create_graph=True, materialize_grads=True)
            first = torch.cat([g.reshape(-1) for g in parts])
            gradient.add_(first.detach())
            for v, product in zip(vectors, products, strict=True):
                product.add_(_flat_gradient(first @ v, chosen, again=True))
        return gradient, products

    def input_gradient(self, params: Vector, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of every sample's own loss in its encoded input, in evaluation mode."""
        self._evaluating(params)
        z = x.detach().to(self.device).requires_grad_()
        loss = self.loss.total(self.flat.module(z), y.to(self.device))
        (gradient,) = torch.autograd.grad(loss, z)
        return gradient

    def encode(self, x: Tensor) -> Tensor:
        """Encode samples for the first layer: bytes are scaled, other numbers are left alone."""
        encoded: Tensor = Scale()(x.to(self.device), self.flat.read().dtype)
        return encoded

    def decode(self, z: Tensor, like: Tensor) -> Tensor:
        """Return the samples that :meth:`encode` turns into ``z``."""
        return Scale.inverse(z) if like.dtype == torch.uint8 else z.to(like.dtype)

    def refresh(self, params: Vector, samples: Samples) -> None:
        """Recompute BatchNorm's statistics as the plain mean over these samples' batches.

        A single sample has no statistics: they stay as they are.
        """
        norms = _batch_norms(self.flat.module)
        if not norms or len(samples) == 1:
            return
        self.flat.bind(params)
        self.flat.module.train()
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            # None means the mean over all batches.
            norm.momentum = None
        # Parts of equal size, because they count the same.
        parts = -(-len(samples) // CHUNK_SAMPLES)
        with no_grad():
            for part in torch.tensor_split(samples.x, parts):
                self.flat.module(part.to(self.device))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def _layer(self, name: str | None) -> nn.Module:
        # Looked up for every client.
        if name not in self._layers:
            self._layers[name] = self._find_layer(name)
        return self._layers[name]

    def _find_layer(self, name: str | None) -> nn.Module:
        layers: dict[str, nn.Module] = {n: m for n, m in self.flat.module.named_modules() if n}
        linear = [m for m in self.flat.module.modules() if isinstance(m, nn.Linear)]
        if name is None and linear:
            return linear[-1]
        if name is not None and name in layers:
            return layers[name]
        what = "no linear layer: name another" if name is None else f"no layer {name!r}"
        raise SpecError(f"the model has {what}; its layers are {', '.join(layers)}")

    def _training(self, params: Vector) -> None:
        self.flat.bind(params)
        if not self.flat.module.training:
            self._switch(True)

    def _evaluating(self, params: Vector) -> None:
        self.flat.bind(params)
        if self.flat.module.training:
            self._switch(False)

    def _switch(self, training: bool) -> None:
        """Switch between training and evaluation, which :meth:`nn.Module.train` takes a while for."""
        if not self._plain:
            self.flat.module.train(training)
            return
        for module in self._modules:
            module.__dict__["training"] = training

    def _placed(self, x: Tensor) -> Tensor:
        """Move samples to the module's device; it is faster with the channels of a pixel together."""
        here = x.to(self.device)
        if here.dim() != 4 or here.shape[1] == 1:
            return here
        together = torch.channels_last if self._channels_last else torch.contiguous_format
        return here.contiguous(memory_format=together)

    def _forward(self, x: Tensor) -> Tensor:
        """Call the module.

        Raises:
            UserCodeError: If it fails; the message names the samples, and what may be wrong with them.
        """
        try:
            output: Tensor = self.flat.module(self._placed(x))
        except ChronofedError:
            raise
        except Exception as error:
            if len(x) == 1 and self.uses_batch_statistics:
                raise DataError(ONE_SAMPLE) from error
            raise UserCodeError(_fails(x, error), user_traceback(error)) from error
        return output

    def _weighted(self, batch: Batch, outputs: Tensor | None = None) -> Tensor:
        """Weighted loss in the module's current mode; the outputs may be known already."""
        losses = self._losses(batch, outputs)
        return losses @ batch.weight.to(losses)

    def _losses(self, batch: Batch, outputs: Tensor | None = None) -> Tensor:
        """Loss of every sample in the module's current mode; the outputs may be known already."""
        found = self._forward(batch.x) if outputs is None else outputs
        return self.loss(shifted(found, batch), batch.y.to(self.device))

    def _only_last(self, spans: Spans) -> bool:
        """Check for the last layer alone, of a model of this package: its gradients need no backward pass."""
        ours = type(self.flat.module) in (Classifier, ResNet)
        return ours and all(name.startswith("fc.") for name in self._names_in(spans))

    def _last_layer(
        self, params: Vector, batch: Batch, spans: Spans, powers: tuple[int, ...]
    ) -> list[Vector]:
        r"""Weighted sums of powers of the single samples' gradients in the last layer.

        With the layer's input :math:`h_j` and the gradient in its output :math:`s_j`, for cross-entropy
        :math:`\mathrm{softmax} - e_{y_j}`, the gradient in the weights is :math:`s_j h_j^\top`, and that in the
        bias :math:`s_j`.
        """
        self._evaluating(params)
        module = self.flat.module
        assert isinstance(module, Classifier | ResNet)
        shapes = {"fc.weight": module.fc.weight, "fc.bias": module.fc.bias}
        sums = [{n: torch.zeros_like(p) for n, p in shapes.items()} for _ in powers]
        for part in _chunks(batch):
            with no_grad():
                seen = module.embed(self._placed(part.x))
                outputs = shifted(module.fc(seen), batch)
                signal = self.loss.signal(outputs, part.y.to(self.device))
                if batch.scale is not None:
                    signal = signal * batch.scale.to(signal)
                weight = part.weight.to(seen)
                for power, total in zip(powers, sums, strict=True):
                    raised = signal.pow(power)
                    total["fc.weight"] += (raised * weight[:, None]).T @ seen.pow(power)
                    total["fc.bias"] += weight @ raised
        names = self._names_in(spans)
        return [torch.cat([total[n].detach().reshape(-1) for n in names]) for total in sums]

    def _names_in(self, spans: Spans) -> list[str]:
        """Return the names of the parameters that lie in ``spans``."""
        return [n for n, s in self.names.items() if any(t.start <= s.start < t.stop for t in spans)]

    def _loss(self, params: Vector, spans: Spans, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        self._evaluating(params)
        module = self.flat.module
        named = dict(module.named_parameters())
        chosen: list[Tensor] = [named[n] for n in self._names_in(spans)]
        if not self._only_last(spans):
            return self._weighted(batch), chosen
        # Derivatives in the last layer do not need the body's graph.
        assert isinstance(module, Classifier | ResNet)
        with no_grad():
            seen = module.embed(self._placed(batch.x))
        return self._weighted(batch, module.fc(seen)), chosen


def _batch_norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _allows_channels_last(module: nn.Module) -> bool:
    """Check that torch is neither broken nor slow with channels last."""
    return not any(_wants_channels_apart(layer) for layer in module.modules())


def _wants_channels_apart(layer: nn.Module) -> bool:
    """Tell if a layer is a GroupNorm, or a 1x1 convolution with a stride and few channels."""
    if isinstance(layer, nn.GroupNorm):
        return True
    return (
        isinstance(layer, nn.Conv2d)
        and math.prod(layer.kernel_size) == 1 < max(layer.stride)
        and layer.in_channels < LEAST_CHANNELS
    )


def _fails(x: Tensor, error: Exception) -> str:
    hint = "; images are bytes: begin with chronofed.Scale()" if x.dtype == torch.uint8 else ""
    return f"model: it fails on samples {tuple(x.shape)} of {x.dtype}: {in_one_line(error)}{hint}"


def _fitting(numbers: int) -> int:
    """Return how many samples' gradients, of so many numbers each, fit into memory."""
    return max(1, min(CHUNK_SAMPLES, MAX_GRADIENT_NUMBERS // max(1, numbers)))


def _flat_gradient(value: Tensor, chosen: list[Tensor], *, again: bool = False) -> Vector:
    parts = torch.autograd.grad(value, chosen, materialize_grads=True, retain_graph=again)
    return torch.cat([part.reshape(-1) for part in parts])


def _chunks(batch: Batch, most: int = CHUNK_SAMPLES) -> Iterator[Batch]:
    parts = (torch.split(t, most) for t in (batch.x, batch.y, batch.weight))
    extra = batch.offset, batch.scale
    return (Batch(x, y, weight, *extra) for x, y, weight in zip(*parts, strict=True))

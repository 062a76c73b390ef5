"""The quadratic function of a noisy quadratic model, as an objective of the training loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Batch, OutputForm, Samples, Spans, Vector

_NO_OUTPUTS = IncompatibleError("a quadratic function has no outputs, so there is no teacher")


@dataclass
class Parabola:
    r"""The objective :math:`\tfrac12 w^\top A w + (B + x)^\top w` of a sample *x*.

    Attributes:
        matrix: *A*, ``(n, n)``.
        slope: *B*, ``(n,)``.
        noise_std: Standard deviation of the gradient noise in each coordinate.
    """

    matrix: Tensor
    slope: Vector
    noise_std: float
    uses_batch_statistics: bool = False

    def __post_init__(self) -> None:
        self.buffers = torch.zeros(0, dtype=torch.float64)

    @property
    def names(self) -> Mapping[str, slice]:
        """The one parameter, the vector *w*."""
        return {"w": slice(0, len(self.slope))}

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of *w*."""
        return {"w": self.slope.shape}

    def logits(self, params: Vector, x: Tensor) -> Tensor:
        """Refuse: a quadratic function has no outputs."""
        raise _NO_OUTPUTS

    def losses(self, params: Vector, batch: Batch) -> Tensor:
        """Return the value of every sample's function."""
        return params @ self.matrix @ params / 2 + (self.slope + batch.x) @ params

    def distilled(
        self,
        params: Vector,
        batch: Batch,
        logits: Tensor,
        temperature: float = 2.0,
        classes: Tensor | None = None,
        form: OutputForm = "softmax",
    ) -> Vector:
        """Refuse: a quadratic function has no outputs."""
        raise _NO_OUTPUTS

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        """Return the weighted sum of the samples' gradients."""
        return batch.weight.sum() * (self.matrix @ params + self.slope) + batch.weight @ batch.x

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Add the same gradient noise to all samples: weights that sum to one do not change it."""
        return x + self.noise_std * torch.randn(x.shape[-1], generator=generator, dtype=x.dtype)

    def features(self, params: Vector, x: Tensor, layer: str | None = None) -> Tensor:
        """Return the samples themselves."""
        return x

    def loss_gradient(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Return the parts of :meth:`gradient` in ``spans``."""
        return torch.cat([self.gradient(params, batch)[span] for span in spans])

    def squared_gradients(self, params: Vector, batch: Batch, spans: Spans) -> Vector:
        """Return the weighted sum of the samples' squared gradients."""
        single = self.matrix @ params + self.slope + batch.x
        total = batch.weight @ single.square()
        return torch.cat([total[span] for span in spans])

    def gradient_moments(self, params: Vector, batch: Batch, spans: Spans) -> tuple[Vector, Vector]:
        """Return both."""
        asked = params, batch, spans
        return self.loss_gradient(*asked), self.squared_gradients(*asked)

    def hessian_product(self, params: Vector, batch: Batch, spans: Spans, v: Vector) -> Vector:
        """Multiply the rows and columns of *A* in ``spans`` by ``v``."""
        whole = torch.zeros_like(params)
        parts = torch.split(v, [span.stop - span.start for span in spans])
        for span, part in zip(spans, parts, strict=True):
            whole[span] = part
        product = batch.weight.sum() * (self.matrix @ whole)
        return torch.cat([product[span] for span in spans])

    def gradient_and_products(
        self, params: Vector, batch: Batch, spans: Spans, vectors: Sequence[Vector]
    ) -> tuple[Vector, list[Vector]]:
        """Return :meth:`loss_gradient` and a :meth:`hessian_product` for each vector."""
        asked = params, batch, spans
        return self.loss_gradient(*asked), [self.hessian_product(*asked, v) for v in vectors]

    def input_gradient(self, params: Vector, x: Tensor, y: Tensor) -> Tensor:
        """Return the parameters, for every sample."""
        return params.expand_as(x).clone()

    def encode(self, x: Tensor) -> Tensor:
        """Return the samples unchanged."""
        return x

    def decode(self, z: Tensor, like: Tensor) -> Tensor:
        """Return the samples unchanged."""
        return z

    def refresh(self, params: Vector, samples: Samples) -> None:
        """Do nothing: there are no buffers."""

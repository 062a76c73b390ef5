"""A small conditional variational autoencoder whose parameters are one flat vector."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from chronofed.core.types import Batch, Vector
from chronofed.methods.surrogate import Pool

BATCH = 64
"""Samples in a mini-batch."""
LEAST_VARIANCE = 1e-4
"""Smallest variance of a feature around the decoder's output, where features have variance 1."""


@dataclass(frozen=True, slots=True)
class Vae:
    r"""A conditional VAE with a Gaussian latent, and one hidden layer in the encoder and in the decoder.

    .. math::
        -\mathrm{ELBO}(x \mid y) =
            \frac12 \sum_j \Big( \frac{(x_j - \hat x_j(z, y))^2}{s_j^2} + \log s_j^2 \Big)
            + \frac12 \sum_i \big( \mu_i^2 + \sigma_i^2 - \log \sigma_i^2 - 1 \big) + \text{const},
        \qquad z = \mu + \sigma\,\mathcal N(0, I)

    The encoder gives :math:`\mu(x, y)` and :math:`\log\sigma^2(x, y)`; the variances :math:`s_j^2` are learnt.

    A target that is a number is the last of the numbers in a sample, and there is one class. The VAE is of the
    inputs alone, and a network with one hidden layer predicts the target *v* from them, which adds
    :math:`\frac12 \big( (v - \hat v(x))^2/s_v^2 + \log s_v^2 \big)`. In a VAE of both, the noise around the
    decoder's output would blur how the target depends on the inputs.

    Attributes:
        features: Numbers in a sample.
        classes: Number of classes.
        hidden: Units of each hidden layer.
        latent: Numbers in a latent *z*.
        targets: Numbers in a sample, the last ones, that are predicted from the others: 0 or 1.
    """

    features: int
    classes: int
    hidden: int
    latent: int
    targets: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the parameters: encoder, decoder, logarithms of variances, prediction of the target."""
        n, c, h, k = self.features, self.classes, self.hidden, self.latent
        d, v = n - self.targets, self.targets
        networks = (h, d + c), (h,), (2 * k, h), (2 * k,), (h, k + c), (h,), (d, h), (d,), (n,)
        return (*networks, (h, d), (h,), (v, h), (v,)) if v else networks

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(map(math.prod, self.shapes))

    def init(self, generator: Generator) -> Vector:
        """Draw initial parameters: matrices by the inputs of a unit, everything else 0."""
        parts = [
            torch.randn(shape, generator=generator) / math.sqrt(shape[1])
            if len(shape) == 2
            else torch.zeros(shape)
            for shape in self.shapes
        ]
        return torch.cat([part.flatten() for part in parts])

    def losses(self, params: Vector, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Return minus the ELBO of every sample, ``(n,)``, with the given noise ``(n, latent)``."""
        parts, label = self._parts(params), self._label(y, x.dtype)
        inputs = x[:, : self.features - self.targets]
        mean, log_variance = _network(parts[:4], torch.cat([inputs, label], 1)).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * noise
        variance = parts[8].exp() + LEAST_VARIANCE
        fit = (x - self._expected(parts, z, label, inputs)).square() / variance + variance.log()
        apart = mean.square() + log_variance.exp() - log_variance - 1
        return (fit.sum(1) + apart.sum(1)) / 2

    def gradient(self, params: Vector, batch: Batch, noise: Tensor) -> Vector:
        """Compute the gradient of the weighted loss of a mini-batch."""
        with torch.enable_grad():
            at = params.detach().requires_grad_()
            losses = self.losses(at, batch.x, batch.y, noise)
            (found,) = torch.autograd.grad((batch.weight.to(losses.dtype) * losses).sum(), at)
        return found

    def fit(
        self, params: Vector, pool: Pool, steps: int, lr: float, generator: Generator
    ) -> Vector:
        """Train on weighted samples by Adam; return new parameters."""
        params = params.clone()
        first, second = torch.zeros_like(params), torch.zeros_like(params)
        batches = pool.batches(BATCH, generator)
        for step in range(1, steps + 1):
            batch = next(batches)
            noise = torch.randn(len(batch.y), self.latent, generator=generator, dtype=batch.x.dtype)
            grad = self.gradient(params, batch, noise)
            first.lerp_(grad, 0.1)
            second.lerp_(grad.square(), 0.001)
            scale = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
            params.addcdiv_(first, scale, value=-lr / (1 - 0.9**step))
        return params

    def draw(self, params: Vector, y: Tensor, generator: Generator) -> Tensor:
        """Draw a sample of each of these classes, ``(n, features)``."""
        z, noise = (
            torch.randn(len(y), width, generator=generator, dtype=params.dtype)
            for width in (self.latent, self.features)
        )
        parts, label = self._parts(params), self._label(y, params.dtype)
        noise *= (parts[8].exp() + LEAST_VARIANCE).sqrt()
        inputs = _network(parts[4:8], torch.cat([z, label], 1))
        inputs = inputs + noise[:, : inputs.shape[1]]
        if not self.targets:
            return inputs
        return torch.cat([inputs, _network(parts[9:], inputs) + noise[:, -self.targets :]], 1)

    def _expected(self, parts: list[Tensor], z: Tensor, label: Tensor, inputs: Tensor) -> Tensor:
        """Return the decoder's output, with the target that is predicted from the inputs."""
        decoded = _network(parts[4:8], torch.cat([z, label], 1))
        return torch.cat([decoded, _network(parts[9:], inputs)], 1) if self.targets else decoded

    def _parts(self, params: Vector) -> list[Tensor]:
        pieces = torch.split(params, [math.prod(shape) for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def _label(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return functional.one_hot(y, self.classes).to(dtype)


def _network(parts: list[Tensor], x: Tensor) -> Tensor:
    """Apply two linear layers with a hyperbolic tangent between them."""
    inner, inner_bias, outer, outer_bias = parts
    return functional.linear(torch.tanh(functional.linear(x, inner, inner_bias)), outer, outer_bias)

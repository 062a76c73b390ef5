"""CFL-Generative: made samples of every past data set, replayed."""

from typing import ClassVar

import torch
from torch import Generator, Tensor

from chronofed.config import Count, NonNegative, Positive
from chronofed.memories.base import Home, Keepsake, Memory, Moment
from chronofed.memories.langevin import langevin
from chronofed.memories.replay import replay
from chronofed.memories.selection import turns
from chronofed.surrogate import Surrogate
from chronofed.types import Objective, Record, Samples, Vector
from chronofed.weights import RoundWeights

LEAST_DEVIATION = 0.02  # of a feature in a class, as a share of the feature's range in the data set


class Generative(Memory, tag="generative"):
    r"""Keeps a few samples made of each past data set on the client and replays them.

    The approximation :math:`\tilde f_\tau` of a past objective is their mean loss.

    A sample *x* of class *y* is drawn by Langevin dynamics (the paper's MCMC) from :math:`e^{-E/\sigma^2}`,
    with the model at the end of local training, the noise :math:`\sigma`, and

    .. math::
        E(x \mid y) = \mathrm{CE}(\mathrm{model}_w(x), y)
            + \frac{\lambda}{2} \Big\|\frac{x - \mu_y}{s_y}\Big\|^2,

    where mean :math:`\mu_y` and deviation :math:`s_y` are those of every feature in this class of the data
    set. Steps are taken in :math:`u = (x - \mu_y)/s_y`, where one step size suits all features,

    .. math:: u \gets u - \eta \nabla_u E + \sqrt{2\eta}\,\sigma\,\mathcal N(0, I),

    from a uniform start, and never leave the range that the feature has in the data set. A deviation is
    taken as at least 2 % of that range, so that a class of one sample has some, too. Classes have quotas in
    proportion to their samples. A data set that comes back replaces what was made of it.

    Made samples are worse than real ones, and in the plain union (``merged``) they soon outnumber the
    present: weights that leave the present a share of its own (``fixed``, ``optimal``) suit them better.

    What is kept was made, but from statistics of a few local samples (a class with a single one gives that
    sample, blurred), and so it stays on the client like a core set. A request to delete a sample removes all
    that was made of its data set.

    Attributes:
        size: Samples made of each data set (50 to 100 in the paper).
        steps: Number of Langevin steps :math:`k`; what is left of the start is :math:`(1 - \eta\lambda)^k`.
        lr: Step size :math:`\eta`; it must be well below :math:`2/\lambda`.
        noise: Scale of the noise :math:`\sigma`: 1 is exact Langevin dynamics, less is colder, with samples
            that are nearer to the mean of their class.
        prior: Weight of the statistics :math:`\lambda`.
    """

    home: ClassVar[Home] = "client"
    reference: ClassVar[str] = (
        "Welling and Teh (2011), Langevin dynamics; Guo et al., CFL-Generative"
    )
    pollutes: ClassVar[bool] = True

    size: Count = 50
    steps: Count = 20
    lr: Positive = 0.3
    noise: NonNegative = 0.5
    prior: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr * self.prior >= 2:
            msg = (
                f"Generative.lr: lr * prior = {self.lr * self.prior:g}, but steps overshoot "
                "more and more from 2 on; choose a smaller lr"
            )
            raise ValueError(msg)

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Samples made with the model as it is now."""
        data, y = objective.encode(samples.x), self._labels(samples.y)
        low, high = data.amin(0), data.amax(0)
        mean, deviation = (each[y] for each in _statistics(data, samples.y, high - low))
        bounds = (low - mean) / deviation, (high - mean) / deviation

        def gradient(u: Tensor) -> Tensor:
            slope = objective.input_gradient(params, mean + deviation * u, y)
            return slope.mul_(deviation).add_(u, alpha=self.prior)

        chance = torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
        start = torch.lerp(*bounds, chance)
        u = langevin(gradient, start, self.steps, self.lr, self.noise, generator, bounds)
        made = (mean + deviation * u).clamp_(low, high)  # once more: numbers were rounded
        record = {"x": objective.decode(made, samples.x), "y": y}
        return record if samples.rows is None else {**record, "sources": samples.rows}

    def recall(
        self, kept: tuple[Keepsake, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay what was made of other data sets, each with the weight of its round."""
        return replay(kept, weights, moment)

    def _labels(self, y: Tensor) -> Tensor:
        """Classes in proportion, however many samples there are of them."""
        enough = -(-self.size // len(y))
        return turns(y.bincount() * enough, self.size, proportional=True)


def _statistics(data: Tensor, y: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation by class and feature, ``(classes, ...)``; a constant feature has deviation 1."""
    counts = y.bincount()
    shape = (-1, *[1] * (data.dim() - 1))
    count = counts.clamp(min=1).to(data.dtype).view(shape)
    mean = data.new_zeros(len(counts), *data.shape[1:]).index_add_(0, y, data) / count
    square = torch.zeros_like(mean).index_add_(0, y, (data - mean[y]).square()) / count
    least = (LEAST_DEVIATION * span).where(span > 0, torch.ones_like(span))
    return mean, square.sqrt().maximum(least)

"""CFL-Generative: replay synthetic samples of every past data set."""

from typing import ClassVar

import torch
from torch import Generator, Tensor

from chronofed.core.config import Count, NonNegative, Positive
from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.memories.base import Location, Memory, MemoryItem, Moment
from chronofed.methods.memories.langevin import langevin
from chronofed.methods.memories.replay import replay
from chronofed.methods.memories.selection import group_codes, turns
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import RoundWeights

# Smallest deviation of a feature in a class, as a share of the feature's range in the data set.
LEAST_DEVIATION = 0.02


class Generative(Memory, tag="generative"):
    r"""Keeps a few synthetic samples of each past data set on the client and replays them.

    The approximation :math:`\tilde f_\tau` of a past objective is their mean loss.

    A sample *x* of target *y* is drawn by Langevin dynamics (the paper's MCMC) from :math:`e^{-E/\sigma^2}`,
    with the model at the end of local training, the noise :math:`\sigma`, and

    .. math::
        E(x \mid y) = \ell(\mathrm{model}_w(x), y)
            + \frac{\lambda}{2} \Big\|\frac{x - \mu_y}{s_y}\Big\|^2,

    where :math:`\mu_y` and :math:`s_y` are the mean and the standard deviation of every feature in this class
    of the data set. Steps are taken in :math:`u = (x - \mu_y)/s_y`, where one step size suits all features,

    .. math:: u \gets u - \eta \nabla_u E + \sqrt{2\eta}\,\sigma\,\mathcal N(0, I),

    from a uniform start, within the range of the feature in the data set. A deviation is at least 2 % of that
    range, so a class of one sample varies too. The numbers of samples per class are in proportion to the data
    set. A data set that comes back replaces its synthetic samples.

    Where targets are numbers, the synthetic samples have targets of the data set: those at ``size`` evenly
    spaced ranks. :math:`\mu_y` and :math:`s_y` are then of the samples in the target's bin, one of ten with
    equally many samples.

    Synthetic samples are worse than real ones, and in the plain union (``merged``) they soon outnumber the
    present. Weights that reserve a share for the present (``fixed``, ``optimal``) suit them better.

    Synthetic samples come from statistics of a few local samples (a class with a single sample gives that
    sample, blurred), so they stay on the client like a core set. A request to delete a sample removes all
    synthetic samples of its data set.

    Attributes:
        size: Synthetic samples of each data set (50 to 100 in the paper).
        steps: Number of Langevin steps :math:`k`; the influence of the start is :math:`(1 - \eta\lambda)^k`.
        lr: Step size :math:`\eta`; it must be well below :math:`2/\lambda`.
        noise: Scale of the noise :math:`\sigma`. 1 is exact Langevin dynamics; less is colder, with samples
            nearer to the mean of their class.
        prior: Weight of the statistics :math:`\lambda`.
    """

    location: ClassVar[Location] = "client"
    reference: ClassVar[str] = (
        "Welling and Teh (2011), Langevin dynamics; Guo et al., CFL-Generative"
    )
    synthetic: ClassVar[bool] = True

    size: Count = 50
    steps: Count = 20
    lr: Positive = 0.3
    noise: NonNegative = 0.5
    prior: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr * self.prior >= 2:
            msg = (
                f"Generative.lr: lr * prior = {self.lr * self.prior:g}, but steps diverge "
                "from 2 on; choose a smaller lr"
            )
            raise ValueError(msg)

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Make samples with the present model."""
        data, codes = objective.encode(samples.x), group_codes(samples.y)
        y, group = self._labels(samples.y, codes)
        low, high = data.amin(0), data.amax(0)
        mean, deviation = (each[group] for each in _statistics(data, codes, high - low))
        bounds = (low - mean) / deviation, (high - mean) / deviation

        def gradient(u: Tensor) -> Tensor:
            slope = objective.input_gradient(params, mean + deviation * u, y)
            return slope.mul_(deviation).add_(u, alpha=self.prior)

        chance = torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
        start = torch.lerp(*bounds, chance)
        u = langevin(gradient, start, self.steps, self.lr, self.noise, generator, bounds)
        # Clamp again: mean + deviation * u is rounded.
        made = (mean + deviation * u).clamp_(low, high)
        record = {"x": objective.decode(made, samples.x), "y": y}
        return record if samples.rows is None else {**record, "sources": samples.rows}

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay the synthetic samples of other data sets, each with the weight of its round."""
        return replay(self.recalled(kept, moment), weights, moment)

    def _labels(self, y: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Choose targets and their groups in proportion to the data set, which may be smaller than ``size``."""
        if y.is_floating_point():
            ranks = (torch.arange(self.size, dtype=torch.float64) + 0.5) * (len(y) / self.size)
            pick = y.argsort(stable=True)[ranks.long()]
            return y[pick], codes[pick]
        enough = -(-self.size // len(y))
        labels = turns(y.bincount() * enough, self.size, proportional=True)
        return labels, labels


def _statistics(data: Tensor, y: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and deviation by class and feature, ``(classes, ...)``; 1 if a feature is constant."""
    counts = y.bincount()
    shape = (-1, *[1] * (data.dim() - 1))
    count = counts.clamp(min=1).to(data.dtype).view(shape)
    mean = data.new_zeros(len(counts), *data.shape[1:]).index_add_(0, y, data) / count
    square = torch.zeros_like(mean).index_add_(0, y, (data - mean[y]).square()) / count
    least = (LEAST_DEVIATION * span).where(span > 0, torch.ones_like(span))
    return mean, square.sqrt().maximum(least)

"""CFL-Generative: made-up samples of every past data set, replayed."""

from dataclasses import dataclass
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
    size: Count = 50
    steps: Count = 60
    lr: Positive = 0.1
    noise: NonNegative = 0.5
    prior: NonNegative = 1.0

    home: ClassVar[Home] = "client"
    reference: ClassVar[str] = "Guo et al., CFL-Generative (MCMC)"
    pollutes: ClassVar[bool] = True

    def observe(self, objective, params, samples, generator):
        data, counts = objective.encode(samples.x), samples.y.bincount()
        enough = -(-self.size // len(samples))
        y = turns(counts * enough, self.size, proportional=True)
        low, high = data.amin(0), data.amax(0)
        mean, deviation = (t[y] for t in _statistics(data, samples.y, high - low))

        def gradient(u):
            slope = objective.input_gradient(params, mean + deviation * u, y)
            return deviation * slope + self.prior * u

        start = low + (high - low) * torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
        bounds = ((low - mean) / deviation, (high - mean) / deviation)
        u = langevin(gradient, (start - mean) / deviation, self.steps, self.lr, self.noise, generator, bounds)
        return {"x": objective.decode(mean + deviation * u, samples.x), "y": y}

    def recall(self, kept, weights, moment):
        return replay(kept, weights, moment)


def _statistics(data, y, span):
    classes = int(y.max()) + 1
    mean = torch.zeros(classes, *data.shape[1:], dtype=data.dtype)
    deviation = torch.zeros_like(mean)
    for label in y.bincount().nonzero().flatten().tolist():
        own = data[y == label]
        mean[label] = own.mean(0)
        deviation[label] = own.std(0, correction=0)
    floor = LEAST_DEVIATION * span
    return mean, torch.maximum(deviation, floor.where(span > 0, 1.0))

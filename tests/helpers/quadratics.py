"""A world of diagonal quadratics in float64: exact oracles for methods, through the real loop.

A sample ``x = (h, b)``, two rows of d numbers, has the loss ``1 + sum_k (h_k w_k^2 / 2 - b_k w_k)``. So the
mean of a data set is such a loss, too, with the means of h and b. Values may be negative; the constant keeps
them positive near 0.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from chronofed import Samples, Snapshot, Train, run
from chronofed.scenarios.base import Plan, Visit


@dataclass
class QuadraticObjective:
    """The weighted sum of the samples' losses, and its exact derivatives."""

    d: int = 1
    buffers: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    uses_batch_statistics = False

    @property
    def names(self):
        return {f"w{k}": slice(k, k + 1) for k in range(self.d)}

    @property
    def shapes(self):
        return {name: torch.Size([1]) for name in self.names}

    def losses(self, params, batch):
        h, b = batch.x.unbind(1)
        return (h * params**2 / 2 - b * params).sum(1) + 1  # (n,)

    def gradient(self, params, batch):
        return batch.weight @ self._gradients(params, batch)

    def loss_gradient(self, params, batch, spans):
        return _at(self.gradient(params, batch), spans)

    def squared_gradients(self, params, batch, spans):
        return _at(batch.weight @ self._gradients(params, batch).square(), spans)

    def gradient_moments(self, params, batch, spans):
        return (
            getattr(self, n)(params, batch, spans) for n in ("loss_gradient", "squared_gradients")
        )

    def hessian_product(self, params, batch, spans, v):
        return _at(batch.weight @ batch.x[:, 0], spans) * v

    def gradient_and_products(self, params, batch, spans, vectors):
        asked = params, batch, spans
        return self.loss_gradient(*asked), [self.hessian_product(*asked, v) for v in vectors]

    def augment(self, x, generator):
        return x

    def _gradients(self, params, batch):
        h, b = batch.x.unbind(1)
        return h * params - b  # (n, d)


def _at(vector, spans):
    return torch.cat([vector[span] for span in spans])


class QuadraticWorld:
    """A task and a scenario at once.

    ``parts[client][key]`` lists the samples ``(h, b)`` of a data set: numbers, or lists of d.
    ``keys[t][client]`` is the data set that a client holds in round t; a client that is not named stays away.
    The list is repeated for ever. By default everybody holds data set 0.
    """

    persistent, rounds = True, None

    def __init__(self, parts, keys=None, start=0.0):
        self.keys = keys or [dict.fromkeys(range(len(parts)), 0)]
        self.clients, self.start = len(parts), start
        flat = [sample for sets in parts for samples in sets for sample in samples]
        self.x = torch.tensor(flat, dtype=torch.float64).reshape(len(flat), 2, -1)
        numbers = iter(range(len(flat)))
        self.positions = [[np.array([next(numbers) for _ in s]) for s in sets] for sets in parts]

    def at(self, t):
        held = self.keys[t % len(self.keys)]
        return Plan(t, {i: Visit(self.positions[i][key], key) for i, key in sorted(held.items())})

    def objective(self):
        return QuadraticObjective(self.x.shape[-1])

    def initial(self, seed):
        d = self.x.shape[-1]
        start = torch.as_tensor(self.start, dtype=torch.float64).expand(d).clone()
        return start, torch.zeros(0, dtype=torch.float64)

    def samples(self, indices):
        rows = torch.from_numpy(indices)
        return Samples(self.x[rows], torch.zeros(len(rows), dtype=torch.int64), rows)

    def mean(self, client, key=0):
        """The mean (h, b) of a data set, ``(2, d)``."""
        return self.x[torch.from_numpy(self.positions[client][key])].mean(0)

    def train(self, method, rounds, lr=0.1, steps=3, **others) -> list[Snapshot]:
        """Run with full batches, and return the snapshot after every round."""
        settings = {"batch_size": "full", **others.pop("settings", {})}
        train = Train(lr=lr, steps=steps, **settings)
        return list(run(method, self, self, rounds=rounds, train=train, **others))


def models(snapshots) -> torch.Tensor:
    """The global models after every round, ``(rounds, d)``."""
    return torch.stack([snapshot.params for snapshot in snapshots])


def apart(one, other) -> float:
    """The largest difference between the models of two runs."""
    return float((models(one) - models(other)).abs().max())

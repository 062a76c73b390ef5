"""The noisy quadratic model as an ordinary task for the real backbones, memories and weights.

A sample is a drift: client *i* in round *t* has one, the sum of its client drift and its time drift. So a core
set of one sample is a perfect memory, and so is a Taylor expansion if *A* is diagonal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Generator

from chronofed.core.config import NonNegative
from chronofed.core.seeds import numpy_generator, torch_generator
from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.backbones import FedAvg, FedProx
from chronofed.methods.local import Train
from chronofed.methods.memories import CoreSet, Forget
from chronofed.methods.method import Method
from chronofed.methods.weighting import Merged
from chronofed.scenarios.base import Indices, Scenario, Visit
from chronofed.scenarios.membership import Everyone
from chronofed.theory.nqm.model import Algorithm, Array, Model
from chronofed.theory.nqm.parabola import Parabola
from chronofed.theory.nqm.reduction import Path, correlated
from chronofed.training.loop import Snapshot, run


def literal(model: Model, algorithm: Algorithm | Method, lr: float, seed: int = 0) -> Array:
    r"""Run the real code: the losses :math:`\|A w_t + B\|` of one run, the same but a thousand times slower.

    Args:
        model: The model to minimise.
        algorithm: The algorithm that minimises it, or any :class:`~chronofed.methods.method.Method`.
        lr: Local learning rate :math:`\eta_l`.
        seed: Seed of the run.

    Returns:
        Losses before the first and after every round, ``(T + 1,)``.

    >>> from chronofed.theory import nqm
    >>> losses = nqm.literal(nqm.Model(rounds=20), nqm.ALGORITHMS[0], lr=0.1)
    >>> losses.shape, bool(losses[-1] < losses[0])
    ((21,), True)
    """
    task = World(model, seed)
    start = task.loss(task.initial(seed)[0])
    return np.array([start, *(task.loss(now.params) for now in snapshots(task, algorithm, lr))])


def snapshots(task: "World", algorithm: Algorithm | Method, lr: float) -> Iterator[Snapshot]:
    """Run the rounds of one run."""
    method = algorithm if isinstance(algorithm, Method) else as_method(algorithm, task.model)
    train = Train(lr=float(lr), batch_size="full", steps=task.model.steps)
    scenario = Scenario(DriftStream(task.model), Everyone())
    return run(method, scenario, task, rounds=task.model.rounds, train=train, seed=task.seed)


def as_method(algorithm: Algorithm, model: Model) -> Method:
    """Build an algorithm from the real backbones, memories and weights."""
    backbone = FedProx(mu=algorithm.mu) if algorithm.mu else FedAvg()
    if algorithm.information_loss_level is None:
        return Method(backbone, Forget(), Merged(), average="clients")
    memory = Lossy(size=1, level=algorithm.information_loss_level)
    return Method(backbone, memory, algorithm.round_weights(model), average="clients")


class Lossy(CoreSet, tag=True):
    """A core set that is off by :math:`N(I, I/1000)` in each coordinate of every sample; not for spec files.

    Attributes:
        level: Level *I* of the information loss.
    """

    level: NonNegative = 0.0

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: Generator
    ) -> Record:
        """Keep samples that are perturbed once."""
        off = torch.randn(samples.x.shape, generator=generator, dtype=samples.x.dtype)
        kept = super().observe(objective, params, samples, generator)
        return {**kept, "x": kept["x"] + self.level + (self.level / 1000) ** 0.5 * off}


@dataclass(frozen=True)
class World:
    """The model as a task, with all random numbers of one seed.

    Attributes:
        model: The model to minimise.
        seed: Seed of all random numbers.
    """

    model: Model
    seed: int = 0

    @cached_property
    def rotation(self) -> Array:
        r"""The matrix *U* of :math:`A = U^\top \Lambda U`, uniform among all rotations."""
        n = self.model.dimension
        if not self.model.rotated:
            return np.eye(n)
        q, r = np.linalg.qr(self._generator("rotation").standard_normal((n, n)))
        return np.asarray(q * np.sign(np.diag(r)))

    @cached_property
    def matrix(self) -> Array:
        """The matrix *A*."""
        return np.asarray(self.rotation.T * self.model.curvatures @ self.rotation)

    @cached_property
    def first_gradient(self) -> Array:
        """The gradient at the start, in the eigenbasis."""
        normal = self._generator("start").standard_normal(self.model.dimension)
        return np.asarray(np.sqrt(self.model.start_variance) * normal)

    @cached_property
    def slope(self) -> Array:
        """The vector *B*; zero if the run starts near the minimum, which is then at zero."""
        near = self.model.start == "near"
        gradient = 0 * self.first_gradient if near else self.first_gradient
        return np.asarray(self.rotation.T @ gradient)

    @cached_property
    def client_drifts(self) -> Array:
        r"""The drifts :math:`\delta`, ``(T, N, n)``."""
        model = self.model
        rounds = model.rounds if model.stateless else 1
        shape = (rounds, model.clients, model.dimension)
        normal = self._generator("client drift").standard_normal(shape)
        scale = (model.client_drift_sq / model.dimension) ** 0.5
        return np.broadcast_to(scale * normal, (model.rounds, *shape[1:]))

    @cached_property
    def time_drifts(self) -> Array:
        r"""The drifts :math:`\xi`, ``(T, N, n)``."""
        model = self.model
        shape = (model.rounds, model.clients, model.dimension)
        normal = self._generator("time drift").standard_normal(shape)
        scale = (model.time_drift_sq / model.dimension) ** 0.5
        return np.asarray(scale * correlated(normal, model.correlation))

    def objective(self) -> Parabola:
        """Return the quadratic."""
        matrix, slope = torch.from_numpy(self.matrix), torch.from_numpy(self.slope)
        return Parabola(matrix, slope, (self.model.noise_sq / self.model.dimension) ** 0.5)

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        """Return the start of the run; there are no buffers."""
        start = np.zeros(self.model.dimension)
        if self.model.start == "near":
            curvatures = self.model.curvatures
            some = curvatures > 0
            start[some] = self.first_gradient[some] / curvatures[some]
        return torch.from_numpy(self.rotation.T @ start), torch.zeros(0, dtype=torch.float64)

    def samples(self, indices: Indices) -> Samples:
        """Return the drifts of some clients, numbered round by round."""
        x = torch.from_numpy(self._drifts[indices])
        return Samples(x, torch.zeros(len(x), dtype=torch.int64))

    def loss(self, params: Vector) -> float:
        r"""Return the norm :math:`\|A w + B\|`."""
        return float(np.linalg.norm(self.matrix @ params.numpy() + self.slope))

    def path(self) -> Path:
        """Return the random numbers of :func:`literal` in the form of the reduction, for one run."""
        model, turn = self.model, self.rotation.T
        n, clients, rounds = model.dimension, model.clients, model.rounds
        noise, blur = np.zeros((rounds, model.steps, 1, n)), np.zeros((rounds, 1, n))
        for t, i in np.ndindex(rounds, clients):
            client = DriftStream(model).name(i, t)
            seen = torch_generator(self.seed, "train", t, client)
            for k in range(model.steps):
                noise[t, k, 0] += torch.randn(n, generator=seen, dtype=torch.float64).numpy()
            kept = torch_generator(self.seed, "observe", t, client)
            blur[t, 0] += torch.randn((1, n), generator=kept, dtype=torch.float64).numpy()[0]
        return Path(
            start=self.first_gradient[None],
            client=self.client_drifts.mean(1, keepdims=True) @ turn,
            time=self.time_drifts.mean(1, keepdims=True) @ turn,
            tilt=np.ones((1, n)) @ turn,
            blur=blur / clients @ turn,
            noise=(model.noise_sq / n) ** 0.5 * noise / clients @ turn,
        )

    @cached_property
    def _drifts(self) -> Array:
        return (self.client_drifts + self.time_drifts).reshape(-1, self.model.dimension)

    def _generator(self, purpose: str) -> np.random.Generator:
        return numpy_generator(self.seed, "literal", purpose)


@dataclass(frozen=True, slots=True)
class DriftStream:
    """The drift of every client in every round: all clients take part, and no drift comes back."""

    model: Model

    @property
    def clients(self) -> int:
        """Number of clients in a round."""
        return self.model.clients

    @property
    def rounds(self) -> int:
        """Number of rounds that have drifts."""
        return self.model.rounds

    @property
    def persistent(self) -> bool:
        """True if clients come back."""
        return not self.model.stateless

    def name(self, place: int, round_: int) -> int:
        """Return the client at one place of a round."""
        return place + (0 if self.persistent else round_ * self.clients)

    def candidates(self, round_: int) -> Indices:
        """Return all clients of a round."""
        return np.arange(self.clients) + self.name(0, round_)

    def visit(self, client: int, round_: int) -> Visit:
        """Return one drift."""
        row = client if not self.persistent else round_ * self.clients + client
        return Visit(np.array([row]), key=round_)

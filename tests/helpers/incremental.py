"""A class-incremental stream: every client gets new classes, task after task, and never the old ones again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed import Dataset, Samples, Scenario
from chronofed.scenarios import Everyone
from chronofed.scenarios.base import Visit


@dataclass(frozen=True)
class Tasks:
    """Client *i* holds every so-many-th sample of the present task's classes; the last task stays.

    ``classes[task]`` are the classes of a task, which lasts ``length`` rounds.
    """

    data: Dataset
    classes: Sequence[Sequence[int]]
    length: int = 1
    clients: int = 2
    rounds = None
    persistent = True

    def candidates(self, round_: int) -> NDArray[np.int64]:
        return np.arange(self.clients)

    def visit(self, client: int, round_: int) -> Visit:
        task = min(round_ // self.length, len(self.classes) - 1)
        held = np.flatnonzero(np.isin(self.data.train.y.numpy(), self.classes[task]))
        return Visit(held[client :: self.clients], task)


def incremental(data: Dataset, *classes: Sequence[int], **others: int) -> Scenario:
    return Scenario(Tasks(data, classes, **others), Everyone())


def rings(classes: int, n: int, seed: int = 0, spread: float = 0.4, d: int = 2) -> Dataset:
    """Gaussian blobs around the corners of a regular polygon, in float64; other features are noise."""
    draw = torch.Generator().manual_seed(seed)
    angles = 2 * torch.pi * torch.arange(classes, dtype=torch.float64) / classes

    def made(n: int) -> Samples:
        y = torch.arange(n) // 2 % classes
        x = spread * torch.randn(n, d, generator=draw, dtype=torch.float64)
        x[:, :2] += torch.stack([angles.cos(), angles.sin()], 1)[y]
        return Samples(x, y)

    return Dataset("rings", made(n), made(n), tuple(map(str, range(classes))))


def accuracy_on(task, snapshot, classes: Sequence[int]) -> float:
    """The share of right answers among the test samples of some classes."""
    test = task.data.test
    some = test[torch.isin(test.y, torch.tensor(classes))]
    return task.score(task.objective(), snapshot.params, snapshot.buffers, some).accuracy

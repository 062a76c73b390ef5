"""Workloads to measure engines with, and a process that runs their rounds when it is told to.

``python -m chronofed.experiments.bench A threads 2`` prepares workload A, writes a line of JSON, and then runs
one round for every line ``go`` that it reads, answering each with another line. Contestants that sit ready
side by side can so take turns: what else happens on the machine meets all of them.
"""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from chronofed.engines.choice import EngineKind, choose
from chronofed.local import Train
from chronofed.loop import run
from chronofed.protocol import Method
from chronofed.scenarios.base import Indices, Scenario, Visit
from chronofed.scenarios.membership import Everyone
from chronofed.seeds import numpy_generator
from chronofed.tasks.classification import Classification
from chronofed.tasks.dataset import Dataset
from chronofed.tasks.models import Cnn, Mlp, ModelSettings, ResNet18
from chronofed.types import Batch, Samples

CLASSES = 10
BATCH = 32
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """A federated task of fixed size with made data.

    Attributes:
        about: What it is.
        model: The model.
        shape: Of one sample.
        clients: Clients that exist.
        samples: Samples of each.
        cohort: Clients of a round.
    """

    about: str
    model: ModelSettings
    shape: tuple[int, ...]
    clients: int
    samples: int
    cohort: int

    def task(self) -> Classification:
        """Random images, with labels that can be learned from them."""
        rng = numpy_generator(0, "bench")
        count = self.clients * self.samples
        x = torch.from_numpy(rng.integers(0, 256, (count, *self.shape), dtype=np.uint8))
        y = torch.from_numpy(rng.integers(0, CLASSES, count))
        x.view(count, -1)[torch.arange(count), y] = 255
        classes = tuple(map(str, range(CLASSES)))
        test = Samples(x[:100], y[:100])
        return Classification(Dataset(self.about, Samples(x, y), test, classes), self.model)

    def scenario(self) -> Scenario:
        """Clients that keep their data."""
        cohort = self.cohort if self.cohort < self.clients else None
        return Scenario(_Owners(self.clients, self.samples), Everyone(), cohort)

    @property
    def train(self) -> Train:
        """One epoch of plain SGD."""
        return Train(lr=0.01, batch_size=BATCH)

    def operations(self) -> int:
        """Floating-point operations of a round, forward and backward, two for each multiply-add."""
        objective = Classification(self._tiny(), self.model).objective()
        samples = self._tiny().train
        with FlopCounterMode(display=False) as counter:
            objective.gradient(objective.flat.read(), Batch.mean(samples))
        sample = int(counter.get_total_flops()) // len(samples)
        return sample * self.samples * self.cohort

    def _tiny(self) -> Dataset:
        x = torch.zeros((2, *self.shape), dtype=torch.uint8)
        some = Samples(x, torch.tensor([0, 1]))
        return Dataset(self.about, some, some, tuple(map(str, range(CLASSES))))


WORKLOADS = {
    "A": Workload("MLP 784-200-10, 7 clients x 238", Mlp(), (1, 28, 28), 7, 238, 7),
    "B": Workload("MLP, 100 of 1,000 clients x 50", Mlp(), (1, 28, 28), 1000, 50, 100),
    "C": Workload("CNN 32-64-512, 7 clients x 238", Cnn(), (3, 32, 32), 7, 238, 7),
    "R": Workload("ResNet18 of width 16, 7 x 96", ResNet18(width=16), (3, 32, 32), 7, 96, 7),
}


@dataclass(frozen=True, slots=True)
class _Owners:
    """Every client has its own samples, always the same."""

    clients: int
    samples: int
    rounds: None = None
    persistent: bool = True

    def candidates(self, round_: int) -> Indices:  # noqa: ARG002
        return np.arange(self.clients)

    def visit(self, client: int, round_: int) -> Visit:  # noqa: ARG002
        return Visit(np.arange(client * self.samples, (client + 1) * self.samples), key=0)


@cache
def peak(threads: int) -> float:
    """Floating-point operations a second of the fastest matrix product that torch can do here."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.rand(1024, 1024)
        return 2 * 1024**3 / min(_seconds(a) for _ in range(12))
    finally:
        torch.set_num_threads(before)


def _seconds(a: torch.Tensor) -> float:
    begin = time.perf_counter()
    a @ a
    return time.perf_counter() - begin


def rounds(work: Workload, kind: EngineKind, workers: int | None, method: Method) -> Iterator[str]:
    """First what was chosen and why, then after every round nothing: the caller has the clock."""
    task, scenario = work.task(), work.scenario()
    choice = choose(kind, workers, task, method, work.cohort)
    with contextlib.closing(choice.build(task)) as engine:
        yield f"{choice.engine} x {choice.workers}"
        for _ in run(method, scenario, task, train=work.train, engine=engine):
            yield ""


def memory() -> float:
    """Megabytes of this process and its children, where what they share counts once; else the peak of this."""
    found = 0.0
    for process in [Path("/proc/self"), *_children()]:
        with contextlib.suppress(OSError):
            lines = (process / "smaps_rollup").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return found or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _children() -> Iterator[Path]:
    """Processes that this one started, directly or not."""
    waiting = [Path("/proc/self")]
    while waiting:
        for task in (waiting.pop() / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found = [Path("/proc") / number for number in task.read_text().split()]
                yield from found
                waiting += found


def main() -> None:
    """Prepare, then run a round for every line that is read."""
    name, kind, workers = sys.argv[1:4]
    turns = rounds(WORKLOADS[name], kind, int(workers) or None, Method())  # type: ignore[arg-type]
    about = next(turns)
    for _ in range(WARM_UP):
        next(turns)
    print(json.dumps({"engine": about}), flush=True)  # noqa: T201 - this is its interface
    for _ in sys.stdin:
        begin = time.perf_counter()
        next(turns)
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "memory": memory()}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

"""Fixed workloads to benchmark engines, and a process that runs their rounds on command.

``python -m chronofed.studies.bench A threads 2`` prepares workload A, writes a line of JSON, and then runs
one round for every line ``go`` that it reads and answers with another line. Several such processes take turns,
so that other load on the machine slows all of them.
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

from chronofed.core.seeds import numpy_generator
from chronofed.core.types import Batch, Samples
from chronofed.data.dataset import Dataset
from chronofed.engines.auto import choose
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.models.classification import Classification
from chronofed.models.zoo import Cnn, Mlp, ModelSettings, ResNet18
from chronofed.scenarios.base import Indices, Scenario, Visit
from chronofed.scenarios.membership import Everyone
from chronofed.training.loop import run

CLASSES = 10
BATCH = 32
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """A federated task of fixed size with synthetic data.

    Attributes:
        about: Description.
        model: The model.
        shape: Shape of one sample.
        clients: Number of clients.
        samples: Samples per client.
        cohort: Clients per round.
    """

    about: str
    model: ModelSettings
    shape: tuple[int, ...]
    clients: int
    samples: int
    cohort: int

    def task(self) -> Classification:
        """Make random images with labels that can be learned."""
        rng = numpy_generator(0, "bench")
        count = self.clients * self.samples
        x = torch.from_numpy(rng.integers(0, 256, (count, *self.shape), dtype=np.uint8))
        y = torch.from_numpy(rng.integers(0, CLASSES, count))
        x.view(count, -1)[torch.arange(count), y] = 255
        classes = tuple(map(str, range(CLASSES)))
        test = Samples(x[:100], y[:100])
        return Classification(Dataset(self.about, Samples(x, y), test, classes), self.model)

    def scenario(self) -> Scenario:
        """Make a scenario of clients whose data stay the same."""
        cohort = self.cohort if self.cohort < self.clients else None
        return Scenario(_Owners(self.clients, self.samples), Everyone(), cohort)

    @property
    def train(self) -> Train:
        """One epoch of plain SGD."""
        return Train(lr=0.01, batch_size=BATCH)

    def operations(self) -> int:
        """Count the floating-point operations of a round, forward and backward, two per multiply-add."""
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
    """A stream in which every client always has the same samples."""

    clients: int
    samples: int
    rounds: None = None
    persistent: bool = True

    def candidates(self, round_: int) -> Indices:
        return np.arange(self.clients)

    def visit(self, client: int, round_: int) -> Visit:
        return Visit(np.arange(client * self.samples, (client + 1) * self.samples), key=0)


@cache
def peak(threads: int) -> float:
    """Measure the floating-point operations per second of torch's fastest matrix product on this machine."""
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


def rounds(work: Workload, name: str, workers: int | None, method: Method) -> Iterator[str]:
    """Yield the chosen engine, then an empty string after every round; the caller measures the time."""
    task, scenario = work.task(), work.scenario()
    choice = choose(name, workers, task, method, work.cohort, work.train)
    with contextlib.closing(choice.build(task)) as engine:
        yield f"{choice.engine} x {choice.workers}"
        for _ in run(method, scenario, task, train=work.train, engine=engine):
            yield ""


def memory_mb() -> float:
    """Measure the megabytes of this process and its children.

    Shared memory counts once. Where the kernel does not tell, return the peak of this process.
    """
    found = 0.0
    for process in [Path("/proc/self"), *_children()]:
        with contextlib.suppress(OSError):
            lines = (process / "smaps_rollup").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return found or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _children() -> Iterator[Path]:
    """Yield the processes that this one started, directly or not."""
    waiting = [Path("/proc/self")]
    while waiting:
        for task in (waiting.pop() / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found = [Path("/proc") / number for number in task.read_text().split()]
                yield from found
                waiting += found


def main() -> None:
    """Prepare a workload, then run a round for every line read."""
    name, kind, workers = sys.argv[1:4]
    turns = rounds(WORKLOADS[name], kind, int(workers) or None, Method())
    about = next(turns)
    for _ in range(WARM_UP):
        next(turns)
    print(json.dumps({"engine": about}), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        next(turns)
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "memory_mb": memory_mb()}), flush=True)


if __name__ == "__main__":
    main()

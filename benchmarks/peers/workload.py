"""The workloads as numpy arrays from a fixed seed: all contestants read the same clients and parameters.

| name | model | clients | a round |
|---|---|---|---|
| A | MLP 784-200-10 | 7 x 238 samples | all |
| B | MLP 784-200-10 | 1,000 x 50 samples | 100 |
| C | CNN: 5x5x32, pool, 5x5x64, pool, fc 512, fc 10 on 32x32x3, no padding | 7 x 238 samples | all |
| D | the same with padding 2, as chronofed's ``Cnn`` has it: twice the work of C | 7 x 238 samples | all |
| R | ResNet18 of width 16 for 32x32x3, BatchNorm | 7 x 96 samples | all |

Batches of 32, the last one smaller; one epoch of plain SGD, lr 0.01; FedAvg weighted by samples. Parameters
are a list of arrays in torch's order and layout: weights ``(out, in)`` or ``(out, in, height, width)``, then
biases.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SEED = 2026
CLASSES = 10
REFERENCE = Path(__file__).with_name("reference.json")
PROJECTIONS = 6

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Workload:
    """One federated task; see the table above."""

    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    cohort: int
    batch: int = 32
    lr: float = 0.01
    padding: int = 0  # of the 5x5 convolutions of the CNN
    tolerance: float = 1e-3  # of the update's length, for float32 against a reference in float64

    @property
    def steps(self) -> int:
        """Steps of one client in one round."""
        return math.ceil(self.samples / self.batch)


WORKLOADS = {
    "A": Workload("A", "mlp", (1, 28, 28), clients=7, samples=238, cohort=7),
    "B": Workload("B", "mlp", (1, 28, 28), clients=1000, samples=50, cohort=100),
    "C": Workload("C", "cnn", (3, 32, 32), clients=7, samples=238, cohort=7),
    # In float32 a ReLU or pooling that is nearly a tie may go the other way. It does in D with torch's
    # oneDNN (3.6e-3, nearly all in client 6; FedJAX 6e-5): the tolerance was set after seeing that.
    "D": Workload(
        "D", "cnn", (3, 32, 32), clients=7, samples=238, cohort=7, padding=2, tolerance=5e-3
    ),
    # BatchNorm and 17 ReLUs magnify rounding: any float32 ends 3 % of the update away from float64.
    "R": Workload("R", "resnet", (3, 32, 32), clients=7, samples=96, cohort=7, tolerance=0.1),
}


class Clients(NamedTuple):
    """Everybody's data, with a leading client axis."""

    images: NDArray[np.uint8]  # (clients, samples, *shape)
    labels: NDArray[np.int64]  # (clients, samples)


class Layer(NamedTuple):
    """A linear map ``weight`` applied at ``positions`` pixels, or (no positions) a BatchNorm."""

    weight: tuple[int, ...]
    positions: int
    bias: bool


def clients(work: Workload) -> Clients:
    """Noisy copies of one picture for each class, so that there is something to learn."""
    generator = np.random.default_rng([SEED, 1])
    prototypes = generator.integers(0, 256, (CLASSES, *work.shape), dtype=np.uint8)
    labels = generator.integers(0, CLASSES, (work.clients, work.samples), dtype=np.int64)
    images = generator.integers(0, 256, (*labels.shape, *work.shape), dtype=np.uint8)
    images //= 4
    images *= 3
    images += prototypes[labels] // 4
    return Clients(images, labels)


def scaled(images: NDArray[np.uint8]) -> Floats:
    """Bytes as the models want them, ``(x/255 - 0.5)/0.25``; the same in chronofed's models."""
    numbers = images.astype(np.float32)
    numbers *= np.float32(4 / 255)
    numbers -= np.float32(2)
    return numbers


def probe(data: Clients) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A fixed batch on which the loss has to fall: 32 samples of each of the first four clients."""
    return np.concatenate(data.images[:4, :32]), np.concatenate(data.labels[:4, :32])


def cohort(work: Workload, number: int) -> list[int]:
    """Who trains in round ``number``: everybody, or a draw that depends on nothing but the number."""
    if work.cohort == work.clients:
        return list(range(work.clients))
    generator = np.random.default_rng([SEED, 2, number])
    return generator.choice(work.clients, work.cohort, replace=False).tolist()


def initial(work: Workload) -> list[Floats]:
    """First parameters: torch's uniform distribution for linear maps, ones and zeros for BatchNorm."""
    generator = np.random.default_rng([SEED, 3])
    return [array for layer in layers(work) for array in _first(layer, generator)]


def _first(layer: Layer, generator: np.random.Generator) -> Iterator[Floats]:
    outputs = layer.weight[0]
    if not layer.positions:
        yield np.ones(outputs, np.float32)
        yield np.zeros(outputs, np.float32)
        return
    bound = 1 / math.sqrt(math.prod(layer.weight[1:]))
    yield generator.uniform(-bound, bound, layer.weight).astype(np.float32)
    if layer.bias:
        yield generator.uniform(-bound, bound, outputs).astype(np.float32)


def layers(work: Workload) -> list[Layer]:
    """The model, layer by layer, in the order of its parameters."""
    return {"mlp": _mlp, "cnn": _cnn, "resnet": _resnet}[work.model](work)


def _mlp(work: Workload) -> list[Layer]:
    return [_dense(math.prod(work.shape), 200), _dense(200, CLASSES)]


def _cnn(work: Workload) -> list[Layer]:
    channels, side, _ = work.shape
    found = []
    for inputs, outputs in pairwise((channels, 32, 64)):
        side += 2 * work.padding - 4
        found.append(Layer((outputs, inputs, 5, 5), side * side, True))
        side //= 2
    return [*found, _dense(64 * side * side, 512), _dense(512, CLASSES)]


def _resnet(work: Workload, width: int = 16) -> list[Layer]:
    channels, side, _ = work.shape
    found = _normed(channels, width, 3, side)
    inputs = width
    for stage in range(4):
        side_here, outputs = side >> stage, width << stage
        for block in range(2):
            found += _normed(inputs, outputs, 3, side_here) + _normed(
                outputs, outputs, 3, side_here
            )
            if stage and not block:
                found += _normed(inputs, outputs, 1, side_here)
            inputs = outputs
    return [*found, _dense(inputs, CLASSES)]


def _normed(inputs: int, outputs: int, kernel: int, side: int) -> list[Layer]:
    convolution = Layer((outputs, inputs, kernel, kernel), side * side, False)
    return [convolution, Layer((outputs,), 0, True)]


def _dense(inputs: int, outputs: int) -> Layer:
    return Layer((outputs, inputs), 1, True)


def flops(work: Workload) -> int:
    """Forward and backward of one round, two for each multiply-add of the linear maps.

    Backward counts the gradient by the weights and, but for the first layer, the gradient by the input.
    """
    maps = [math.prod(layer.weight) * layer.positions for layer in layers(work)]
    sample = 2 * (3 * sum(maps) - maps[0])
    return sample * work.samples * work.cohort


def fingerprint(work: Workload, params: Sequence[NDArray[np.floating]]) -> list[float]:
    """The update from the first parameters: its length, and its part along a few fixed random directions."""
    first = initial(work)
    shapes = [array.shape for array in params]
    if shapes != [array.shape for array in first]:
        raise ValueError(f"workload {work.name}: parameters have shapes {shapes}")
    parts = [(new - old).ravel() for new, old in zip(params, first, strict=True)]
    update = np.concatenate(parts).astype(np.float64)
    generator = np.random.default_rng([SEED, 4])
    directions = (generator.standard_normal(update.size) for _ in range(PROJECTIONS))
    return [float(np.linalg.norm(update)), *(float(update @ along) for along in directions)]


def check(work: Workload, params: Sequence[NDArray[np.floating]]) -> float:
    """Compare the parameters after round 0, samples in stored order, with a plain loop in float64.

    A projection on a standard normal vector estimates the length of what it projects, so the root of their mean
    square is the error, in units of the update's length. Returns it; raises if it is above the tolerance.
    """
    wanted = np.asarray(json.loads(REFERENCE.read_text())[work.name])
    found = np.asarray(fingerprint(work, params))
    error = float(np.sqrt(np.mean((found - wanted)[1:] ** 2)) / wanted[0])
    if not error < work.tolerance:
        raise AssertionError(
            f"workload {work.name}: round 0 is {error:.2e} of its update away from the reference"
        )
    return error

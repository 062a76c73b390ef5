"""FedDrift finds the true concepts: SINE and CIRCLE with the authors' change points."""

import importlib.util
from pathlib import Path

import pytest

from chronofed import Linear, Train

PATH = Path(__file__).parents[2] / "benchmarks" / "feddrift.py"
SPEC = importlib.util.spec_from_file_location("feddrift", PATH)
feddrift = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(feddrift)
QUICK = Train(lr=0.1, batch_size="full", steps=5, optimizer="adamw", weight_decay=0.0)


def judged(name, label, **settings):
    """Rightness, numbers and accuracies by step; of FedDrift without the first, when everybody is alone."""
    settings = {"rounds": 20, "seed": 0, "size": 500} | settings
    data = feddrift.dataset(name, settings["seed"], settings.pop("size"))
    lines = feddrift.judge(feddrift.methods(name)[label], data, **settings)
    if label == "FedDrift":
        first = lines.pop(0)
        assert len(set(first[1])) == feddrift.CLIENTS
    return lines


@pytest.mark.parametrize(
    "label", ["FedDrift-Eager", pytest.param("FedDrift", marks=pytest.mark.product)]
)
def test_sine(label):
    """A line divides the samples well; a concept that comes back meets its own model again."""
    lines = judged("sine", label, rounds=2, size=50, model=Linear(), train=QUICK)
    assert all(right for right, *_ in lines)
    concepts = feddrift.CHANGES[-1 - len(lines) : -1].ravel().tolist()
    pairs = set(zip([n for line in lines for n in line[1]], concepts, strict=True))
    assert len(pairs) == 2
    assert min(own for *_, own, _ in lines) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("label", ["FedDrift-Eager", "FedDrift"])
@pytest.mark.parametrize("name", ["sine", "circle"])
def test_full_size(name, label):
    """Assignment equal to the truth at every step, and accuracy far above FedAvg's."""
    lines, plain = judged(name, label), judged(name, "FedAvg")
    assert all(right for right, *_ in lines)
    for k in (2, 3):
        several, one = (sum(line[k] for line in found[-9:]) / 9 for found in (lines, plain))
        assert several > one + 0.05


def test_the_truth_is_the_authors():
    """Two concepts, ten clients, ten steps and one to test on; SINE swaps the classes."""
    assert feddrift.CHANGES.shape == (11, 10)
    assert feddrift.CHANGES.sum(1).tolist() == [0, 1, 2, 5, 6, 6, 4, 5, 4, 4, 4]
    assert feddrift.is_right([3, 3, 5], [1, 1, 0])
    assert not feddrift.is_right([3, 3, 5], [1, 0, 0])
    assert not feddrift.is_right([3, 4, 5], [1, 1, 0])

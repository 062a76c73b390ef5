"""A rehearsal finds what fails in the user's own code before anything is written, and changes no bit."""

import math
import random
import sys
import textwrap

import numpy as np
import pytest
import torch

from chronofed import CoreSet, Custom, Experiment, FedAvg, Linear, Method, Mlp, Subsets, Train
from chronofed.core.errors import DivergedError, SpecError, UserCodeError
from chronofed.runs import runner
from chronofed.runs.built import build, check_device
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.rehearsal import rehearse
from chronofed.training.divergence import check_loss
from chronofed.training.evaluate import Evaluate

MODULE = """
import random, sys
import numpy, torch
from torch import nn
import chronofed

def good(shape, classes):
    return nn.Sequential(chronofed.Scale(), nn.Flatten(), nn.Linear(784, classes), nn.Dropout(0.2))

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = good((1, 28, 28), 10)
    def forward(self, x):
        torch.rand(3), numpy.random.rand(), random.random()
        return self.inner(x)

def noisy(shape, classes):
    return Noisy()

def raises(shape, classes):
    raise KeyError("no weights")

def leaves(shape, classes):
    sys.exit(0)

def narrow(shape, classes):
    return nn.Sequential(chronofed.Scale(), nn.Flatten(), nn.Linear(784, 7))

def wide(shape, classes):
    return nn.Sequential(chronofed.Scale(), nn.Flatten(), nn.Linear(784, 12))

def frozen(shape, classes):
    return good(shape, classes).requires_grad_(False)

def bytes_in(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))

def normed(shape, classes):
    return nn.Sequential(
        chronofed.Scale(), nn.Flatten(), nn.Linear(784, 4), nn.BatchNorm1d(4), nn.Linear(4, classes)
    )

class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 10)
    def forward(self, x):
        return self.fc(x.flatten(1).float()) if not self.training else self.missing(x)

def failing(shape, classes):
    return Failing()

class LateExit(Failing):
    def forward(self, x):
        sys.exit(0) if self.training else None
        return self.fc(x.flatten(1).float())

def late_exit(shape, classes):
    return LateExit()

class Lost(chronofed.FedAvg):
    def direction(self, grad, params, server, client):
        return grad / server["nothing"]
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_parts", None)


def experiment(model=None, **changes):
    settings = {
        "rounds": 2,
        "model": model or Linear(),
        "scenario": Subsets(clients=3, subsets=5),
        "train": Train(steps=2, batch_size=16),
        "evaluate": Evaluate(seen=20),
    }
    return Experiment(**(settings | changes))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("raises", UserCodeError, "model custom: own_parts:raises failed: KeyError: 'no weights'"),
        ("leaves", UserCodeError, r"own_parts:leaves failed: it called sys.exit\(0\)"),
        ("narrow", SpecError, r"model: it returns \(4, 7\) for 4 samples, expected \(4, 10\)"),
        ("wide", SpecError, r"model: it returns \(4, 12\) for 4 samples, expected \(4, 10\)"),
        ("frozen", SpecError, "model: it has no trainable parameters"),
        ("bytes_in", UserCodeError, r"model: it fails on samples .*chronofed\.Scale\(\)"),
        ("failing", UserCodeError, "no attribute 'missing'"),
        ("late_exit", UserCodeError, r"it called sys.exit\(0\)"),
    ],
)
def test_a_model_that_cannot_work_is_refused_before_anything_is_written(
    tmp_path, name, error, message
):
    with pytest.raises(error, match=rf"(?s)^(?!.*\n).*{message}") as caught:
        runner.run(experiment(Custom(f"own_parts:{name}")), tmp_path / "run")
    assert caught.value.exit_code != 0
    assert not (tmp_path / "run").exists()
    frames = getattr(caught.value, "frames", "")
    assert ("own_parts.py" in frames) == (name in ("raises", "leaves", "failing", "late_exit"))
    assert "chronofed/" not in frames.replace(str(tmp_path), "")


def test_batch_norm_is_refused_only_where_a_batch_of_one_can_come(tmp_path):
    single = experiment(Custom("own_parts:normed"), train=Train(steps=1, batch_size=1))
    with pytest.raises(
        SpecError, match=r"^round 0, client 0: the model fails on one .*train.batch_size"
    ):
        runner.run(single, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    full = experiment(Custom("own_parts:normed"), train=Train(steps=1, batch_size="full"))
    rehearse(build(full))


def test_a_method_that_fails_is_shown_with_the_users_frames(tmp_path):
    from own_parts import Lost

    with pytest.raises(UserCodeError, match="KeyError: 'nothing'") as caught:
        runner.run(experiment(method=Method(Lost())), tmp_path / "run")
    assert "in direction" in caught.value.frames
    assert not (tmp_path / "run").exists()


def test_an_error_after_the_rehearsal_is_recorded(tmp_path, monkeypatch):
    import own_parts

    monkeypatch.setattr(runner, "rehearse", lambda _: None)
    with pytest.raises(UserCodeError, match="your own code failed: KeyError"):
        runner.run(experiment(method=Method(own_parts.Lost())), tmp_path / "run")
    assert "KeyError: 'nothing'" in runner.RunDirectory(tmp_path / "run").failure()


@pytest.mark.parametrize("model", [Mlp((5,)), Custom("own_parts:noisy")])
def test_a_rehearsal_changes_no_bit(tmp_path, monkeypatch, model):
    method = Method(FedAvg(), CoreSet(3))

    def final(name):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002, the generator of careless models
        random.seed(3)
        runner.run(experiment(model, method=method), tmp_path / name)
        return load_latest(tmp_path / name / "checkpoints")[0], torch.rand(1), random.random()

    with_it, torch_next, next_number = final("with")
    monkeypatch.setattr(runner, "rehearse", lambda built: None)
    without, torch_same, same_number = final("without")
    assert torch.equal(with_it.params, without.params)
    assert torch.equal(with_it.buffers, without.buffers)
    assert torch.equal(torch_next, torch_same)
    assert next_number == same_number


def test_a_rehearsal_leaves_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    rehearse(build(experiment(Custom("own_parts:noisy"))))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "mps", "meta", "banana", "", "cpu:x"])
def test_a_device_that_does_not_work_is_refused(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has that device; run it on one without")
    with pytest.raises(
        SpecError, match=rf"^device: '{device}' does not work here \(.*\); use cpu$"
    ):
        check_device(device)


def test_a_run_that_diverges_says_so_and_keeps_its_records(tmp_path):
    wild = experiment(rounds=4, train=Train(lr=1e6, steps=2))
    with pytest.raises(
        DivergedError, match=r"^round 1: training diverged: the test loss is \S+e\+"
    ):
        runner.run(wild, tmp_path / "run")
    run = runner.RunDirectory(tmp_path / "run")
    assert [line["round"] for line in run.history()] == [1]
    assert "round 1: training diverged" in run.failure()
    assert run.summary() is None


def test_a_run_that_diverged_in_its_last_round_cannot_be_finished_by_resuming(tmp_path):
    wild = experiment(rounds=1, train=Train(lr=1e6, steps=2))
    for _ in range(2):
        with pytest.raises(DivergedError, match="round 1: "):
            runner.run(wild, tmp_path / "run")


@pytest.mark.parametrize(
    ("loss", "diverged"), [(2302.0, False), (2303.0, True), (float("nan"), True), (None, False)]
)
def test_the_bound_of_the_loss(loss, diverged):
    measures = {"round": 3} if loss is None else {"round": 3, "test_loss": loss}
    if not diverged:
        return check_loss(measures, math.log(10))
    with pytest.raises(DivergedError, match=r"^round 3"):
        check_loss(measures, math.log(10))
    return None

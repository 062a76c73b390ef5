"""Linear least squares in two rounds, through the real loop, against plain NumPy in double precision.

Three clients; client 1 comes twice, with other rows. All steps use all samples. The model is a row of weights
and a bias, the loss of a sample half its squared error.
"""

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    CoreSet,
    Custom,
    Dataset,
    Ditto,
    Exact,
    FedAvg,
    FedNova,
    FedProx,
    Fixed,
    Forget,
    Method,
    Mime,
    MimeLite,
    Regression,
    Samples,
    Scaffold,
    Taylor,
    Train,
    run,
)
from chronofed.scenarios.base import Plan, Visit

COHORTS = ((0, 1), (1, 2))
SIZES = {(0, 0): 4, (0, 1): 6, (1, 1): 5, (1, 2): 7}  # round and client
LR, STEPS, PRESENT = 0.1, 2, 0.7
CLIENTS = 3
rng = np.random.default_rng(0)
ROWS, start = {}, 0
for place, n in SIZES.items():
    ROWS[place] = np.arange(start, start + n)
    start += n
X, Y = rng.normal(size=(start, 3)), rng.normal(size=start)
MEMORIES = {
    "forget": Forget(),
    "core-set": CoreSet(100),
    "taylor": Taylor(curvature=Exact(), layers={"*": 1.0}),
}


def double(shape, classes):
    return nn.Linear(shape[0], classes).double()


class World:
    clients, persistent, rounds = CLIENTS, True, None

    def at(self, t):
        return Plan(t, {i: Visit(ROWS[t, i], t) for i in COHORTS[t]})


def trained(backbone, memory, settings):
    samples = Samples(torch.from_numpy(X), torch.from_numpy(Y))
    task = Regression(Dataset("d", samples, samples, ()), Custom(f"{__name__}:double"))
    method = Method(backbone, MEMORIES[memory], Fixed(PRESENT))
    snapshots = list(run(method, World(), task, rounds=2, train=settings))
    return task.initial(0)[0].numpy(), snapshots


# --- the same in NumPy


def design(t, i):
    rows = ROWS[t, i]
    return np.column_stack([X[rows], np.ones(len(rows))]), Y[rows]


def plain_gradient(t, i, w):
    a, y = design(t, i)
    return a.T @ (a @ w - y) / len(y)


class Memory:
    """The past as each kind of memory has it: the gradient of present and past."""

    def __init__(self, kind):
        self.kind, self.quadratics = kind, []

    def gradient(self, t, i, w):
        now = plain_gradient(t, i, w)
        if self.kind == "core-set" and (t, i) == (1, 1):
            return PRESENT * now + (1 - PRESENT) * plain_gradient(0, 1, w)
        if self.kind == "taylor" and t == 1:
            past = np.mean([g + h * (w - at) for g, h, at in self.quadratics], axis=0)
            return PRESENT * now + (1 - PRESENT) * past
        return now

    def observe(self, t, i, end):
        a, _ = design(t, i)
        h = np.square(a).mean(0)
        self.quadratics.append((plain_gradient(t, i, end), h, end))


def mean(t, values):
    sizes = [SIZES[t, i] for i in COHORTS[t]]
    return np.average(values, axis=0, weights=sizes)


def descend(w, direction, steps=STEPS):
    for _ in range(steps):
        w = w - LR * direction(w)
    return w


def fedprox(w, kind, mu):
    memory = Memory(kind)
    for t, cohort in enumerate(COHORTS):
        ends = [
            descend(w, lambda v, i=i, t=t, w=w: memory.gradient(t, i, v) + mu * (v - w))
            for i in cohort
        ]
        for i, end in zip(cohort, ends, strict=True):
            memory.observe(t, i, end)
        w = mean(t, ends)
        yield w


def scaffold(w, kind):
    memory, c = Memory(kind), np.zeros(4)
    own = [np.zeros(4) for _ in range(CLIENTS)]
    for t, cohort in enumerate(COHORTS):
        ends, changes = [], []
        for i in cohort:
            end = descend(w, lambda v, i=i, t=t, d=c - own[i]: memory.gradient(t, i, v) + d)
            new = own[i] - c + (w - end) / (STEPS * LR)
            changes.append(new - own[i])
            own[i] = new
            ends.append(end)
        for i, end in zip(cohort, ends, strict=True):
            memory.observe(t, i, end)
        c = c + np.sum(changes, axis=0) / CLIENTS
        w = mean(t, ends)
        yield w


def mime(w, kind, beta, corrected):
    memory, m = Memory(kind), np.zeros(4)
    for t, cohort in enumerate(COHORTS):
        full = [memory.gradient(t, i, w) for i in cohort]
        c = mean(t, full)
        ends = []
        for i, there in zip(cohort, full, strict=True):
            shift = c - there if corrected else 0.0
            ends.append(
                descend(
                    w,
                    lambda v, i=i, t=t, s=shift, m=m: (
                        (1 - beta) * (memory.gradient(t, i, v) + s) + beta * m
                    ),
                )
            )
        for i, end in zip(cohort, ends, strict=True):
            memory.observe(t, i, end)
        m = (1 - beta) * c + beta * m
        w = mean(t, ends)
        yield w


def fednova(w, kind, steps):
    memory = Memory(kind)
    for t, cohort in enumerate(COHORTS):
        taken = [steps(SIZES[t, i]) for i in cohort]
        ends = [
            descend(w, lambda v, i=i, t=t: memory.gradient(t, i, v), k)
            for i, k in zip(cohort, taken, strict=True)
        ]
        for i, end in zip(cohort, ends, strict=True):
            memory.observe(t, i, end)
        each = [(end - w) / k for end, k in zip(ends, taken, strict=True)]
        w = w + mean(t, np.array(taken, dtype=float)) * mean(t, each)
        yield w


def personal(w, kind, tie):
    """Ditto's personal models: client 1 continues with its own."""
    memory, own = Memory(kind), {}
    for (t, cohort), end in zip(enumerate(COHORTS), fedprox(w, kind, 0.0), strict=True):
        for i in cohort:
            shared = descend(w, lambda v, i=i, t=t: memory.gradient(t, i, v))
            begin = own.get(i, w)
            own[i] = descend(
                begin, lambda v, i=i, t=t, w=w: memory.gradient(t, i, v) + tie * (v - w)
            )
            if t == 0:
                memory.observe(t, i, shared)
        w = end
    return own


FULL = Train(lr=LR, batch_size="full", steps=STEPS)
CASES = {
    "fedavg": (FedAvg(), lambda w, kind: fedprox(w, kind, 0.0)),
    "fedprox": (FedProx(0.3), lambda w, kind: fedprox(w, kind, 0.3)),
    "scaffold": (Scaffold(), scaffold),
    "mimelite": (MimeLite(0.4), lambda w, kind: mime(w, kind, 0.4, corrected=False)),
    "mime": (Mime(0.4), lambda w, kind: mime(w, kind, 0.4, corrected=True)),
    "fednova": (FedNova(), lambda w, kind: fednova(w, kind, lambda n: STEPS)),
    "ditto": (Ditto(0.5), lambda w, kind: fedprox(w, kind, 0.0)),
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds(case, memory):
    backbone, reference = CASES[case]
    w, snapshots = trained(backbone, memory, FULL)
    for got, want in zip(snapshots, reference(w, memory), strict=True):
        np.testing.assert_allclose(got.params.numpy(), want, rtol=0, atol=1e-12)
    plain = list(reference(w, "forget"))[-1]
    assert memory == "forget" or np.abs(snapshots[-1].params.numpy() - plain).max() > 1e-3


@pytest.mark.parametrize("memory", ["forget", "taylor"])
def test_fednova_with_unequal_steps(memory):
    """Clients take as many steps as they have samples, each with all of them."""
    settings = Train(lr=LR, batch_size=7, epochs=7.0)
    w, snapshots = trained(FedNova(), memory, settings)
    for got, want in zip(snapshots, fednova(w, memory, lambda n: n), strict=True):
        np.testing.assert_allclose(got.params.numpy(), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory", MEMORIES)
def test_ditto_keeps_personal_models(memory):
    w, snapshots = trained(Ditto(0.5), memory, FULL)
    want = personal(w, memory, 0.5)
    for i, state in snapshots[-1].client_states.items():
        got = state.backbone_state["personal"].numpy()
        np.testing.assert_allclose(got, want[i], rtol=0, atol=1e-12)

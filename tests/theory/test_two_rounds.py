"""Every backbone through the real loop, against its algorithm written out literally, in exact fractions.

The world: three clients with f_i(w) = a_i/2 (w - b_i)^2 in one dimension. A client's samples have the same
curvature, and minimisers that lie around b_i, so that mini-batches are noisy and the full gradient is not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction as F
from typing import ClassVar

import numpy as np
import pytest
import torch

from chronofed import (
    Backbone,
    Ditto,
    FedAvg,
    FedNova,
    FedOpt,
    FedProx,
    Method,
    Mime,
    MimeLite,
    Samples,
    Scaffold,
    Snapshot,
    Train,
    run,
)
from chronofed.scenarios.base import Plan, Visit

A, B, N = (F(2), F(1), F(4)), (F(1), F(-3), F(2)), (1, 3, 2)  # curvature, minimiser, samples
EVERYBODY = (0, 1, 2)
COHORTS = ((0, 1), (1, 2))  # who comes in the two rounds: client 1 comes back
START, LR, K = F(5), F(1, 10), 2
FULL_BATCH = Train(lr=float(LR), batch_size=max(N), steps=K)
AS_MANY_STEPS_AS_SAMPLES = Train(lr=float(LR), batch_size=max(N), epochs=float(max(N)))


# --- the world, as the real loop sees it


@dataclass
class Quadratics:
    """sum_j weight_j a_j/2 (w - b_j)^2; a sample is the pair (a_j, b_j)."""

    buffers: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    names: ClassVar[Mapping[str, slice]] = {"w": slice(0, 1)}
    uses_batch_statistics = False

    def gradient(self, params, batch):
        a, b = batch.x.T
        return (batch.weight * a * (params - b)).sum(dim=0, keepdim=True)

    def squared_gradients(self, params, batch, spans):
        a, b = batch.x.T
        return (batch.weight * (a * (params - b)) ** 2).sum(dim=0, keepdim=True)

    def augment(self, x, generator):
        return x

    def losses(self, params, batch):
        a, b = batch.x.T
        return a * (params - b) ** 2 / 2


class World:
    """A task and a scenario at once."""

    clients, persistent, rounds = len(A), True, None

    def __init__(self, cohorts=COHORTS):
        self.cohorts = cohorts
        spread = {1: [0], 2: [-1, 1], 3: [-2, 0, 2]}
        rows = [(float(A[i]), float(B[i]) + s) for i in EVERYBODY for s in spread[N[i]]]
        self.x = torch.tensor(rows, dtype=torch.float64)
        self.rows = np.split(np.arange(len(rows)), np.cumsum(N)[:-1])

    def at(self, t):
        cohort = self.cohorts[t % len(self.cohorts)]
        return Plan(t, {i: Visit(self.rows[i], 0) for i in cohort})

    def objective(self):
        return Quadratics()

    def initial(self, seed):
        return torch.tensor([float(START)], dtype=torch.float64), Quadratics().buffers

    def samples(self, indices):
        x = self.x[torch.from_numpy(indices)]
        return Samples(x, torch.zeros(len(x), dtype=torch.int64))


def train(backbone: Backbone, rounds=2, settings=FULL_BATCH, cohorts=COHORTS, start=None, **method):
    world = World(cohorts)
    if start is not None:
        params = torch.tensor([float(start)], dtype=torch.float64)
        state = backbone.init_server(params, world.clients)
        start = Snapshot(0, state, Quadratics().buffers)
    how = Method(backbone, **method)
    return list(run(how, world, world, rounds=rounds, train=settings, start=start))


def models(snapshots) -> list[float]:
    return [snapshot.params.item() for snapshot in snapshots]


def close(values):
    return pytest.approx([float(v) for v in values], rel=0, abs=1e-12)


# --- the algorithms, as their papers have them


def gradient(i, w):
    return A[i] * (w - B[i])


def mean(cohort, values):
    """By the number of samples."""
    return sum(N[i] * v for i, v in zip(cohort, values, strict=True)) / sum(N[i] for i in cohort)


def descend(w, direction, steps=K, momentum=F(0)):
    velocity = F(0)
    for _ in range(steps):
        velocity = momentum * velocity + direction(w)
        w = w - LR * velocity
    return w


def fedprox_round(w, cohort, mu):
    ends = [descend(w, lambda y, i=i: gradient(i, y) + mu * (y - w)) for i in cohort]
    return mean(cohort, ends)


def fedavg(cohorts=COHORTS, server_lr=F(1)):
    w = START
    for cohort in cohorts:
        w = w + server_lr * (fedprox_round(w, cohort, mu=0) - w)
        yield w


def mimelite(beta, server_lr=F(1)):
    w, m = START, F(0)
    for cohort in COHORTS:
        ends = [
            descend(w, lambda y, i=i, m=m: (1 - beta) * gradient(i, y) + beta * m) for i in cohort
        ]
        m = (1 - beta) * mean(cohort, [gradient(i, w) for i in cohort]) + beta * m
        w = w + server_lr * (mean(cohort, ends) - w)
        yield w


def mime(beta, server_lr=F(1), cohorts=COHORTS):
    w, m = START, F(0)
    for cohort in cohorts:
        c = mean(cohort, [gradient(i, w) for i in cohort])
        ends = []
        for i in cohort:
            y = w
            for _ in range(K):
                y = y - LR * ((1 - beta) * (gradient(i, y) - gradient(i, w) + c) + beta * m)
            ends.append(y)
        m = (1 - beta) * c + beta * m
        w = w + server_lr * (mean(cohort, ends) - w)
        yield w


def pushed(steps, momentum):
    """How far ``steps`` gradients of one push a model at rate one: FedNova's norm of a_i."""
    position = velocity = F(0)
    for _ in range(steps):
        velocity = momentum * velocity + 1
        position = position + velocity
    return position


def scaffold(option, momentum=F(0), server_lr=F(1), cohorts=COHORTS):
    """Models, server's controls and clients' controls."""
    w, c, own = START, F(0), dict.fromkeys(EVERYBODY, F(0))
    for cohort in cohorts:
        ends, new = [], {}
        for i in cohort:
            correction = c - own[i]
            end = descend(w, lambda y, i=i, d=correction: gradient(i, y) + d, momentum=momentum)
            ends.append(end)
            moved = (w - end) / (pushed(K, momentum) * LR)
            new[i] = gradient(i, w) if option == "I" else own[i] - c + moved
        c = c + F(len(cohort), len(A)) * sum(new[i] - own[i] for i in cohort) / len(cohort)
        own = own | new
        w = w + server_lr * (mean(cohort, ends) - w)
        yield w, c, own


def fednova(momentum, server_lr=F(1)):
    w = START
    for cohort in COHORTS:
        steps = [pushed(N[i], momentum) for i in cohort]
        ends = [descend(w, lambda y, i=i: gradient(i, y), N[i], momentum) for i in cohort]
        directions = [(end - w) / a for end, a in zip(ends, steps, strict=True)]
        w = w + server_lr * mean(cohort, steps) * mean(cohort, directions)
        yield w


def ditto(tie):
    """Models and personal models."""
    w, personal = START, {}
    for cohort in COHORTS:
        for i in cohort:
            v = personal.get(i, w)
            personal[i] = descend(v, lambda v, i=i, w=w: gradient(i, v) + tie * (v - w))
        w = fedprox_round(w, cohort, mu=0)
        yield w, dict(personal)


def fedopt(optimiser, mu, beta1, beta2, epsilon, server_lr):
    w, m, v = float(START), 0.0, epsilon**2
    for cohort in COHORTS:
        step = fedprox_round(w, cohort, mu) - w
        if optimiser == "momentum":
            m = beta1 * m + step
            w = w + server_lr * m
        else:
            m = beta1 * m + (1 - beta1) * step
            if optimiser == "adam":
                v = beta2 * v + (1 - beta2) * step**2
            else:
                v = v - (1 - beta2) * step**2 * math.copysign(1, v - step**2)
            w = w + server_lr * m / (math.sqrt(v) + epsilon)
        yield w


# --- two rounds


def test_fedavg_by_hand():
    """Round 1, two steps of 1/10 from 5: client 0 goes to 5 - 36/25 = 89/25, client 1 to 87/25."""
    first = (1 * F(89, 25) + 3 * F(87, 25)) / 4
    assert models(train(FedAvg(), rounds=1)) == close([first])
    assert models(train(FedAvg(server_lr=0.5))) == close(fedavg(server_lr=F(1, 2)))


@pytest.mark.parametrize("mu", [F(0), F(1, 3)])
def test_fedprox(mu):
    want = [fedprox_round(START, COHORTS[0], mu)]
    want.append(fedprox_round(want[0], COHORTS[1], mu))
    assert models(train(FedProx(float(mu)))) == close(want)


@pytest.mark.parametrize("server_lr", [F(1), F(1, 2)])
@pytest.mark.parametrize("beta", [F(0), F(1, 100), F(1, 2)])
def test_mimelite(beta, server_lr):
    backbone = MimeLite(float(beta), server_lr=float(server_lr))
    assert models(train(backbone)) == close(mimelite(beta, server_lr))


def test_mimelite_keeps_the_momentum_of_its_paper():
    """m = 1/2 (1/4 * 2 * (5 - 1) + 3/4 * (5 + 3)) = 4"""
    (snapshot,) = train(MimeLite(0.5), rounds=1)
    assert snapshot.server["momentum"].item() == pytest.approx(4.0, abs=1e-12)


@pytest.mark.parametrize("batch_size", [1, max(N)], ids=["noisy", "full"])
@pytest.mark.parametrize("server_lr", [F(1), F(1, 2)])
@pytest.mark.parametrize("beta", [F(0), F(1, 3), F(9, 10)])
def test_mime(beta, server_lr, batch_size):
    """One batch at both points: here, its noise cancels."""
    settings = Train(lr=float(LR), batch_size=batch_size, steps=K)
    backbone = Mime(float(beta), server_lr=float(server_lr))
    snapshots = train(backbone, settings=settings)
    assert models(snapshots) == close(mime(beta, server_lr))
    assert all(set(snapshot.server) == {"params", "momentum"} for snapshot in snapshots)


@pytest.mark.parametrize("server_lr", [F(1), F(1, 2)])
@pytest.mark.parametrize("momentum", [F(0), F(1, 2)])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold(option, momentum, server_lr):
    settings = Train(lr=float(LR), batch_size=max(N), steps=K, momentum=float(momentum))
    cohorts = (*COHORTS, (0, 1))  # a third round: client 1's control is in use
    snapshots = train(Scaffold(option, server_lr=float(server_lr)), 3, settings, cohorts)
    want = [*scaffold(option, momentum, server_lr, cohorts)]
    assert models(snapshots) == close(w for w, _, _ in want)
    assert [s.server["control"].item() for s in snapshots] == close(c for _, c, _ in want)
    for snapshot, (_, _, own) in zip(snapshots, want, strict=True):
        client_states = snapshot.client_states
        kept = [client_states[i].backbone_state["control"].item() for i in sorted(client_states)]
        assert kept == close(own[i] for i in sorted(client_states))


@pytest.mark.parametrize("server_lr", [F(1), F(1, 2)])
@pytest.mark.parametrize("momentum", [F(0), F(1, 2)])
def test_fednova(momentum, server_lr):
    settings = Train(
        lr=float(LR), batch_size=max(N), epochs=float(max(N)), momentum=float(momentum)
    )
    snapshots = train(FedNova(server_lr=float(server_lr)), settings=settings)
    assert models(snapshots) == close(fednova(momentum, server_lr))


@pytest.mark.parametrize("tie", [F(0), F(1, 10), F(2)])
def test_ditto(tie):
    snapshots = train(Ditto(float(tie)))
    want = [*ditto(tie)]
    assert models(snapshots) == close(w for w, _ in want)
    for snapshot, (_, personal) in zip(snapshots, want, strict=True):
        kept = [
            snapshot.client_states[i].backbone_state["personal"].item() for i in sorted(personal)
        ]
        assert kept == close(personal[i] for i in sorted(personal))


@pytest.mark.parametrize("epsilon", [1e-3, 2.0], ids=["small steps squared", "large"])
@pytest.mark.parametrize("optimiser", ["momentum", "adam", "yogi"])
def test_fedopt(optimiser, epsilon):
    """With the large epsilon, v begins above the squared step: yogi's sign is the other one."""
    backbone = FedOpt(FedProx(0.3), optimiser, 0.8, 0.95, epsilon, server_lr=0.5)
    want = fedopt(optimiser, 0.3, 0.8, 0.95, epsilon, 0.5)
    assert models(train(backbone)) == close(want)


# --- neutral settings


def test_mime_of_one_client_without_momentum_is_fedavg():
    assert models(train(Mime(0.0), cohorts=((1,), (2,)))) == close(fedavg(((1,), (2,))))


def test_fednova_of_equal_steps_is_fedavg():
    assert models(train(FedNova())) == close(fedavg())


def test_scaffold_begins_as_fedavg():
    first, second = models(train(Scaffold()))
    assert [first] == close([*fedavg()][:1])
    assert abs(second - models(train(FedAvg()))[1]) > 0.01


# --- what the algorithms are for


def minimiser(weights) -> float:
    """Of the weighted sum of the clients' objectives."""
    top = sum(p * a * b for p, a, b in zip(weights, A, B, strict=True))
    return float(top / sum(p * a for p, a in zip(weights, A, strict=True)))


@pytest.mark.parametrize("option", ["I", "II"])
def test_with_everybody_there_the_control_is_the_mean_of_the_clients(option):
    for snapshot in train(Scaffold(option), 6, cohorts=(EVERYBODY,)):
        controls = [
            client_state.backbone_state["control"].item()
            for client_state in snapshot.client_states.values()
        ]
        assert snapshot.server["control"].item() == pytest.approx(sum(controls) / 3, abs=1e-12)


@pytest.mark.parametrize(
    ("backbone", "weights"),
    [(Scaffold("I"), (1, 1, 1)), (Scaffold("II"), (1, 1, 1)), (Mime(0.5), N)],
    ids=["Scaffold I", "Scaffold II", "Mime"],
)
@pytest.mark.slow
def test_corrections_remove_the_bias_of_several_local_steps(backbone, weights):
    """FedAvg stops elsewhere; SCAFFOLD's controls count equally, so it finds the plain mean's minimiser."""
    best = minimiser(weights)
    assert models(train(backbone, 120, cohorts=(EVERYBODY,)))[-1] == pytest.approx(best, abs=1e-9)
    assert abs(models(train(FedAvg(), 120, cohorts=(EVERYBODY,)))[-1] - minimiser(N)) > 0.01


def stops_at(lr: float, backbone: Backbone) -> float:
    """Where training ends if clients take as many steps as they have samples."""
    settings = Train(lr=lr, batch_size=max(N), epochs=float(max(N)))
    rounds = int(4 / lr)
    return models(train(backbone, rounds, settings, (EVERYBODY,)))[-1]


def test_fednova_removes_the_bias_of_unequal_steps():
    """To first order in lr: FedAvg counts a client by p_i K_i, FedNova by p_i."""
    fair, unfair = minimiser(N), minimiser([n * n for n in N])
    assert abs(unfair - fair) > 0.1
    errors = {lr: abs(stops_at(lr, FedNova()) - fair) for lr in (0.04, 0.02)}
    assert errors[0.02] < 0.6 * errors[0.04] < 0.04
    assert stops_at(0.02, FedAvg()) == pytest.approx(unfair, abs=0.04)


def test_fednova_rests_at_the_minimiser_whoever_is_slow():
    """Every client does a random part of eight steps; what is left of a move is of second order in lr."""
    best = minimiser(N)

    def move(backbone, lr):
        settings = Train(lr=lr, batch_size=max(N), steps=8, slow=1.0)
        (snapshot,) = train(backbone, 1, settings, (EVERYBODY,), start=best)
        return abs(snapshot.params.item() - best) / lr

    assert move(FedAvg(), 1e-5) > 0.5
    assert move(FedNova(), 1e-5) < 1e-2
    assert move(FedNova(), 1e-6) == pytest.approx(move(FedNova(), 1e-5) / 10, rel=0.05)

"""chronofed itself as a contestant: the public ``run`` on an engine, with the same arrays as everybody.

python chronofed_peer.py A --engine auto [--method head|core-set|reg|reg-32|reg-8] [--full]
"""

import argparse
from contextlib import closing
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from protocol import Channel
from torch import nn
from workload import CLASSES, WORKLOADS, Workload, check, clients, cohort, initial, layers, probe

from chronofed import (
    Averaged,
    CoreSet,
    FedAvg,
    Fisher,
    Forget,
    Gaussian,
    Method,
    Optimal,
    Taylor,
    Train,
    run,
)
from chronofed.core.types import Samples, Vector
from chronofed.data.dataset import Dataset
from chronofed.engines.auto import choose
from chronofed.models.classification import Classification
from chronofed.models.layers import Classifier
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Custom, Mlp, ModelSettings, ResNet18
from chronofed.scenarios.base import Indices, Plan, Visit

METHODS = {
    "fedavg": Method(FedAvg(), Forget()),
    "head": Method(Averaged(FedAvg()), head=Gaussian()),
    "core-set": Method(FedAvg(), CoreSet(size=20)),
    "reg": Method(
        FedAvg(), Taylor(curvature=Fisher()), Optimal(time_drift_sq=1.0, information_loss_sq=1.0)
    ),
    "reg-32": Method(
        FedAvg(),
        Taylor(curvature=Fisher(), samples=32),
        Optimal(time_drift_sq=1.0, information_loss_sq=1.0),
    ),
    "reg-8": Method(
        FedAvg(),
        Taylor(curvature=Fisher(), samples=8),
        Optimal(time_drift_sq=1.0, information_loss_sq=1.0),
    ),
}


def cnn(shape: tuple[int, ...], classes: int, padding: int) -> nn.Module:
    """The CNN of workloads C and D; with padding 2 it is chronofed's own."""
    work = next(w for w in WORKLOADS.values() if w.model == "cnn" and w.padding == padding)
    parts: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(((shape[0], 32), (32, 64)), 1):
        parts[f"conv{number}"] = nn.Conv2d(inputs, outputs, 5, padding=padding)
        parts[f"relu_conv{number}"] = nn.ReLU()
        parts[f"pool{number}"] = nn.MaxPool2d(2)
    hidden = layers(work)[2].weight[1]
    parts |= {"flatten": nn.Flatten(), "fc1": nn.Linear(hidden, 512), "relu": nn.ReLU()}
    return Classifier(parts, 512, classes)


def model(work: Workload) -> ModelSettings:
    if work.model == "cnn":
        return Custom("chronofed_peer:cnn", {"padding": work.padding})
    return Mlp() if work.model == "mlp" else ResNet18(width=16)


def filled(work: Workload) -> Workload:
    """The workload with as many samples a client as fill its mini-batches, which replayed ones also do."""
    return replace(work, samples=work.steps * work.batch)


class Task(Classification):
    """Classification that starts from the workload's parameters."""

    def initial(self, seed: int) -> tuple[Vector, Vector]:
        params, buffers = super().initial(seed)
        flat = np.concatenate([array.ravel() for array in initial(work_of(self))])
        assert len(flat) == len(params)
        return torch.from_numpy(flat), buffers


def work_of(task: Classification) -> Workload:
    return WORKLOADS[task.data.name]


def task_of(work: Workload) -> Task:
    data = clients(work)
    x = torch.from_numpy(data.images.reshape(-1, *work.shape))
    y = torch.from_numpy(data.labels.reshape(-1))
    images, labels = (torch.from_numpy(array) for array in probe(data))
    names = tuple(map(str, range(CLASSES)))
    dataset = Dataset(work.name, Samples(x, y), Samples(images, labels), names)
    return Task(dataset, model(work))


class World:
    """Everybody keeps its data; in workload B the cohort is the one that all contestants have."""

    persistent, rounds = True, None

    def __init__(self, work: Workload) -> None:
        self.work, self.clients = work, work.clients

    def at(self, number: int) -> Plan:
        rows: dict[int, Indices] = {
            client: np.arange(client * self.work.samples, (client + 1) * self.work.samples)
            for client in sorted(cohort(self.work, number))
        }
        key = number % 30  # a memory sees 30 data sets, so that it has something to replay
        return Plan(number, {client: Visit(row, key) for client, row in rows.items()})


def checked(work: Workload, task: Task) -> float:
    """Round 0 in stored order, serially, against the reference that everybody is compared with."""
    with mock.patch("torch.randperm", lambda n, **_: torch.arange(n)):
        first = next(run(METHODS["fedavg"], World(work), task, train=train(work)))
    sizes = [array.shape for array in initial(work)]
    parts = torch.split(first.params, [int(np.prod(size)) for size in sizes])
    return check(work, [p.numpy().reshape(s) for p, s in zip(parts, sizes, strict=True)])


def train(work: Workload) -> Train:
    return Train(lr=work.lr, batch_size=work.batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--method", choices=METHODS, default="fedavg")
    parser.add_argument("--full", action="store_true", help="as many samples as fill all batches")
    options = parser.parse_args()
    channel = Channel()
    work, method = WORKLOADS[options.workload], METHODS[options.method]
    task = task_of(work)
    error = checked(work, task)
    if (
        options.full
    ):  # there is no reference for these: the same program was checked on the usual ones
        work = filled(work)
        task = task_of(work)
    choice = choose(options.engine, options.workers, task, method, work.cohort)
    objective = task.objective()
    with closing(choice.build(task)) as engine:
        snapshots = run(method, World(work), task, train=train(work), engine=engine)
        losses = [score(task, objective, *task.initial(0))]
        for _ in range(3):
            last = next(snapshots)
        losses.append(score(task, objective, last.params, last.buffers))
        lagging = work.model == "resnet"  # BatchNorm's statistics, after so few rounds
        assert losses[1] < losses[0] or lagging, losses

        def rounds(number: int) -> None:
            for _ in range(number):
                next(snapshots)

        about = {"engine": f"{choice.engine} x {choice.workers}", "error": error, "loss": losses}
        counts = {"steps": work.steps, "samples": work.samples, "order": "shuffled"}
        channel.serve(rounds, peer="chronofed", workload=work.name, **about, **counts)


def score(task: Task, objective: TorchObjective, params: Vector, buffers: Vector) -> float:
    return task.score(objective, params, buffers, task.data.test).loss


if __name__ == "__main__":
    # Workers of Ray can import ``chronofed_peer.Task``, but not ``__main__.Task``.
    import chronofed_peer

    chronofed_peer.main()

"""What a method costs in traffic and state, measured on a tiny run instead of stated."""

from dataclasses import dataclass

import torch

from chronofed.local import Train
from chronofed.loop import Snapshot, run
from chronofed.protocol import Method
from chronofed.scenarios import Subsets
from chronofed.tasks.classification import Classification
from chronofed.tasks.dataset import Dataset
from chronofed.tasks.models import Linear
from chronofed.types import Record, Samples

CLIENTS, ROUNDS, FEATURES = 2, 2, 15


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one client in units of the model's size, but for the samples that it keeps.

    Attributes:
        down: Sent to a client each round.
        up: Sent back.
        client: Kept by a client beside samples.
        server: Kept by the server beside the model, for each client and round that it remembers.
        samples: Whether the client keeps samples.
    """

    down: float
    up: float
    client: float
    server: float
    samples: bool


def costs(method: Method) -> Costs:
    """Measure a method on two clients and two rounds of a linear model."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 2
    samples = Samples(torch.randn(80, FEATURES, generator=generator) + y[:, None], y)
    task = Classification(Dataset("costs", samples, samples, ("0", "1")), Linear())
    scenario = Subsets(clients=CLIENTS, subsets=4, client_alpha=10.0).on(task.data, seed=0)
    snapshots = list(run(method, scenario, task, rounds=ROUNDS, train=Train(steps=1)))
    return _of(snapshots[-1])


def _of(snapshot: Snapshot) -> Costs:
    model = snapshot.params.nbytes
    visits = CLIENTS * ROUNDS
    lockers = snapshot.lockers.values()
    own = _bytes(snapshot.server) - model + sum(_bytes(k.record) for k in snapshot.past) / visits
    return Costs(
        down=round(snapshot.traffic.down / model / visits, 1),
        up=round(snapshot.traffic.up / model / visits, 1),
        client=round(sum(_bytes(locker.state) for locker in lockers) / model / CLIENTS, 1),
        server=round(own / model, 1),
        samples=any("x" in keepsake.record for locker in lockers for keepsake in locker.kept),
    )


def _bytes(record: Record) -> int:
    return sum(tensor.nbytes for tensor in record.values())

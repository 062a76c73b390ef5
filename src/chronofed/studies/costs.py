"""Traffic and state of a method, measured on a tiny run."""

from dataclasses import dataclass

import torch

from chronofed.core.types import Record, Samples
from chronofed.data.dataset import Dataset
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.models.classification import Classification
from chronofed.models.zoo import Linear
from chronofed.scenarios import Subsets
from chronofed.training.loop import Snapshot, run

CLIENTS, ROUNDS, FEATURES = 2, 2, 15


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes per client, in multiples of the model's bytes.

    Attributes:
        down_models: Sent to a client per round.
        up_models: Sent back per round.
        client_models: Kept by a client, without samples; by a memory, per remembered data set.
        server_models: Kept by the server beside the model, per remembered client and round.
        client_samples: Whether the client keeps samples.
    """

    down_models: float
    up_models: float
    client_models: float
    server_models: float
    client_samples: bool


def costs(method: Method) -> Costs:
    """Measure a method on two clients and two rounds of a linear model."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 2
    samples = Samples(torch.randn(80, FEATURES, generator=generator) + y[:, None], y)
    task = Classification(Dataset("costs", samples, samples, ("0", "1")), Linear())
    scenario = Subsets(clients=CLIENTS, subsets=4, client_alpha=10.0).on(task.data, seed=0)
    train, unlabelled = Train(steps=1), samples.x
    snapshots = list(
        run(method, scenario, task, rounds=ROUNDS, train=train, server_samples=unlabelled)
    )
    return _costs(snapshots[-1])


def _costs(snapshot: Snapshot) -> Costs:
    model_bytes = snapshot.params.nbytes
    visits = CLIENTS * ROUNDS
    states = snapshot.client_states.values()
    items_bytes = sum(_bytes(item.record) for item in snapshot.past)
    server_bytes = _bytes(snapshot.server) - model_bytes + items_bytes / visits
    client_bytes = sum(_bytes(_vectors(state.backbone_state)) for state in states) / CLIENTS
    items = [item for state in states for item in state.items]
    client_bytes += sum(_bytes(_vectors(item.record)) for item in items) / max(len(items), 1)
    return Costs(
        down_models=round(snapshot.traffic.down_bytes / model_bytes / visits, 1),
        up_models=round(snapshot.traffic.up_bytes / model_bytes / visits, 1),
        client_models=round(client_bytes / model_bytes, 1),
        server_models=round(server_bytes / model_bytes, 1),
        client_samples=any("x" in item.record for item in items),
    )


def _vectors(record: Record) -> Record:
    """Return the tensors of a record that are neither samples nor about them."""
    about_samples = {"x", "y", "rows", "sources", "reservoir"}
    return {name: tensor for name, tensor in record.items() if name not in about_samples}


def _bytes(record: Record) -> int:
    return sum(tensor.nbytes for tensor in record.values())
